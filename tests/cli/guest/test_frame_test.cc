#include "cli/guest/test_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace vswitch::guest {
namespace {

using testing::ElementsAre;

constexpr MacKey kSource = 0x020000000001;
constexpr MacKey kDestination = 0x020000000002;
constexpr std::uint64_t kStream = 0x0102030405060708;

std::vector<int> numbers(const std::vector<std::byte>& bytes, std::size_t from, std::size_t count) {
  std::vector<int> all;
  for (std::size_t i = from; i < from + count; ++i) all.push_back(std::to_integer<int>(bytes[i]));
  return all;
}

class TestFrameTest : public testing::Test {
 protected:
  TestFrameTest() : writer_(kSource, kDestination, kStream, 9014, 4) {}

  std::vector<std::byte> frame(std::uint32_t bytes, std::uint64_t sequence = 5) {
    std::vector<std::byte> place(bytes);
    writer_.write(place.data(), 0, bytes, sequence, 1000);
    // The next one goes to another place, which does not hold what this one does.
    writer_ = FrameWriter(kSource, kDestination, kStream, 9014, 4);
    return place;
  }
  Verdict parse(const std::vector<std::byte>& frame, Verify verify = Verify::kFull) {
    return parse_frame(frame, verify, header_);
  }

  FrameWriter writer_;
  TestHeader header_;
};

TEST_F(TestFrameTest, HasTheDocumentedLayout) {
  const auto bytes = frame(64, 0x1112131415161718);
  EXPECT_THAT(numbers(bytes, 0, 14), ElementsAre(2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5));
  EXPECT_THAT(numbers(bytes, 14, 8), ElementsAre(0x31, 0x77, 0x53, 0x56, 1, 0, 64, 0));
  EXPECT_THAT(numbers(bytes, 22, 8), ElementsAre(8, 7, 6, 5, 4, 3, 2, 1));
  EXPECT_THAT(numbers(bytes, 30, 8), ElementsAre(0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11));
  EXPECT_THAT(numbers(bytes, 38, 8), ElementsAre(0xe8, 3, 0, 0, 0, 0, 0, 0));
}

TEST_F(TestFrameTest, WhatIsWrittenIsRead) {
  for (const std::uint32_t size : {60U, 61U, 64U, 69U, 70U, 71U, 1514U, 9014U}) {
    ASSERT_EQ(parse(frame(size)), Verdict::kGood) << size;
    EXPECT_EQ(header_.kind, Kind::kData);
    EXPECT_EQ(header_.stream, kStream);
    EXPECT_EQ(header_.sequence, 5U);
    EXPECT_EQ(header_.time, 1000U);
  }
}

TEST_F(TestFrameTest, EveryBitOfThePayloadIsProtected) {
  for (const std::uint32_t size : {60U, 64U, 90U}) {
    auto bytes = frame(size);
    for (std::size_t i = 14; i < bytes.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        bytes[i] ^= std::byte{1} << bit;
        EXPECT_EQ(parse(bytes), Verdict::kDamaged) << "byte " << i << " bit " << bit;
        bytes[i] ^= std::byte{1} << bit;
      }
    }
  }
}

TEST_F(TestFrameTest, ExchangedPiecesAreDamage) {
  auto bytes = frame(200);
  for (std::size_t i = 0; i < 16; ++i) std::swap(bytes[54 + i], bytes[70 + i]);
  EXPECT_EQ(parse(bytes), Verdict::kDamaged);
}

TEST_F(TestFrameTest, CutOffOrLongerIsDamage) {
  auto bytes = frame(100);
  bytes.pop_back();
  EXPECT_EQ(parse(bytes), Verdict::kDamaged);
  EXPECT_EQ(parse(bytes, Verify::kHeader), Verdict::kDamaged);
  bytes.resize(101);
  EXPECT_EQ(parse(bytes), Verdict::kDamaged);
  bytes.resize(20);
  EXPECT_EQ(parse(bytes), Verdict::kDamaged);
}

TEST_F(TestFrameTest, HeaderVerificationDoesNotLookAtTheFilling) {
  auto bytes = frame(100);
  bytes[99] ^= std::byte{1};
  EXPECT_EQ(parse(bytes, Verify::kHeader), Verdict::kGood);
  EXPECT_EQ(parse(bytes, Verify::kFull), Verdict::kDamaged);
}

TEST_F(TestFrameTest, OtherProtocolsAreForeign) {
  auto bytes = frame(64);
  bytes[12] = std::byte{0x08};
  bytes[13] = std::byte{0x00};
  EXPECT_EQ(parse(bytes), Verdict::kForeign);
  bytes.resize(13);
  EXPECT_EQ(parse(bytes), Verdict::kForeign);
}

TEST_F(TestFrameTest, APlaceCanBeUsedAgainForAnySize) {
  std::vector<std::byte> place(9014);
  std::uint64_t sequence = 0;
  for (const std::uint32_t size : {60U, 1514U, 64U, 64U, 9014U, 60U, 1514U, 1000U}) {
    ++sequence;
    writer_.write(place.data(), 1, size, sequence, sequence * 3);
    EXPECT_EQ(parse({place.begin(), place.begin() + size}), Verdict::kGood) << size;
    EXPECT_EQ(header_.sequence, sequence);
    EXPECT_EQ(header_.time, sequence * 3);
  }
}

TEST_F(TestFrameTest, ControlFramesGoToTheirDestinationAndDisturbNothing) {
  std::vector<std::byte> place(1514);
  writer_.write(place.data(), 2, 1514, 1, 1);
  writer_.write_control(place.data(), 2, kBroadcast, Kind::kEnd, 77, 2);
  ASSERT_EQ(parse({place.begin(), place.begin() + 60}), Verdict::kGood);
  EXPECT_EQ(header_.kind, Kind::kEnd);
  EXPECT_EQ(header_.sequence, 77U);
  EXPECT_EQ(load_mac(place.data()), kBroadcast);
  EXPECT_EQ(load_mac(place.data() + 6), kSource);

  for (const std::uint32_t size : {60U, 1514U}) {
    writer_.write(place.data(), 2, size, 2, 3);
    ASSERT_EQ(parse({place.begin(), place.begin() + size}), Verdict::kGood);
    EXPECT_EQ(header_.kind, Kind::kData);
    EXPECT_EQ(load_mac(place.data()), kDestination);
  }
}

TEST_F(TestFrameTest, UnknownKindsAreDamage) {
  auto bytes = frame(64);
  for (const int kind : {0, 7, 255}) {
    bytes[18] = static_cast<std::byte>(kind);
    EXPECT_EQ(parse(bytes, Verify::kHeader), Verdict::kDamaged);
  }
}

TEST_F(TestFrameTest, DataOfAWindowSaysSo) {
  FrameWriter writer(kSource, kDestination, kStream, 64, 1, Kind::kWindowData);
  std::vector<std::byte> place(64);
  writer.write(place.data(), 0, 64, 1, 2);
  EXPECT_THAT(numbers(place, 18, 2), ElementsAre(5, 0));
  ASSERT_EQ(parse(place), Verdict::kGood);
  EXPECT_EQ(header_.kind, Kind::kWindowData);
}

TEST(RandomStream, Differs) { EXPECT_NE(random_stream(), random_stream()); }

}  // namespace
}  // namespace vswitch::guest
