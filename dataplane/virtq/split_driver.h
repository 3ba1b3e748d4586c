// The driver's end of a split virtqueue: posts chains, publishes them, collects used ones. What its
// operations do stands at the concept DriverRing. Source: virtio 1.2, 2.7 "Split Virtqueues".
//
// What the device writes (the used ring) is never trusted: an element that names no chain in flight
// is refused and counted, and the ring carries on. Only a used index that moves further than the
// queue is long loses the position: broken().
//
// Belongs to one thread. Allocates only when it is made, and in resume().
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "dataplane/virtq/chain_table.h"
#include "dataplane/virtq/driver_ring.h"
#include "dataplane/virtq/features.h"
#include "dataplane/virtq/split_layout.h"

namespace vswitch::virtq {

class SplitDriver {
 public:
  // Formats the ring: nothing available, nothing used, calls wanted. The device must not know the
  // ring yet. `ring` stays the caller's memory and must outlive this; its size is a power of two.
  explicit SplitDriver(const SplitRing& ring, RingFeatures features = {});

  // An index, free-running.
  static constexpr std::uint16_t kFreshBase = 0;

  std::uint32_t size() const { return ring_.size; }
  std::uint32_t free_descriptors() const { return chains_.free(); }

  std::optional<std::uint16_t> post(std::span<const DriverSegment> chain) {
    return chain.size() == 1 ? post_one(chain.front()) : post_list(chain);
  }
  std::optional<std::uint16_t> post_indirect(const IndirectTable& table,
                                             std::span<const DriverSegment> chain);
  void expose();
  std::uint32_t reap(std::span<UsedChain> out);

  bool wants_event();
  void suppress_calls(bool suppress);

  bool broken() const { return broken_; }
  const DriverRingCounters& counters() const { return counters_; }

  // The device starts from the used index.
  std::uint16_t resume();

 private:
  std::uint16_t available() const { return static_cast<std::uint16_t>(posted_); }
  // What most chains are, inline.
  std::optional<std::uint16_t> post_one(const DriverSegment& segment);
  std::optional<std::uint16_t> post_list(std::span<const DriverSegment> chain);
  void make_available(std::uint16_t head, std::uint32_t writable, std::size_t descriptors) {
    chains_.add(head, {.order = posted_,
                       .writable = writable,
                       .descriptors = static_cast<std::uint16_t>(descriptors)});
    // 2.7.13.2: the head goes into the next ring entry, still unseen by the device.
    store_if_different(ring_.avail_entries()[available() & mask_], head);
    ++posted_;
  }
  // reap() of at most `pending` entries, by the rule for used elements that was negotiated.
  std::uint32_t reap_each(std::span<UsedChain> out, std::uint16_t pending);
  std::uint32_t reap_batches(std::span<UsedChain> out, std::uint16_t pending);

  SplitRing ring_;
  RingFeatures features_;
  std::uint16_t mask_;
  std::uint64_t posted_ = 0;    // its low half is the next avail.idx, staged ones included
  std::uint16_t exposed_ = 0;   // avail.idx as published
  std::uint16_t notified_ = 0;  // avail.idx at the last wants_event()
  std::uint16_t used_ = 0;      // next used element to look at
  bool broken_ = false;
  bool calls_wanted_ = true;
  UsedBatch batch_;
  ChainTable chains_;
  DriverRingCounters counters_;
};

inline std::optional<std::uint16_t> SplitDriver::post_one(const DriverSegment& segment) {
  if (chains_.free() == 0) return std::nullopt;
  const std::uint16_t head = chains_.take();
  // 2.7.13.1: an ordinary store each; expose() orders them.
  store_descriptor_if_different(ring_.descriptors[head],
                                {segment.address, segment.length,
                                 segment.device_writable ? kDescWrite : std::uint16_t{0}, 0});
  make_available(head, segment.device_writable ? segment.length : 0, 1);
  return head;
}

static_assert(DriverRing<SplitDriver>);

}  // namespace vswitch::virtq
