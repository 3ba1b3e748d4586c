// The split virtqueue as it lies in guest memory.
//
// Source: virtio 1.2, 2.7 "Split Virtqueues". Names of the bits follow the specification. Touched
// only through the accessors of ring_access.h and those below.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dataplane/virtq/ring_access.h"

namespace vswitch::virtq {

// 2.7.6: the driver asks not to be interrupted.
inline constexpr std::uint16_t kAvailNoInterrupt = 1;
// 2.7.8: the device asks not to be kicked.
inline constexpr std::uint16_t kUsedNoNotify = 1;

// 2.7.5: one descriptor. 16 bytes, 16-byte aligned.
struct Descriptor {
  std::uint64_t address;  // guest-physical
  std::uint32_t length;
  std::uint16_t flags;
  std::uint16_t next;
};
static_assert(sizeof(Descriptor) == 16);

// 2.7.8: one used element.
struct UsedElement {
  std::uint32_t id;      // head of the descriptor chain
  std::uint32_t length;  // bytes written into it
};
static_assert(sizeof(UsedElement) == 8);

// 2.7.6 and 2.7.8: the fixed part in front of ring[].
struct RingHeader {
  std::uint16_t flags;
  std::uint16_t index;
};
static_assert(sizeof(RingHeader) == 4);

// 2.7: sizes of the three parts for a queue of `size` descriptors, with the event field that
// VIRTIO_F_EVENT_IDX adds (2.7.6, 2.7.8: it is always laid out, used only if negotiated).
constexpr std::size_t descriptor_table_bytes(std::uint32_t size) {
  return std::size_t{size} * sizeof(Descriptor);
}
constexpr std::size_t avail_ring_bytes(std::uint32_t size) {
  return sizeof(RingHeader) + std::size_t{size} * 2 + 2;
}
constexpr std::size_t used_ring_bytes(std::uint32_t size) {
  return sizeof(RingHeader) + std::size_t{size} * sizeof(UsedElement) + 2;
}
inline constexpr std::size_t kDescriptorTableAlignment = 16;
inline constexpr std::size_t kAvailRingAlignment = 2;
inline constexpr std::size_t kUsedRingAlignment = 4;

// A private copy of one descriptor, each field loaded once.
inline Descriptor load_descriptor(const Descriptor& shared) {
  return {load_relaxed(shared.address), load_relaxed(shared.length), load_relaxed(shared.flags),
          load_relaxed(shared.next)};
}
inline void store_descriptor(Descriptor& shared, const Descriptor& value) {
  store_relaxed(shared.address, value.address);
  store_relaxed(shared.length, value.length);
  store_relaxed(shared.flags, value.flags);
  store_relaxed(shared.next, value.next);
}

inline void store_descriptor_if_different(Descriptor& shared, const Descriptor& value) {
  store_if_different(shared.address, value.address);
  store_if_different(shared.length, value.length);
  store_if_different(shared.flags, value.flags);
  store_if_different(shared.next, value.next);
}

// Host addresses of the three parts of one split queue. The memory belongs to the guest.
struct SplitRing {
  Descriptor* descriptors = nullptr;  // [size]
  RingHeader* avail = nullptr;        // followed by u16 ring[size], u16 used_event
  RingHeader* used = nullptr;         // followed by UsedElement ring[size], u16 avail_event
  std::uint32_t size = 0;             // descriptors; a power of two

  std::uint16_t* avail_entries() const { return reinterpret_cast<std::uint16_t*>(avail + 1); }
  UsedElement* used_elements() const { return reinterpret_cast<UsedElement*>(used + 1); }
  // With VIRTIO_F_EVENT_IDX: the used index at which the driver wants to be called (2.7.7), and the
  // available index at which the device wants to be kicked (2.7.10).
  std::uint16_t& used_event() const { return avail_entries()[size]; }
  std::uint16_t& avail_event() const {
    return reinterpret_cast<std::uint16_t&>(used_elements()[size]);
  }
};

}  // namespace vswitch::virtq
