// The header in front of every frame on a virtio-net queue (virtio 1.2, 5.1.6).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace vswitch {

// 5.1.6: 12 bytes; legacy devices without mergeable buffers leave num_buffers out (10 bytes).
struct VirtioNetHeader {
  std::uint8_t flags = 0;
  std::uint8_t gso_type = 0;
  std::uint16_t header_length = 0;
  std::uint16_t gso_size = 0;
  std::uint16_t checksum_start = 0;
  std::uint16_t checksum_offset = 0;
  std::uint16_t num_buffers = 0;
};
static_assert(sizeof(VirtioNetHeader) == 12);

inline constexpr std::uint32_t kMaxNetHeaderBytes = 12;

// Stores the header only where it differs from what is already there: guests recycle buffers with
// the header intact, and a store would dirty a cache line that the guest has to fetch again.
// (5.1.6.4 says the device should not read device-writable buffers; this read decides nothing but
// whether to store.) `bytes` is 10 or 12; the place may have any alignment.
inline void store_net_header_if_different(std::byte* place, const VirtioNetHeader& header,
                                          std::uint32_t bytes) {
  std::uint64_t want_low, have_low;
  std::memcpy(&want_low, &header, 8);
  std::memcpy(&have_low, place, 8);
  if (want_low != have_low) std::memcpy(place, &want_low, 8);
  const std::byte* rest = reinterpret_cast<const std::byte*>(&header) + 8;
  if (bytes == 12) {
    std::uint32_t want_high, have_high;
    std::memcpy(&want_high, rest, 4);
    std::memcpy(&have_high, place + 8, 4);
    if (want_high != have_high) std::memcpy(place + 8, &want_high, 4);
  } else {
    std::uint16_t want_high, have_high;
    std::memcpy(&want_high, rest, 2);
    std::memcpy(&have_high, place + 8, 2);
    if (want_high != have_high) std::memcpy(place + 8, &want_high, 2);
  }
}

}  // namespace vswitch
