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

  std::optional<std::uint16_t> post(std::span<const DriverSegment> chain);
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
  void write(const Element& element, std::uint16_t id);

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

static_assert(DriverRing<PackedDriver>);

}  // namespace vswitch::virtq
