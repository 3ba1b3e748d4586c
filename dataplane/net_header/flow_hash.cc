#include "dataplane/net_header/flow_hash.h"

#include <cstring>

#include "dataplane/net_header/ethernet.h"

namespace vswitch {
namespace {

constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
constexpr std::uint16_t kEtherTypeIpv6 = 0x86dd;
constexpr std::uint8_t kProtocolTcp = 6;
constexpr std::uint8_t kProtocolUdp = 17;
constexpr std::uint8_t kProtocolSctp = 132;
constexpr std::uint32_t kIpv4HeaderBytes = 20;   // RFC 791, 3.1: without options
constexpr std::uint32_t kIpv6HeaderBytes = 40;   // RFC 8200, 3
constexpr std::uint16_t kIpv4Fragment = 0x3fff;  // RFC 791, 3.1: more fragments, or an offset
constexpr std::uint32_t kPortBytes = 4;          // both; first in TCP, UDP and SCTP alike

template <typename T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Multiplying carries a difference upwards, the shift brings it down again. Addresses of guests
// that differ in their lowest bits only must come out evenly spread in the highest, which choose
// the queue.
class Mixer {
 public:
  void add(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15;  // 2^64 divided by the golden ratio, odd
    state_ ^= state_ >> 32;
  }
  std::uint32_t value() const {
    return static_cast<std::uint32_t>(state_ * 0xd6e8feb86659fd93 >> 32);
  }

 private:
  std::uint64_t state_ = 0;
};

bool has_ports(std::uint8_t protocol) {
  return protocol == kProtocolTcp || protocol == kProtocolUdp || protocol == kProtocolSctp;
}

// `transport`: where the transport header would be; nullptr: its ports do not count.
void add_ports(Mixer& mixer, std::uint8_t protocol, const std::byte* transport,
               const std::byte* end) {
  if (transport == nullptr || !has_ports(protocol) || transport + kPortBytes > end) return;
  mixer.add(std::uint64_t{protocol} << 32 | load<std::uint32_t>(transport));
}

}  // namespace

std::uint32_t flow_hash(const std::byte* header, std::uint32_t header_bytes) {
  Mixer mixer;
  const std::uint32_t tags = vlan_tag_bytes(header, header_bytes);
  const std::byte* const end = header + header_bytes;
  // A frame may end behind its tag.
  const bool complete = header_bytes >= kEthernetHeaderBytes + tags;
  const std::uint16_t type = complete ? load_ether_type(header + 12 + tags) : 0;
  const std::byte* const network = header + kEthernetHeaderBytes + tags;
  const std::uint32_t left = complete ? header_bytes - kEthernetHeaderBytes - tags : 0;

  if (type == kEtherTypeIpv4 && left >= kIpv4HeaderBytes) {
    mixer.add(load<std::uint64_t>(network + 12));  // source and destination
    const std::uint32_t words = load<std::uint8_t>(network) & 0xf;
    const bool fragment = (load_ether_type(network + 6) & kIpv4Fragment) != 0;
    const bool sound = !fragment && words * 4 >= kIpv4HeaderBytes && words * 4 <= left;
    add_ports(mixer, load<std::uint8_t>(network + 9), sound ? network + words * 4 : nullptr, end);
    return mixer.value();
  }
  if (type == kEtherTypeIpv6 && left >= kIpv6HeaderBytes) {
    for (std::uint32_t i = 8; i < kIpv6HeaderBytes; i += 8) {
      mixer.add(load<std::uint64_t>(network + i));
    }
    // A fragment, like any extension header, has a next header without ports.
    add_ports(mixer, load<std::uint8_t>(network + 6), network + kIpv6HeaderBytes, end);
    return mixer.value();
  }
  mixer.add(load_mac(header));
  mixer.add(load_mac(header + 6) << 16 | type);
  return mixer.value();
}

}  // namespace vswitch
