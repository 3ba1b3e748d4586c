// What a driver ring end remembers in private memory: which descriptors (split) or buffer ids
// (packed) are free, and which chains are in flight. The device can write the ring, so nothing of
// this is ever read back from there.
#pragma once

#include <cstdint>
#include <vector>

#include "dataplane/virtq/driver_ring.h"

namespace vswitch::virtq {

class ChainTable {
 public:
  struct Chain {
    std::uint64_t order = 0;        // the ring end's count of chains when this one was posted
    std::uint32_t writable = 0;     // bytes
    std::uint16_t descriptors = 0;  // 0: not in flight
  };

  // 1 <= size <= kMaxQueueSize, need not be a power of two.
  explicit ChainTable(std::uint32_t size);

  std::uint32_t size() const { return static_cast<std::uint32_t>(chains_.size()); }
  std::uint32_t free() const { return free_count_; }

  // The next free descriptor; there must be one.
  std::uint16_t take() {
    const std::uint16_t index = free_[free_head_];
    if (++free_head_ == free_.size()) free_head_ = 0;
    --free_count_;
    return index;
  }
  void link(std::uint16_t descriptor, std::uint16_t next) { next_[descriptor] = next; }
  std::uint16_t next(std::uint16_t descriptor) const { return next_[descriptor]; }
  // The chain that begins with `head`, whose descriptors were taken and linked, is in flight.
  void add(std::uint16_t head, const Chain& chain) { chains_[head] = chain; }

  // For any number a device can come up with.
  bool in_flight(std::uint32_t id) const {
    return id < chains_.size() && chains_[id].descriptors != 0;
  }
  const Chain& operator[](std::uint16_t head) const { return chains_[head]; }

  // Takes a chain back of which the device says it wrote `length` bytes.
  UsedChain finish(std::uint16_t head, std::uint32_t length, DriverRingCounters& counters) {
    const std::uint32_t writable = chains_[head].writable;
    if (length > writable) {
      ++counters.capped_lengths;
      length = writable;
    }
    release(head);
    return {head, length};
  }
  // Takes a chain back that an in-order device skipped: "used completely" (virtio 1.2, 2.7.9).
  UsedChain finish_skipped(std::uint16_t head) {
    const std::uint32_t writable = chains_[head].writable;
    release(head);
    return {head, writable};
  }

  // The head of the oldest chain in flight; there must be one. Only where chains are always taken
  // back oldest first (VIRTIO_F_IN_ORDER): descriptors then go round in ring order for ever, and
  // those in flight begin where the free ones end.
  std::uint16_t oldest() const { return static_cast<std::uint16_t>(free_tail_); }

  // Heads of all chains in flight, oldest first. Allocates.
  std::vector<std::uint16_t> in_flight_oldest_first() const;
  void set_order(std::uint16_t head, std::uint64_t order) { chains_[head].order = order; }

 private:
  void put(std::uint16_t descriptor) {
    free_[free_tail_] = descriptor;
    if (++free_tail_ == free_.size()) free_tail_ = 0;
    ++free_count_;
  }
  void release(std::uint16_t head) {
    std::uint16_t left = chains_[head].descriptors;
    chains_[head].descriptors = 0;
    put(head);
    for (std::uint16_t index = head; --left > 0;) {
      index = next_[index];
      put(index);
    }
  }

  // Free descriptors, first in first out: a device that completes in order then meets the same
  // descriptor in the same slot every lap, and neither has to be written again.
  std::vector<std::uint16_t> free_;
  std::uint32_t free_head_ = 0;
  std::uint32_t free_tail_ = 0;
  std::uint32_t free_count_;
  std::vector<Chain> chains_;  // by head
  std::vector<std::uint16_t> next_;
};

// What the element of a used ring that was read last says, until all its chains are handed out.
struct UsedBatch {
  std::uint16_t last = 0;  // the chain it names; with VIRTIO_F_IN_ORDER all older ones belong to it
  std::uint32_t length = 0;
  bool open = false;
};

}  // namespace vswitch::virtq
