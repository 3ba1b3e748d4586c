// Copies and prefetches of the fast path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace vswitch {

inline constexpr std::size_t kCacheLineBytes = 64;

namespace copy_internal {

// Copies n bytes, N <= n <= 2N, as two blocks that may overlap. Both loads come before both stores.
template <std::size_t N>
inline void two_blocks(std::byte* to, const std::byte* from, std::size_t n) {
  struct Block {
    std::byte bytes[N];
  } first, last;
  std::memcpy(&first, from, N);
  std::memcpy(&last, from + n - N, N);
  std::memcpy(to, &first, N);
  std::memcpy(to + n - N, &last, N);
}

}  // namespace copy_internal

// memcpy with sizes up to `kInline` (at most 128) kept out of the library call.
template <std::size_t kInline>
[[gnu::always_inline]] inline void copy_inline(std::byte* to, const std::byte* from,
                                               std::size_t n) {
  if (n > kInline) {
    std::memcpy(to, from, n);
  } else if (n > 64) {
    copy_internal::two_blocks<64>(to, from, n);
  } else if (n >= 32) {
    copy_internal::two_blocks<32>(to, from, n);
  } else if (n >= 16) {
    copy_internal::two_blocks<16>(to, from, n);
  } else if (n >= 8) {
    copy_internal::two_blocks<8>(to, from, n);
  } else {
    for (std::size_t i = 0; i < n; ++i) to[i] = from[i];
  }
}

// For payload: beyond 64 bytes the library's wide registers win.
[[gnu::always_inline]] inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t n) {
  copy_inline<64>(to, from, n);
}

// For the headers of a burst, whose lines come from another CPU: without a call in between their
// loads overlap from frame to frame. With one a frame between two threads cost 75 cycles more.
[[gnu::always_inline]] inline void copy_header(std::byte* to, const std::byte* from,
                                               std::size_t n) {
  copy_inline<128>(to, from, n);
}

inline void prefetch_for_read(const void* address) { __builtin_prefetch(address, 0); }

// Asks for the line in a state that can be written, so that the store need not ask again.
inline void prefetch_for_write(const void* address) {
#if defined(__x86_64__)
  // The builtin becomes a read prefetch unless the compiler may assume PREFETCHW; processors that
  // lack it treat it as a no-op.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace vswitch
