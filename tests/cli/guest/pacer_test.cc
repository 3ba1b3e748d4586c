#include "cli/guest/pacer.h"

#include <gtest/gtest.h>

namespace vswitch::guest {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

Rate frames_per_second(double value) {
  Rate rate;
  rate.frames_per_second = value;
  return rate;
}

TEST(Pacer, WithoutARateThereIsAlwaysABurst) {
  Pacer pacer(Rate{}, 64);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(pacer.due(5), Pacer::kMaxBurst);
    pacer.sent(Pacer::kMaxBurst);
  }
  EXPECT_EQ(pacer.next(), 0U);
}

TEST(Pacer, TheFirstFrameIsDueAtOnceAndTheSecondAnIntervalLater) {
  Pacer pacer(frames_per_second(1000), 64);
  EXPECT_EQ(pacer.due(7 * kSecond), 1U);
  pacer.sent(1);
  EXPECT_EQ(pacer.due(7 * kSecond), 0U);
  EXPECT_EQ(pacer.next(), 7 * kSecond + 1'000'000);
  EXPECT_EQ(pacer.due(7 * kSecond + 999'999), 0U);
  EXPECT_EQ(pacer.due(7 * kSecond + 1'000'000), 1U);
}

TEST(Pacer, KeepsTheRateOverTime) {
  Pacer pacer(frames_per_second(100'000), 64);
  std::uint64_t total = 0;
  for (std::uint64_t now = kSecond; now < 2 * kSecond; now += 7'000) {
    const std::uint32_t due = pacer.due(now);
    pacer.sent(due);
    total += due;
  }
  EXPECT_NEAR(static_cast<double>(total), 100'000, 2);
}

TEST(Pacer, FramesThatWereNotSentStayDue) {
  Pacer pacer(frames_per_second(1000), 64);
  pacer.due(kSecond);
  EXPECT_EQ(pacer.due(kSecond + 4'500'000), 5U);
  pacer.sent(2);
  EXPECT_EQ(pacer.due(kSecond + 4'500'000), 3U);
}

TEST(Pacer, APauseIsNotMadeUpForInOneFlood) {
  Pacer pacer(frames_per_second(1'000'000), 64);
  pacer.due(kSecond);
  EXPECT_EQ(pacer.due(2 * kSecond), Pacer::kMaxBurst);
  pacer.sent(Pacer::kMaxBurst);
  EXPECT_EQ(pacer.due(2 * kSecond), 0U);
  EXPECT_EQ(pacer.due(2 * kSecond + 1'000), 1U);
}

TEST(Pacer, BitRatesAreOfTheAverageFrame) {
  Rate rate;
  rate.bits_per_second = 1e9;
  Pacer pacer(rate, 1250);  // 10 000 bits: 100 000 a second
  pacer.due(kSecond);
  pacer.sent(1);
  EXPECT_EQ(pacer.next(), kSecond + 10'000);
}

}  // namespace
}  // namespace vswitch::guest
