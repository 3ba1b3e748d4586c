// The driver's end of a split virtqueue: posts chains, publishes them, collects used ones.
//
// Knows layout, order and barriers, and nothing of packets. A packed driver end has the same shape:
// both satisfy the concept DriverRing. Source: virtio 1.2, 2.7 "Split Virtqueues".
//
// What the device writes (the used ring) is never trusted: an element that names no chain in flight
// is refused and counted, and the ring carries on.
//
// Belongs to one thread. Allocates only when it is made.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dataplane/virtq/split_layout.h"

namespace vswitch::virtq {

// One piece of a chain the driver offers.
struct DriverSegment {
  std::uint64_t address;  // guest-physical
  std::uint32_t length;   // bytes
  bool device_writable;
};

// One chain that came back.
struct UsedChain {
  std::uint16_t id;      // what post() returned
  std::uint32_t length;  // bytes the device says it wrote; never more than what was writable
};

// Things a device did that it must not do. Monotonic.
struct DriverRingCounters {
  std::uint64_t bad_ids = 0;         // id out of range, never posted, or used twice
  std::uint64_t capped_lengths = 0;  // more bytes "written" than were writable
};

template <typename T>
concept DriverRing = requires(T ring, const T const_ring, std::span<const DriverSegment> chain,
                              std::span<UsedChain> used) {
  { ring.post(chain) } -> std::same_as<std::optional<std::uint16_t>>;
  {ring.expose()};
  { ring.reap(used) } -> std::same_as<std::uint32_t>;
  { ring.wants_event() } -> std::same_as<bool>;
  {ring.suppress_calls(true)};
  { const_ring.size() } -> std::same_as<std::uint32_t>;
  { const_ring.free_descriptors() } -> std::same_as<std::uint32_t>;
  { const_ring.broken() } -> std::same_as<bool>;
  { const_ring.counters() } -> std::same_as<const DriverRingCounters&>;
};

class SplitDriver {
 public:
  // Formats the ring: nothing available, nothing used, calls wanted. The device must not know the
  // ring yet. `ring` stays the caller's memory and must outlive this; its size is a power of two.
  explicit SplitDriver(const SplitRing& ring);

  std::uint32_t size() const { return ring_.size; }
  std::uint32_t free_descriptors() const { return free_count_; }

  // Stages one chain; the device sees it after expose(). Nothing if there are too few free
  // descriptors, or none or more than size() segments. Device-readable segments come first
  // (2.7.4.2).
  std::optional<std::uint16_t> post(std::span<const DriverSegment> chain);
  // Makes everything staged available, in one store.
  void expose();

  // Collects up to out.size() chains the device is done with, and frees their descriptors.
  std::uint32_t reap(std::span<UsedChain> out);

  // Whether the device asks to be kicked for what was exposed. Call once after expose().
  bool wants_event();
  // Tells the device whether calls (interrupts) are unwanted. A hint: they may come anyway. After
  // suppress_calls(false) look with reap() once more before sleeping.
  void suppress_calls(bool suppress);

  // The used index moved further than the queue is long: the position is lost. reap() then finds
  // nothing until the ring is made anew.
  bool broken() const { return broken_; }
  const DriverRingCounters& counters() const { return counters_; }

  // For a device that comes back (a restarted back-end): offers again, in the order they were
  // posted, all chains that were exposed and not collected, starting at the used index. Returns the
  // index the device starts from (SET_VRING_BASE). Only while no device runs, and after reap()
  // found nothing more.
  std::uint16_t resume();

 private:
  struct ChainState {
    std::uint32_t writable = 0;     // bytes
    std::uint16_t descriptors = 0;  // 0: not in flight
    std::uint16_t last = 0;         // last descriptor of the chain
  };

  std::uint16_t take_descriptor();
  void free_chain(std::uint16_t id);

  SplitRing ring_;
  std::uint16_t mask_;
  std::uint16_t available_ = 0;  // next avail.idx, staged ones included
  std::uint16_t exposed_ = 0;    // avail.idx as published
  std::uint16_t used_ = 0;       // next used element to look at
  bool broken_ = false;
  // Free descriptors, first in first out: a device that completes in order then meets the same
  // descriptor in the same slot every lap, and neither has to be written again.
  std::vector<std::uint16_t> free_;
  std::uint32_t free_head_ = 0;
  std::uint32_t free_count_ = 0;
  std::vector<ChainState> chains_;   // by head
  std::vector<std::uint16_t> next_;  // our own copy of the links: the device can write the table's
  DriverRingCounters counters_;
};

static_assert(DriverRing<SplitDriver>);

}  // namespace vswitch::virtq
