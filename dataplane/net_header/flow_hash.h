// Which flow a frame belongs to, as a number: frames of one flow always have the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vswitch {

// `header` holds the first `header_bytes` bytes of a frame, at least kEthernetHeaderBytes. Up to
// two VLAN tags are skipped. Of what follows counts
//   IPv4, IPv6 with TCP, UDP or SCTP: addresses, protocol and ports;
//   other IPv4 and IPv6, and all fragments (only the first has ports): the addresses;
//   everything else: MAC addresses and EtherType.
// Headers that are cut off or lie about their length count as far as they are there. The value is
// the same in every process and on every machine of one byte order.
std::uint32_t flow_hash(const std::byte* header, std::uint32_t header_bytes);

// One of `queues` (1 or more) queues for a flow, spread evenly.
constexpr std::uint32_t flow_queue(std::uint32_t hash, std::uint32_t queues) {
  return static_cast<std::uint32_t>(std::uint64_t{hash} * queues >> 32);
}

}  // namespace vswitch
