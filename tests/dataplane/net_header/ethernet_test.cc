#include "dataplane/net_header/ethernet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

namespace vswitch {
namespace {

using testing::ElementsAre;

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

TEST(Mac, FirstByteOnTheWireIsTheMostSignificant) {
  const auto wire = bytes({0x02, 0x11, 0x22, 0x33, 0x44, 0x55, 0xff, 0xff});
  EXPECT_EQ(load_mac(wire.data()), 0x021122334455U);
  EXPECT_THAT(mac_bytes(0x021122334455), ElementsAre(0x02, 0x11, 0x22, 0x33, 0x44, 0x55));
}

TEST(Mac, ReadsSixBytesOnly) {
  const auto wire = bytes({0xff, 0xff, 0xff, 0xff, 0xff, 0xff});  // ASan watches the seventh
  EXPECT_EQ(load_mac(wire.data()), 0xffffffffffffU);
}

TEST(Mac, GroupAddresses) {
  EXPECT_TRUE(is_group(0xffffffffffff));
  EXPECT_TRUE(is_group(0x01005e000001));
  EXPECT_TRUE(is_group(0x333300000001));
  EXPECT_FALSE(is_group(0x020000000001));
  EXPECT_FALSE(is_group(0xfeffffffffff));
  EXPECT_FALSE(is_group(0));
}

TEST(Mac, ReservedGroupAddresses) {
  for (MacKey last = 0; last < 16; ++last) EXPECT_TRUE(is_reserved_group(0x0180c2000000 | last));
  EXPECT_FALSE(is_reserved_group(0x0180c2000010));
  EXPECT_FALSE(is_reserved_group(0x0180c1ffffff));
  EXPECT_FALSE(is_reserved_group(0x0080c2000000));
  EXPECT_FALSE(is_reserved_group(0xffffffffffff));
}

// A frame's start: addresses, then what is given.
std::vector<std::byte> frame(std::initializer_list<int> rest) {
  std::vector<std::byte> result(12);
  for (const std::byte byte : bytes(rest)) result.push_back(byte);
  return result;
}

TEST(VlanTags, NoneOneTwo) {
  const auto untagged = frame({0x08, 0x00});
  EXPECT_EQ(vlan_tag_bytes(untagged.data(), 14), 0U);
  const auto tagged = frame({0x81, 0x00, 0x00, 0x64, 0x08, 0x00});
  EXPECT_EQ(vlan_tag_bytes(tagged.data(), 18), 4U);
  const auto double_tagged = frame({0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0x00, 0x65, 0x08, 0x00});
  EXPECT_EQ(vlan_tag_bytes(double_tagged.data(), 22), 8U);
}

TEST(VlanTags, NeverMoreThanTwo) {
  const auto many =
      frame({0x81, 0x00, 0, 1, 0x81, 0x00, 0, 1, 0x81, 0x00, 0, 1, 0x81, 0x00, 0, 1, 0x08, 0x00});
  EXPECT_EQ(vlan_tag_bytes(many.data(), 30), 8U);
}

// A tag that is cut off in its middle is still found, and nothing is read behind the end.
TEST(VlanTags, CutOff) {
  const auto only_a_type = frame({0x81, 0x00});
  EXPECT_EQ(vlan_tag_bytes(only_a_type.data(), 14), 4U);
  const auto second_type_cut = frame({0x81, 0x00, 0x00, 0x64, 0x81});
  EXPECT_EQ(vlan_tag_bytes(second_type_cut.data(), 17), 4U);
}

}  // namespace
}  // namespace vswitch
