// A device played by hand, for tests of the driver's side that are alike for split and packed
// rings. It shares nothing with the product's device side but the layouts, and does just what a
// test says, right or wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "dataplane/virtq/packed_driver.h"
#include "dataplane/virtq/split_driver.h"

namespace vswitch::virtq {

// One chain as the device sees it.
struct TakenChain {
  std::uint16_t id = 0;
  std::uint32_t slots = 0;  // descriptors in the ring itself
  bool indirect = false;
  std::vector<DriverSegment> segments;
};

// Page-aligned memory with garbage in it, and the guest's addresses of it.
class HandMemory {
 public:
  static constexpr std::uint64_t kGuestBase = 0x4000'0000;

  explicit HandMemory(std::size_t bytes) : storage_(bytes + 4096, std::byte{0xa5}) {
    const auto start = reinterpret_cast<std::uintptr_t>(storage_.data());
    base_ = storage_.data() + (4096 - start % 4096) % 4096;
  }
  std::byte* at(std::size_t offset) { return base_ + offset; }
  std::uint64_t guest(std::size_t offset) const { return kGuestBase + offset; }
  template <typename T>
  T* host(std::uint64_t guest_address) {
    return reinterpret_cast<T*>(base_ + (guest_address - kGuestBase));
  }

 private:
  std::vector<std::byte> storage_;
  std::byte* base_;
};

// Memory for a ring (1 MiB) and for what a test likes behind it (from kFree on).
class HandDevice {
 public:
  static constexpr std::size_t kFree = 1 << 20;

  explicit HandDevice(std::uint32_t size) : size_(size), memory_(kFree + (8 << 20)) {}

  HandMemory& memory() { return memory_; }
  std::uint32_t size() const { return size_; }

 protected:
  // Of a table in memory; `Entry` is Descriptor or PackedDescriptor.
  template <typename Entry>
  void read_table(std::uint64_t address, std::uint32_t length, TakenChain& chain) {
    chain.indirect = true;
    const auto* entries = memory_.host<Entry>(address);
    for (std::uint32_t i = 0; i < length / 16; ++i) {
      chain.segments.push_back(
          {entries[i].address, entries[i].length, (entries[i].flags & kDescWrite) != 0});
    }
  }

  std::uint32_t size_;
  HandMemory memory_;
};

class HandSplit : public HandDevice {
 public:
  using Driver = SplitDriver;
  static constexpr bool kPacked = false;

  explicit HandSplit(std::uint32_t size) : HandDevice(size) {
    ring_.descriptors = reinterpret_cast<Descriptor*>(memory_.at(0));
    ring_.avail = reinterpret_cast<RingHeader*>(memory_.at(0x80000));
    ring_.used = reinterpret_cast<RingHeader*>(memory_.at(0xa0000));
    ring_.size = size;
  }
  const SplitRing& ring() const { return ring_; }
  void start_at(std::uint16_t base) { next_ = used_ = base; }

  std::optional<TakenChain> take() {
    if (next_ == ring_.avail->index) return std::nullopt;
    TakenChain chain;
    chain.id = ring_.avail_entries()[next_ % size_];
    ++next_;
    for (std::uint32_t index = chain.id;; index = ring_.descriptors[index].next) {
      const Descriptor& descriptor = ring_.descriptors[index];
      ++chain.slots;
      if ((descriptor.flags & kDescIndirect) != 0) {
        read_table<Descriptor>(descriptor.address, descriptor.length, chain);
      } else {
        chain.segments.push_back(
            {descriptor.address, descriptor.length, (descriptor.flags & kDescWrite) != 0});
      }
      if ((descriptor.flags & kDescNext) == 0) return chain;
    }
  }

  // Returns `chains` chains of together `slots` descriptors by one element that names `id`.
  void use(std::uint32_t id, std::uint32_t length, std::uint16_t chains = 1,
           std::uint32_t /*slots*/ = 1) {
    ring_.used_elements()[used_ % size_] = {id, length};
    used_ = static_cast<std::uint16_t>(used_ + chains);
    ring_.used->index = used_;
  }

  void want_kicks(bool wanted) { ring_.used->flags = wanted ? 0 : kUsedNoNotify; }
  // With an event index: to be kicked when the `n`-th descriptor from the start, counted from 0,
  // is made available; all chains are one descriptor.
  void want_kick_at(std::uint32_t n) { ring_.avail_event() = static_cast<std::uint16_t>(n); }
  bool calls_suppressed() const { return ring_.avail->flags == kAvailNoInterrupt; }
  // The `n`-th used element the driver wants to be called at.
  bool wants_call_at(std::uint32_t n) const {
    return ring_.avail->flags == 0 && ring_.used_event() == static_cast<std::uint16_t>(n);
  }

 private:
  SplitRing ring_;
  std::uint16_t next_ = 0;
  std::uint16_t used_ = 0;
};

class HandPacked : public HandDevice {
 public:
  using Driver = PackedDriver;
  static constexpr bool kPacked = true;

  explicit HandPacked(std::uint32_t size) : HandDevice(size) {
    ring_.descriptors = reinterpret_cast<PackedDescriptor*>(memory_.at(0));
    ring_.driver_events = reinterpret_cast<EventSuppression*>(memory_.at(0x80000));
    ring_.device_events = reinterpret_cast<EventSuppression*>(memory_.at(0xa0000));
    ring_.size = size;
  }
  const PackedRing& ring() const { return ring_; }
  void start_at(std::uint16_t raw) {
    next_ = used_ = raw & 0x7fff;
    next_wrap_ = used_wrap_ = raw >> 15;
  }

  std::optional<TakenChain> take() {
    TakenChain chain;
    for (;;) {
      const PackedDescriptor& descriptor = ring_.descriptors[next_];
      // 2.8.1: available when AVAIL equals the wrap counter and USED does not.
      const unsigned avail = descriptor.flags >> 7 & 1, used = descriptor.flags >> 15 & 1;
      if (avail != next_wrap_ || used == next_wrap_) return std::nullopt;
      ++chain.slots;
      if ((descriptor.flags & kDescIndirect) != 0) {
        read_table<PackedDescriptor>(descriptor.address, descriptor.length, chain);
      } else {
        chain.segments.push_back(
            {descriptor.address, descriptor.length, (descriptor.flags & kDescWrite) != 0});
      }
      advance(next_, next_wrap_);
      if ((descriptor.flags & kDescNext) == 0) {
        chain.id = descriptor.id;
        return chain;
      }
    }
  }

  void use(std::uint32_t id, std::uint32_t length, std::uint16_t /*chains*/ = 1,
           std::uint32_t slots = 1) {
    PackedDescriptor& descriptor = ring_.descriptors[used_];
    descriptor.id = static_cast<std::uint16_t>(id);
    descriptor.length = length;
    descriptor.flags =
        static_cast<std::uint16_t>((used_wrap_ != 0 ? 0x8080 : 0) | (length != 0 ? kDescWrite : 0));
    for (; slots > 0; --slots) advance(used_, used_wrap_);
  }

  void want_kicks(bool wanted) {
    *ring_.device_events = {0, static_cast<std::uint16_t>(wanted ? 0 : 1)};
  }
  void want_kick_at(std::uint32_t n) { *ring_.device_events = {raw(n), 2}; }
  bool calls_suppressed() const { return ring_.driver_events->flags == 1; }
  bool wants_call_at(std::uint32_t n) const {
    return ring_.driver_events->flags == 2 && ring_.driver_events->offset_wrap == raw(n);
  }

 private:
  std::uint16_t raw(std::uint32_t n) const {
    const std::uint32_t lap = n / size_;
    return static_cast<std::uint16_t>(n % size_ | (lap % 2 == 0 ? 0x8000 : 0));
  }
  void advance(std::uint32_t& place, unsigned& wrap) const {
    if (++place == size_) {
      place = 0;
      wrap ^= 1;
    }
  }

  PackedRing ring_;
  std::uint32_t next_ = 0, used_ = 0;
  unsigned next_wrap_ = 1, used_wrap_ = 1;
};

}  // namespace vswitch::virtq
