// Which frames belong together, and that flows spread evenly over queues.
#include "dataplane/net_header/flow_hash.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace vswitch {
namespace {

const std::string kMacs("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01", 12);

std::string big_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    text += static_cast<char>(value >> shift & 0xff);
  }
  return text;
}

struct Flow {
  std::uint32_t source = 0x0a000001;
  std::uint32_t destination = 0x0a000002;
  std::uint8_t protocol = 17;
  std::uint16_t source_port = 1000;
  std::uint16_t destination_port = 2000;
  // Of the same flow:
  std::string tags = {};
  std::uint16_t identification = 0;
  std::uint16_t fragment = 0;
  std::string options = {};  // a multiple of 4 bytes
  std::string payload = "payload";
};

std::string ipv4(const Flow& flow) {
  const std::size_t header = 20 + flow.options.size();
  return kMacs + flow.tags + big_endian(0x0800, 2) + big_endian(0x40 | header / 4, 1) +
         big_endian(0, 1) + big_endian(header + 8 + flow.payload.size(), 2) +
         big_endian(flow.identification, 2) + big_endian(flow.fragment, 2) + big_endian(64, 1) +
         big_endian(flow.protocol, 1) + big_endian(0, 2) + big_endian(flow.source, 4) +
         big_endian(flow.destination, 4) + flow.options + big_endian(flow.source_port, 2) +
         big_endian(flow.destination_port, 2) + big_endian(0, 4) + flow.payload;
}

std::string ipv6(const Flow& flow) {
  return kMacs + flow.tags + big_endian(0x86dd, 2) + big_endian(0x60000000, 4) +
         big_endian(8 + flow.payload.size(), 2) + big_endian(flow.protocol, 1) + big_endian(64, 1) +
         big_endian(0xfd00, 8) + big_endian(flow.source, 8) + big_endian(0xfd00, 8) +
         big_endian(flow.destination, 8) + big_endian(flow.source_port, 2) +
         big_endian(flow.destination_port, 2) + big_endian(0, 4) + flow.payload;
}

// As a frame's private header: what lies behind 128 bytes is not there. A vector of exactly that
// size, so that the sanitizers see a byte too many being read.
std::uint32_t hash(const std::string& frame) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(frame.data());
  const std::vector<std::byte> header(bytes, bytes + (frame.size() < 128 ? frame.size() : 128));
  return flow_hash(header.data(), static_cast<std::uint32_t>(header.size()));
}

TEST(FlowHash, IsTheSameEverywhereAndForEver) {
  EXPECT_EQ(hash(ipv4({})), 3004814234u);
  EXPECT_EQ(hash(ipv6({})), 929806891u);
  EXPECT_EQ(hash(kMacs + big_endian(0x0806, 2)), 1560190576u);
}

template <typename Make>
void expect_five_tuple(Make make) {
  for (const int protocol : {6, 17, 132}) {
    Flow flow;
    flow.protocol = static_cast<std::uint8_t>(protocol);
    const std::uint32_t base = hash(make(flow));
    Flow same = flow;
    same.payload = std::string(1400, 'x');
    EXPECT_EQ(hash(make(same)), base);
    same.tags = big_endian(0x81000005, 4);
    EXPECT_EQ(hash(make(same)), base) << "tags are skipped";
    same.tags = big_endian(0x88a80007, 4) + big_endian(0x81000005, 4);
    EXPECT_EQ(hash(make(same)), base);
    Flow other = flow;
    other.source ^= 1;
    EXPECT_NE(hash(make(other)), base);
    other = flow;
    other.destination ^= 1;
    EXPECT_NE(hash(make(other)), base);
    other = flow;
    other.source_port ^= 1;
    EXPECT_NE(hash(make(other)), base);
    other = flow;
    other.destination_port ^= 1;
    EXPECT_NE(hash(make(other)), base);
    other = flow;
    other.protocol = protocol == 6 ? 17 : 6;
    EXPECT_NE(hash(make(other)), base);
  }
}

TEST(FlowHash, FiveTupleOfIpv4) {
  expect_five_tuple(ipv4);
  Flow flow;
  const std::uint32_t base = hash(ipv4(flow));
  flow.options = std::string(40, '\1');
  EXPECT_EQ(hash(ipv4(flow)), base) << "ports stand behind the options";
  flow.identification = 77;
  flow.fragment = 0x4000;
  EXPECT_EQ(hash(ipv4(flow)), base) << "don't fragment: not a fragment";
}

TEST(FlowHash, FiveTupleOfIpv6) { expect_five_tuple(ipv6); }

// The first fragment has ports, the others have none: they must not part.
TEST(FlowHash, FragmentsStayTogether) {
  Flow first;
  first.fragment = 0x2000;
  Flow middle = first;
  middle.fragment = 0x20b9;
  middle.source_port = 0x1234;  // payload, really
  Flow last = middle;
  last.fragment = 0x0172;
  last.destination_port = 0x5678;
  EXPECT_EQ(hash(ipv4(middle)), hash(ipv4(first)));
  EXPECT_EQ(hash(ipv4(last)), hash(ipv4(first)));
  last.destination ^= 1;
  EXPECT_NE(hash(ipv4(last)), hash(ipv4(first)));

  Flow six;
  six.protocol = 44;  // fragment header: next header, reserved, offset, identification
  six.source_port = 0x1100;
  Flow six_last = six;
  six_last.destination_port = 0x0172;
  EXPECT_EQ(hash(ipv6(six_last)), hash(ipv6(six)));
}

TEST(FlowHash, OtherProtocolsCountByTheirAddresses) {
  Flow ping;
  ping.protocol = 1;
  Flow pong = ping;
  pong.source_port = 0;  // type and code
  pong.destination_port = 0xffff;
  EXPECT_EQ(hash(ipv4(pong)), hash(ipv4(ping)));
  pong.protocol = 47;
  EXPECT_EQ(hash(ipv4(pong)), hash(ipv4(ping)));
  pong.source ^= 1;
  EXPECT_NE(hash(ipv4(pong)), hash(ipv4(ping)));
}

TEST(FlowHash, EverythingElseCountsByItsMacsAndType) {
  const std::string arp = kMacs + big_endian(0x0806, 2);
  EXPECT_EQ(hash(arp + "one"), hash(arp + "another"));
  EXPECT_EQ(hash(kMacs + big_endian(0x81000005, 4) + big_endian(0x0806, 2)), hash(arp));
  EXPECT_NE(hash(kMacs + big_endian(0x0807, 2)), hash(arp));
  std::string other = arp;
  other[5] = 3;
  EXPECT_NE(hash(other), hash(arp));
  other = arp;
  other[11] = 3;
  EXPECT_NE(hash(other), hash(arp));
}

// A guest may write anything: every length of every frame, and nothing behind it is read.
TEST(FlowHash, CutOffHeadersCountAsFarAsTheyGo) {
  Flow tagged;
  tagged.tags = big_endian(0x88a80007, 4) + big_endian(0x81000005, 4);
  for (const std::string& frame : {ipv4({}), ipv6({}), ipv4(tagged), ipv6(tagged)}) {
    for (std::size_t bytes = 14; bytes < frame.size(); ++bytes) hash(frame.substr(0, bytes));
  }
  // Without its ports a frame counts by its addresses, without those by its MAC addresses.
  Flow other;
  other.source_port = 1;
  EXPECT_EQ(hash(ipv4({}).substr(0, 37)), hash(ipv4(other).substr(0, 37)));
  EXPECT_NE(hash(ipv4({}).substr(0, 38)), hash(ipv4(other).substr(0, 38)));
  other.source ^= 1;
  EXPECT_NE(hash(ipv4({}).substr(0, 34)), hash(ipv4(other).substr(0, 34)));
  EXPECT_EQ(hash(ipv4({}).substr(0, 33)), hash(ipv4(other).substr(0, 33)));
  std::string liar = ipv4({});
  liar[14] = 0x44;  // a header of 16 bytes: its ports are nowhere
  std::string twin = ipv4(other);
  twin[14] = 0x44;
  EXPECT_NE(hash(liar), hash(twin));
  twin.replace(26, 4, liar, 26, 4);
  EXPECT_EQ(hash(liar), hash(twin));
}

struct Spread {
  const char* name;
  std::string (*frame)(std::uint32_t number);
};

class FlowSpread : public testing::TestWithParam<Spread> {};

// 1000 flows: each queue gets its share, give or take a half (a random choice among 16 queues has a
// standard deviation of an eighth of it).
TEST_P(FlowSpread, IsEven) {
  for (const std::uint32_t queues : {2u, 3u, 4u, 16u}) {
    std::array<std::uint32_t, 16> counts{};
    for (std::uint32_t i = 0; i < 1000; ++i) {
      ++counts.at(flow_queue(hash(GetParam().frame(i)), queues));
    }
    const std::uint32_t share = 1000 / queues;
    for (std::uint32_t queue = 0; queue < queues; ++queue) {
      EXPECT_GT(counts[queue], share / 2) << queue << " of " << queues;
      EXPECT_LT(counts[queue], share * 3 / 2 + 1) << queue << " of " << queues;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Flows, FlowSpread,
    testing::Values(
        Spread{
            "SourcePorts",
            [](std::uint32_t i) { return ipv4({.source_port = static_cast<std::uint16_t>(i)}); }},
        Spread{"DestinationPorts",
               [](std::uint32_t i) {
                 return ipv6({.destination_port = static_cast<std::uint16_t>(32768 + i)});
               }},
        Spread{"Sources", [](std::uint32_t i) { return ipv4({.source = 0xc6120000 + i}); }},
        Spread{"Destinations", [](std::uint32_t i) { return ipv4({.destination = i << 8}); }},
        Spread{"Sources6", [](std::uint32_t i) { return ipv6({.source = i, .protocol = 58}); }},
        Spread{"Macs",
               [](std::uint32_t i) {
                 return big_endian(0x020000000000 + i, 6) + big_endian(0x02000000ffff, 6) +
                        big_endian(0x88b5, 2);
               }}),
    [](const auto& spread) { return std::string(spread.param.name); });

TEST(FlowQueue, StaysBelowTheNumberOfQueues) {
  for (const std::uint32_t queues : {1u, 2u, 3u, 16u}) {
    EXPECT_EQ(flow_queue(0, queues), 0u);
    EXPECT_EQ(flow_queue(0xffffffff, queues), queues - 1);
  }
  EXPECT_EQ(flow_queue(0x7fffffff, 2), 0u);
  EXPECT_EQ(flow_queue(0x80000000, 2), 1u);
}

}  // namespace
}  // namespace vswitch
