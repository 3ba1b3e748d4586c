#include "cli/guest/accounting.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace vswitch::guest {
namespace {

using Arrival = SequenceTracker::Arrival;

SequenceTracker after(std::initializer_list<std::uint64_t> sequence) {
  SequenceTracker tracker;
  for (const std::uint64_t number : sequence) tracker.record(number);
  return tracker;
}

TEST(SequenceTracker, NothingYet) {
  const SequenceTracker tracker;
  EXPECT_EQ(tracker.unique(), 0U);
  EXPECT_EQ(tracker.missing(), 0U);
  EXPECT_EQ(tracker.missing_of(10), 10U);
}

TEST(SequenceTracker, InOrder) {
  SequenceTracker tracker;
  for (std::uint64_t i = 0; i < 200'000; ++i) ASSERT_EQ(tracker.record(i), Arrival::kInOrder);
  EXPECT_EQ(tracker.unique(), 200'000U);
  EXPECT_EQ(tracker.missing(), 0U);
  EXPECT_EQ(tracker.duplicates(), 0U);
  EXPECT_EQ(tracker.reordered(), 0U);
}

TEST(SequenceTracker, GapsAreMissing) {
  const SequenceTracker tracker = after({0, 1, 2, 5, 6, 9});
  EXPECT_EQ(tracker.missing(), 4U);
  EXPECT_EQ(tracker.missing_of(12), 6U);
}

TEST(SequenceTracker, StartsWhereItJoined) {
  const SequenceTracker tracker = after({1000, 1001});
  EXPECT_EQ(tracker.missing(), 0U);
  EXPECT_EQ(tracker.missing_of(1002), 1000U);
}

TEST(SequenceTracker, LateFramesAreReorderedAndNotMissing) {
  SequenceTracker tracker = after({0, 1, 4});
  EXPECT_EQ(tracker.missing(), 2U);
  EXPECT_EQ(tracker.record(3), Arrival::kReordered);
  EXPECT_EQ(tracker.record(2), Arrival::kReordered);
  EXPECT_EQ(tracker.missing(), 0U);
  EXPECT_EQ(tracker.reordered(), 2U);
  EXPECT_EQ(tracker.duplicates(), 0U);
}

TEST(SequenceTracker, DuplicatesNearAndFar) {
  SequenceTracker tracker = after({0, 1, 2});
  EXPECT_EQ(tracker.record(2), Arrival::kDuplicate);
  EXPECT_EQ(tracker.record(0), Arrival::kDuplicate);
  EXPECT_EQ(tracker.unique(), 3U);
  EXPECT_EQ(tracker.duplicates(), 2U);
  EXPECT_EQ(tracker.missing(), 0U);
}

TEST(SequenceTracker, ALateFrameTwiceIsADuplicate) {
  SequenceTracker tracker = after({0, 5});
  EXPECT_EQ(tracker.record(3), Arrival::kReordered);
  EXPECT_EQ(tracker.record(3), Arrival::kDuplicate);
}

TEST(SequenceTracker, BeforeTheFirstOne) {
  SequenceTracker tracker = after({10, 11});
  EXPECT_EQ(tracker.record(8), Arrival::kReordered);
  EXPECT_EQ(tracker.missing(), 1U);  // 9
}

TEST(SequenceTracker, JumpsOverTheWholeWindow) {
  SequenceTracker tracker = after({0, 1});
  EXPECT_EQ(tracker.record(1'000'000), Arrival::kInOrder);
  EXPECT_EQ(tracker.missing(), 999'998U);
  // What the window remembers of 1 000 000 and of its predecessors is right.
  EXPECT_EQ(tracker.record(1'000'000), Arrival::kDuplicate);
  EXPECT_EQ(tracker.record(999'999), Arrival::kReordered);
  EXPECT_EQ(tracker.record(1'000'000 - SequenceTracker::kWindow + 1), Arrival::kReordered);
}

TEST(SequenceTracker, OldBitsAreForgottenAsTheWindowMoves) {
  SequenceTracker tracker;
  for (std::uint64_t i = 0; i < SequenceTracker::kWindow + 10; ++i) {
    if (i != SequenceTracker::kWindow + 3) tracker.record(i);
  }
  // The same bit as number 3, which came.
  EXPECT_EQ(tracker.record(SequenceTracker::kWindow + 3), Arrival::kReordered);
}

TEST(StreamTable, KeepsStreamsApart) {
  StreamTable table;
  table.find(1, 0xa)->sequence.record(0);
  table.find(2, 0xb)->sequence.record(5);
  table.find(1, 0xa)->sequence.record(2);
  ASSERT_EQ(table.streams().size(), 2U);
  EXPECT_EQ(table.streams()[0].lost(), 1U);
  EXPECT_EQ(table.streams()[0].source, 0xaU);
  EXPECT_EQ(table.streams()[1].lost(), 0U);
}

TEST(StreamTable, TheSendersCountTellsTheWholeLoss) {
  StreamTable table;
  Stream* stream = table.find(1, 0xa);
  stream->sequence.record(3);
  stream->sequence.record(4);
  EXPECT_EQ(stream->lost(), 0U);
  stream->total = 10;
  EXPECT_EQ(stream->lost(), 8U);
}

TEST(StreamTable, IsBounded) {
  StreamTable table;
  for (std::uint64_t id = 0; id < StreamTable::kMaxStreams; ++id) {
    ASSERT_NE(table.find(id, 1), nullptr);
  }
  EXPECT_EQ(table.find(1'000'000, 1), nullptr);
  EXPECT_EQ(table.untracked(), 1U);
  EXPECT_NE(table.find(7, 1), nullptr);
}

TEST(Histogram, Empty) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0U);
  EXPECT_EQ(histogram.min(), 0U);
  EXPECT_EQ(histogram.max(), 0U);
  EXPECT_EQ(histogram.quantile(0.5), 0U);
}

TEST(Histogram, SmallValuesAreExact) {
  Histogram histogram;
  for (std::uint64_t value = 1; value <= 50; ++value) histogram.add(value);
  EXPECT_EQ(histogram.quantile(0.5), 25U);
  EXPECT_EQ(histogram.quantile(0.9), 45U);
  EXPECT_EQ(histogram.quantile(1), 50U);
  EXPECT_EQ(histogram.quantile(0), 1U);
  EXPECT_EQ(histogram.min(), 1U);
  EXPECT_DOUBLE_EQ(histogram.mean(), 25.5);
}

TEST(Histogram, LargeValuesAreWithinAThirtySecond) {
  for (std::uint64_t value = 1; value < (std::uint64_t{1} << 62); value = value * 3 + 1) {
    Histogram histogram;
    histogram.add(value);
    histogram.add(UINT64_MAX);
    const std::uint64_t median = histogram.quantile(0.5);
    EXPECT_GE(median, value);
    EXPECT_LE(median - value, value / 32);
    EXPECT_EQ(histogram.max(), UINT64_MAX);
    EXPECT_EQ(histogram.quantile(1), UINT64_MAX);
  }
}

TEST(Histogram, QuantilesNeverExceedTheMaximum) {
  Histogram histogram;
  for (int i = 0; i < 1000; ++i) histogram.add(1'000'001);
  EXPECT_EQ(histogram.quantile(0.5), 1'000'001U);
  EXPECT_EQ(histogram.quantile(0.999), 1'000'001U);
}

}  // namespace
}  // namespace vswitch::guest
