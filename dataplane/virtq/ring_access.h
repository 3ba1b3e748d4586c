// What both ring layouts share: descriptor flags, how shared memory is touched, and the rule for
// event indices.
//
// Source: virtio 1.2, 2.7 and 2.8. All fields are little-endian; this code supports little-endian
// hosts only (checked below). Either side may change these bytes at any moment, so nothing here is
// ever read through a plain struct member: use the accessors, each of which performs exactly one
// atomic access.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace vswitch::virtq {

static_assert(std::endian::native == std::endian::little,
              "virtio 1.x rings are little-endian; big-endian hosts need byte swaps here");

// 2.7.5 and 2.8.13: descriptor flags of either layout.
inline constexpr std::uint16_t kDescNext = 1;
inline constexpr std::uint16_t kDescWrite = 2;
inline constexpr std::uint16_t kDescIndirect = 4;

// 2.7: a power of two, at most 2^15. 2.8.10.1: a packed queue has any size up to that.
inline constexpr std::uint32_t kMaxQueueSize = 32768;

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
// The other side only reads these lines; leaving an equal value alone keeps them in its cache.
template <typename T>
void store_if_different(T& field, T value) {
  if (load_relaxed(field) != value) store_relaxed(field, value);
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

// 2.7.7.2 and 2.7.10.2: whether an index that moved from `from` to `to` passed the entry the other
// side waits for. All three are free-running and wrap around at 2^16.
constexpr bool need_event(std::uint16_t event, std::uint16_t from, std::uint16_t to) {
  return static_cast<std::uint16_t>(to - event - 1) < static_cast<std::uint16_t>(to - from);
}

}  // namespace vswitch::virtq
