// The split virtqueue as it lies in guest memory.
//
// Source: virtio 1.2, 2.7 "Split Virtqueues". Names of the bits follow the specification. All
// fields are little-endian; this code supports little-endian hosts only (checked below).
//
// Either side may change these bytes at any moment, so nothing here is ever read through a plain
// struct member: use the accessors, each of which performs exactly one atomic access.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace vswitch::virtq {

static_assert(std::endian::native == std::endian::little,
              "virtio 1.x rings are little-endian; big-endian hosts need byte swaps here");

// 2.7.5: descriptor flags.
inline constexpr std::uint16_t kDescNext = 1;
inline constexpr std::uint16_t kDescWrite = 2;
inline constexpr std::uint16_t kDescIndirect = 4;
// 2.7.6: the driver asks not to be interrupted.
inline constexpr std::uint16_t kAvailNoInterrupt = 1;
// 2.7.8: the device asks not to be kicked.
inline constexpr std::uint16_t kUsedNoNotify = 1;

inline constexpr std::uint32_t kMaxQueueSize = 32768;  // 2.7: power of two, at most 2^15

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

// Shared-memory accesses: one load or store each, so that what was checked is what is used.
template <typename T>
T load_relaxed(const T& field) {
  return std::atomic_ref<T>(const_cast<T&>(field)).load(std::memory_order_relaxed);
}
template <typename T>
T load_acquire(const T& field) {
  return std::atomic_ref<T>(const_cast<T&>(field)).load(std::memory_order_acquire);
}
template <typename T>
void store_relaxed(T& field, T value) {
  std::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
}
template <typename T>
void store_release(T& field, T value) {
  std::atomic_ref<T>(field).store(value, std::memory_order_release);
}

// Orders an earlier store against a later load (the only reordering x86 does), as the notification
// protocol needs on both sides (2.7.13.3.1, 2.7.7.2). g++'s ThreadSanitizer does not model
// atomic_thread_fence; there a read-modify-write that both sides share stands in for it.
#if defined(__SANITIZE_THREAD__)
inline std::atomic<int> full_fence_for_thread_sanitizer{0};
inline void full_fence() {
  full_fence_for_thread_sanitizer.fetch_add(1, std::memory_order_seq_cst);
}
#else
inline void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

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

// Host addresses of the three parts of one split queue. The memory belongs to the guest.
struct SplitRing {
  Descriptor* descriptors = nullptr;  // [size]
  RingHeader* avail = nullptr;        // followed by u16 ring[size], u16 used_event
  RingHeader* used = nullptr;         // followed by UsedElement ring[size], u16 avail_event
  std::uint32_t size = 0;             // descriptors; a power of two

  std::uint16_t* avail_entries() const { return reinterpret_cast<std::uint16_t*>(avail + 1); }
  UsedElement* used_elements() const { return reinterpret_cast<UsedElement*>(used + 1); }
};

}  // namespace vswitch::virtq
