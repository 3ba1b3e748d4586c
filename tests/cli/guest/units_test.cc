#include "cli/guest/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace vswitch::guest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParseSizes, OneSize) { EXPECT_THAT(*parse_sizes("64"), ElementsAre(60)); }

TEST(ParseSizes, ARangeIsEachSizeInTurn) {
  EXPECT_THAT(*parse_sizes("64-67"), ElementsAre(60, 61, 62, 63));
  EXPECT_EQ(parse_sizes("64-1518")->size(), 1455U);
}

TEST(ParseSizes, ImixIsSevenFourOne) {
  const auto sizes = *parse_sizes("imix");
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 60U), 7);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 566U), 4);
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), 1514U), 1);
}

TEST(ParseSizes, RefusesWhatIsNoSize) {
  for (const char* text : {"", "63", "65540", "-64", "64-", "-", "100-64", "64-128-256", "big",
                           "64x", "18446744073709551680"}) {
    EXPECT_EQ(parse_sizes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(parse_sizes("63").status().message()), HasSubstr("64 to 65539"));
}

TEST(ParseRate, FramesPerSecond) {
  EXPECT_DOUBLE_EQ(parse_rate("500pps")->frames_per_second, 500);
  EXPECT_DOUBLE_EQ(parse_rate("100kpps")->frames_per_second, 100e3);
  EXPECT_DOUBLE_EQ(parse_rate("1.5Mpps")->frames_per_second, 1.5e6);
  EXPECT_EQ(parse_rate("1Mpps")->bits_per_second, 0);
}

TEST(ParseRate, BitsPerSecond) {
  EXPECT_DOUBLE_EQ(parse_rate("1Gbit")->bits_per_second, 1e9);
  EXPECT_DOUBLE_EQ(parse_rate("2.5Gbps")->bits_per_second, 2.5e9);
  EXPECT_DOUBLE_EQ(parse_rate("500Mbit/s")->bits_per_second, 500e6);
  EXPECT_DOUBLE_EQ(parse_rate("800bit")->bits_per_second, 800);
}

TEST(ParseRate, NoLimit) {
  EXPECT_TRUE(parse_rate("none")->unlimited());
  EXPECT_TRUE(parse_rate("0")->unlimited());
  EXPECT_FALSE(parse_rate("1pps")->unlimited());
}

TEST(ParseRate, RefusesWhatIsNoRate) {
  for (const char* text : {"", "fast", "100", "1.2.3pps", "kpps", "-1pps", "0pps", "1Tbit", "1Mb",
                           "1 Mpps", "nanpps", "1e3pps"}) {
    EXPECT_EQ(parse_rate(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseDuration, WithAndWithoutUnits) {
  EXPECT_EQ(*parse_duration("10s"), absl::Seconds(10));
  EXPECT_EQ(*parse_duration("500ms"), absl::Milliseconds(500));
  EXPECT_EQ(*parse_duration("1m30s"), absl::Seconds(90));
  EXPECT_EQ(*parse_duration("2.5"), absl::Milliseconds(2500));
  EXPECT_EQ(*parse_duration("0"), absl::ZeroDuration());
}

TEST(ParseDuration, RefusesWhatIsNoDuration) {
  for (const char* text : {"", "soon", "-1s", "-3", "10 s", "inf", "nan", "5x"}) {
    EXPECT_EQ(parse_duration(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(Mac, ParsesAndPrints) {
  EXPECT_EQ(*parse_mac("02:00:00:00:00:01"), 0x020000000001U);
  EXPECT_EQ(*parse_mac("fE:dC:bA:98:76:54"), 0xfedcba987654U);
  EXPECT_EQ(format_mac(0xfedcba987654), "fe:dc:ba:98:76:54");
  EXPECT_EQ(format_mac(1), "00:00:00:00:00:01");
}

TEST(Mac, RefusesWhatIsNoAddress) {
  for (const char* text : {"", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1",
                           "02-00-00-00-00-01", "02:00:00:00:00:0g", "+2:00:00:00:00:01"}) {
    EXPECT_EQ(parse_mac(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(Format, Quantities) {
  EXPECT_EQ(format_quantity(0), "0");
  EXPECT_EQ(format_quantity(42), "42");
  EXPECT_EQ(format_quantity(1234), "1.23k");
  EXPECT_EQ(format_quantity(12345), "12.3k");
  EXPECT_EQ(format_quantity(999'900), "1.00M");
  EXPECT_EQ(format_quantity(14.88e6), "14.9M");
  EXPECT_EQ(format_quantity(123.4e9), "123G");
}

TEST(Format, Nanoseconds) {
  EXPECT_EQ(format_nanoseconds(0), "0ns");
  EXPECT_EQ(format_nanoseconds(850), "850ns");
  EXPECT_EQ(format_nanoseconds(12'340), "12.3us");
  EXPECT_EQ(format_nanoseconds(4.56e6), "4.56ms");
  EXPECT_EQ(format_nanoseconds(1.2e9), "1.20s");
}

}  // namespace
}  // namespace vswitch::guest
