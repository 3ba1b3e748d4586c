// Ethernet addresses and headers (IEEE 802.3, 802.1Q) as the switch reads them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace vswitch {

inline constexpr std::uint32_t kEthernetHeaderBytes = 14;
inline constexpr std::uint32_t kVlanTagBytes = 4;
inline constexpr std::uint16_t kEtherTypeVlan = 0x8100;         // C-tag
inline constexpr std::uint16_t kEtherTypeServiceVlan = 0x88a8;  // S-tag

// A MAC address as a number: the first byte on the wire is the most significant of 48 bits.
using MacKey = std::uint64_t;

inline MacKey load_mac(const std::byte* bytes) {
  std::uint64_t raw = 0;
  std::memcpy(&raw, bytes, 6);
  return __builtin_bswap64(raw) >> 16;
}

// The I/G bit: the lowest of the first byte (IEEE 802-2014, 8.2.2).
constexpr bool is_group(MacKey mac) { return (mac >> 40 & 1) != 0; }

// 01-80-C2-00-00-00 to 0F: addresses that a bridge never forwards (IEEE 802.1Q, table 8-1).
constexpr bool is_reserved_group(MacKey mac) { return (mac & ~MacKey{0xf}) == 0x0180c2000000; }

// The same from a place where 8 bytes can be read: one load instead of two.
inline MacKey load_mac_wide(const std::byte* bytes) {
  std::uint64_t raw = 0;
  std::memcpy(&raw, bytes, 8);
  return __builtin_bswap64(raw) >> 16;
}

inline std::uint16_t load_ether_type(const std::byte* bytes) {
  std::uint16_t raw = 0;
  std::memcpy(&raw, bytes, 2);
  return __builtin_bswap16(raw);
}

// Bytes of tags between the source address and the EtherType: 0, 4 or 8. `header_bytes` is what is
// there to look at, at least kEthernetHeaderBytes.
inline std::uint32_t vlan_tag_bytes(const std::byte* header, std::uint32_t header_bytes) {
  std::uint32_t tags = 0;
  while (tags < 2 * kVlanTagBytes && header_bytes >= kEthernetHeaderBytes + tags) {
    const std::uint16_t type = load_ether_type(header + 12 + tags);
    if (type != kEtherTypeVlan && type != kEtherTypeServiceVlan) break;
    tags += kVlanTagBytes;
  }
  return tags;
}

inline std::array<std::uint8_t, 6> mac_bytes(MacKey mac) {
  std::array<std::uint8_t, 6> bytes{};
  for (unsigned i = 0; i < 6; ++i) bytes[i] = static_cast<std::uint8_t>(mac >> (40 - 8 * i));
  return bytes;
}

}  // namespace vswitch
