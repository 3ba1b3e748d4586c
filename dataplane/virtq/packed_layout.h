// The packed virtqueue as it lies in guest memory.
//
// Source: virtio 1.2, 2.8 "Packed Virtqueues". One ring of descriptors that both sides write, and
// one event suppression structure from each of them. Touched only through the accessors of
// ring_access.h and those below.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dataplane/virtq/ring_access.h"

namespace vswitch::virtq {

// Several fields as one word, so that one access carries them together.
using Word32 [[gnu::may_alias]] = std::uint32_t;
using Word64 [[gnu::may_alias]] = std::uint64_t;

// 2.8.13: how the wrap counters show in a descriptor's flags, beside kDescNext and so on.
inline constexpr std::uint16_t kPackedAvail = 1u << 7;
inline constexpr std::uint16_t kPackedUsed = 1u << 15;

// 2.8.13: one descriptor. 16 bytes, 16-byte aligned.
struct PackedDescriptor {
  std::uint64_t address;  // guest-physical; means nothing in a used descriptor
  std::uint32_t length;   // used: bytes written
  std::uint16_t id;       // buffer id: of a list, only its last descriptor's counts (2.8.6)
  std::uint16_t flags;
};
static_assert(sizeof(PackedDescriptor) == 16);

// A private copy of one descriptor, each field loaded once.
inline PackedDescriptor load_descriptor(const PackedDescriptor& shared) {
  return {load_relaxed(shared.address), load_relaxed(shared.length), load_relaxed(shared.id),
          load_relaxed(shared.flags)};
}

// Everything but the address by one store, which makes the whole descriptor used (or available)
// at once. Release: what was written before, the buffer's bytes included, is seen before it is.
inline void publish_descriptor(PackedDescriptor& shared, std::uint32_t length, std::uint16_t id,
                               std::uint16_t flags) {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer pairs a release with an acquire by their address, and the other side's is that
  // of the flags alone.
  store_relaxed(shared.length, length);
  store_relaxed(shared.id, id);
  store_release(shared.flags, flags);
#else
  const std::uint64_t raw = length | std::uint64_t{id} << 32 | std::uint64_t{flags} << 48;
  __atomic_store_n(reinterpret_cast<Word64*>(&shared.length), raw, __ATOMIC_RELEASE);
#endif
}

// 2.8.14: what one side wishes to be told of by the other.
struct EventSuppression {
  std::uint16_t offset_wrap;  // bits 0-14: descriptor offset, bit 15: wrap counter
  std::uint16_t flags;        // one of the following; bits 2-15 are reserved
};
static_assert(sizeof(EventSuppression) == 4);
inline constexpr std::uint16_t kEventsEnabled = 0;
inline constexpr std::uint16_t kEventsDisabled = 1;
inline constexpr std::uint16_t kEventsAtDescriptor = 2;  // only with VIRTIO_F_EVENT_IDX

constexpr std::size_t packed_ring_bytes(std::uint32_t size) {
  return std::size_t{size} * sizeof(PackedDescriptor);
}
// 2.8.10.1
inline constexpr std::size_t kPackedRingAlignment = 16;
inline constexpr std::size_t kEventSuppressionAlignment = 4;

// Both fields by one load, so that they belong together; without the reserved bits.
inline EventSuppression load_event_suppression(const EventSuppression& shared) {
  const std::uint32_t raw =
      __atomic_load_n(reinterpret_cast<const Word32*>(&shared), __ATOMIC_RELAXED);
  return {static_cast<std::uint16_t>(raw), static_cast<std::uint16_t>(raw >> 16 & 3)};
}
inline void store_event_suppression(EventSuppression& shared, const EventSuppression& value) {
  const std::uint32_t raw = value.offset_wrap | std::uint32_t{value.flags} << 16;
  __atomic_store_n(reinterpret_cast<Word32*>(&shared), raw, __ATOMIC_RELAXED);
}

// A place in the ring and the wrap counter that belongs to it (2.8.1). On the wire it is one
// number: offset in bits 0-14, wrap counter in bit 15.
struct PackedPosition {
  std::uint16_t offset = 0;
  bool wrap = true;  // 2.8.1: both counters start at 1

  static constexpr PackedPosition from_raw(std::uint16_t raw) {
    return {static_cast<std::uint16_t>(raw & 0x7fff), (raw & 0x8000) != 0};
  }
  constexpr std::uint16_t raw() const {
    return static_cast<std::uint16_t>(offset | (wrap ? 0x8000 : 0));
  }
  // `slots` is at most `size`.
  constexpr void advance(std::uint32_t slots, std::uint32_t size) {
    const std::uint32_t next = offset + slots;
    if (next >= size) wrap = !wrap;
    offset = static_cast<std::uint16_t>(next >= size ? next - size : next);
  }
  constexpr void retreat(std::uint32_t slots, std::uint32_t size) {
    if (slots > offset) wrap = !wrap;
    offset = static_cast<std::uint16_t>(slots > offset ? offset + size - slots : offset - slots);
  }
  // 2.8.1: the two bits of a descriptor that is available, or used, in this round.
  constexpr std::uint16_t avail_flags() const { return wrap ? kPackedAvail : kPackedUsed; }
  constexpr std::uint16_t used_flags() const { return wrap ? kPackedAvail | kPackedUsed : 0; }

  constexpr bool operator==(const PackedPosition&) const = default;
};

// Whether these flags say "available" to one who stands at a position with this wrap counter.
constexpr bool is_available(std::uint16_t flags, bool wrap) {
  return (flags & (kPackedAvail | kPackedUsed)) == (wrap ? kPackedAvail : kPackedUsed);
}
constexpr bool is_used(std::uint16_t flags, bool wrap) {
  return (flags & (kPackedAvail | kPackedUsed)) == (wrap ? kPackedAvail | kPackedUsed : 0);
}

// 2.8.10 and 2.7.10.2: whether, by `wish`, the other side is to be told now that a position moved
// by `slots` (at most the queue's size) to `to`.
constexpr bool wants_packed_event(EventSuppression wish, bool event_index, std::uint32_t slots,
                                  PackedPosition to, std::uint32_t size) {
  if (!event_index || wish.flags != kEventsAtDescriptor) return wish.flags != kEventsDisabled;
  const PackedPosition event = PackedPosition::from_raw(wish.offset_wrap);
  const auto event_offset =
      static_cast<std::uint16_t>(event.wrap == to.wrap ? event.offset : event.offset - size);
  return need_event(event_offset, static_cast<std::uint16_t>(to.offset - slots), to.offset);
}

// Host addresses of the three parts of one packed queue. The memory belongs to the guest.
struct PackedRing {
  PackedDescriptor* descriptors = nullptr;    // [size]
  EventSuppression* driver_events = nullptr;  // written by the driver, read by the device
  EventSuppression* device_events = nullptr;  // written by the device, read by the driver
  std::uint32_t size = 0;                     // descriptors; 1 to kMaxQueueSize
};

}  // namespace vswitch::virtq
