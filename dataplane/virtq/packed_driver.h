// The driver's end of a packed virtqueue: posts lists, publishes them, collects used ones. What its
// operations do stands at the concept DriverRing ("chain" is a list here). Source: virtio 1.2, 2.8
// "Packed Virtqueues".
//
// What the device writes is never trusted. How many descriptors a used one stands for is known only
// by its buffer id, so an id that is not in flight loses the position: broken(), counted.
//
// Belongs to one thread. Allocates only when it is made, and in resume().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dataplane/virtq/chain_table.h"
#include "dataplane/virtq/driver_ring.h"
#include "dataplane/virtq/features.h"
#include "dataplane/virtq/packed_layout.h"

namespace vswitch::virtq {

class PackedDriver {
 public:
  // Formats the ring: nothing available, calls wanted. The device must not know the ring yet.
  // `ring` stays the caller's memory and must outlive this; any size from 1 to kMaxQueueSize.
  explicit PackedDriver(const PackedRing& ring, RingFeatures features = {});

  // Offset 0 in bits 0-14, wrap counter 1 in bit 15; of both positions.
  static constexpr std::uint16_t kFreshBase = 0x8000;

  std::uint32_t size() const { return ring_.size; }
  std::uint32_t free_descriptors() const { return chains_.free(); }

  std::optional<std::uint16_t> post(std::span<const DriverSegment> chain) {
    return chain.size() == 1 ? post_one(chain.front()) : post_list(chain);
  }
  std::optional<std::uint16_t> post_indirect(const IndirectTable& table,
                                             std::span<const DriverSegment> chain);
  // Writes the flags of the first descriptor staged, which were held back.
  void expose();
  std::uint32_t reap(std::span<UsedChain> out);

  bool wants_event();
  void suppress_calls(bool suppress);

  bool broken() const { return broken_; }
  const DriverRingCounters& counters() const { return counters_; }

  // A packed ring holds no index that would tell how far the old device came, and used descriptors
  // may have overwritten lists that are still in flight. So the ring is formatted anew, and
  // everything in flight offered again from its start: always returns kFreshBase.
  std::uint16_t resume();

 private:
  // A private copy of what is in flight, for resume(); by buffer id, linked like the chain.
  struct Element {
    std::uint64_t address = 0;
    std::uint32_t length = 0;
    std::uint16_t flags = 0;  // without the wrap bits
  };

  void format();
  // What most lists are, inline.
  std::optional<std::uint16_t> post_one(const DriverSegment& segment);
  std::optional<std::uint16_t> post_list(std::span<const DriverSegment> chain);
  void write(const Element& element, std::uint16_t id);

  bool load_used(PackedPosition place, std::uint16_t& id, std::uint32_t& length);
  // reap() by the rule for used descriptors that was negotiated.
  std::uint32_t reap_each(std::span<UsedChain> out);
  std::uint32_t reap_batches(std::span<UsedChain> out);

  PackedRing ring_;
  RingFeatures features_;
  PackedPosition next_;              // of the next descriptor to make available
  PackedPosition used_;              // of the next used descriptor to look at
  std::uint32_t staged_ = 0;         // descriptors not exposed yet
  std::uint16_t staged_offset_ = 0;  // of the first of them,
  std::uint16_t staged_flags_ = 0;   // which lacks these flags
  std::uint32_t unannounced_ = 0;    // descriptors exposed since the last wants_event(); <= size
  std::uint64_t posted_ = 0;         // lists
  bool broken_ = false;
  bool calls_wanted_ = true;
  UsedBatch batch_;
  ChainTable chains_;
  std::vector<Element> elements_;
  DriverRingCounters counters_;
};

inline void PackedDriver::write(const Element& element, std::uint16_t id) {
  PackedDescriptor& shared = ring_.descriptors[next_.offset];
  const auto flags = static_cast<std::uint16_t>(element.flags | next_.avail_flags());
  // 2.8.13: plain stores; expose() orders them. The line is written in any case, so there is
  // nothing to gain from comparing first.
  store_relaxed(shared.address, element.address);
  if (staged_ == 0) {
    // 2.8.21.1: the device must not see the first before all others. Of everything staged, not just
    // of one list: the device reads in ring order, so it stops here until expose().
    store_relaxed(shared.length, element.length);
    store_relaxed(shared.id, id);
    staged_offset_ = next_.offset;
    staged_flags_ = flags;
  } else {
    const std::uint64_t rest =
        element.length | std::uint64_t{id} << 32 | std::uint64_t{flags} << 48;
    __atomic_store_n(reinterpret_cast<Word64*>(&shared.length), rest, __ATOMIC_RELAXED);
  }
  ++staged_;
  next_.advance(1, ring_.size);
}

inline std::optional<std::uint16_t> PackedDriver::post_one(const DriverSegment& segment) {
  if (chains_.free() == 0) return std::nullopt;
  const std::uint16_t id = chains_.take();
  Element& element = elements_[id];
  element = {segment.address, segment.length,
             segment.device_writable ? kDescWrite : std::uint16_t{0}};
  write(element, id);
  chains_.add(id, {.order = posted_++,
                   .writable = segment.device_writable ? segment.length : 0,
                   .descriptors = 1});
  return id;
}

static_assert(DriverRing<PackedDriver>);

}  // namespace vswitch::virtq
