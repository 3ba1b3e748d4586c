// Frames into a guest's receive ring (virtio 1.2, 5.1.6.3 and 5.1.6.4): headers, mergeable buffers,
// and receive buffers that are wrong.
#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using virtq::BrokenRing;

// 5.1.6: flags, gso_type, le16 hdr_len, gso_size, csum_start, csum_offset, then num_buffers.
Bytes net_header(std::uint16_t num_buffers) {
  return {0,
          0,
          0,
          0,
          0,
          0,
          0,
          0,
          0,
          0,
          static_cast<std::uint8_t>(num_buffers),
          static_cast<std::uint8_t>(num_buffers >> 8)};
}

class ReceiveTest : public DeviceQueueTest {
 protected:
  ReceiveTest() { guest_.fill(kRxBuffers, 0x100000, 0xaa); }

  static std::uint64_t buffer(std::uint16_t index) { return kRxBuffers + 0x1000ull * index; }

  // `count` buffers of `length` bytes, 4 KiB apart.
  void post(std::uint16_t first, std::uint16_t count, std::uint32_t length) {
    for (std::uint16_t i = first; i < first + count; ++i) {
      rx_.describe(i, buffer(i), length, kWriteFlag);
      rx_.offer(i);
    }
  }
  void expect_untouched(std::uint64_t address, std::size_t count) {
    EXPECT_THAT(guest_.read(address, count), Each(0xaa));
  }
};

TEST_F(ReceiveTest, OneFrameIntoOneBuffer) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  post(0, 1, 2048);
  const Bytes frame = pattern(60, 1);
  receive(queue, frame);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 72}));
  EXPECT_EQ(guest_.read(buffer(0), 72), concat(net_header(1), frame));
  expect_untouched(buffer(0) + 72, 2048 - 72);  // not a byte more
  EXPECT_EQ(counters_.packets.value(), 1U);
  EXPECT_EQ(counters_.bytes.value(), 60U);
  EXPECT_EQ(drops(), 0U);
}

// 5.1.6.4: 9014 + 12 bytes over buffers of 2048 are 4 full ones and 834 bytes.
TEST_F(ReceiveTest, LargeFrameOverFiveBuffers) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  post(0, 6, 2048);
  const Bytes frame = pattern(9014, 4);
  receive(queue, frame);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 2048}, Used{1, 2048}, Used{2, 2048},
                                             Used{3, 2048}, Used{4, 834}));
  Bytes all;
  for (std::uint16_t i = 0; i < 4; ++i) all = concat(all, guest_.read(buffer(i), 2048));
  all = concat(all, guest_.read(buffer(4), 834));
  EXPECT_EQ(all, concat(net_header(5), frame));
  expect_untouched(buffer(4) + 834, 2048 - 834);
  expect_untouched(buffer(5), 2048);
  EXPECT_EQ(counters_.packets.value(), 1U);
}

TEST_F(ReceiveTest, LargeFrameWithOneBufferTooFew) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  post(0, 4, 2048);
  receive(queue, pattern(9014, 4));
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  EXPECT_EQ(drops(), 1U);
  EXPECT_EQ(counters_.packets.value(), 0U);
  EXPECT_EQ(rx_.used_index(), 0);
  EXPECT_EQ(queue.position(), 0);
  for (std::uint16_t i = 0; i < 4; ++i) expect_untouched(buffer(i), 2048);
  // The same four serve the next frame, from the first on.
  receive(queue, pattern(100, 5));
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 112}));
  // With a fifth and sixth the large one goes through.
  post(4, 2, 2048);
  receive(queue, pattern(9014, 6));
  EXPECT_THAT(rx_.used_since(1), ElementsAre(Used{1, 2048}, Used{2, 2048}, Used{3, 2048},
                                             Used{4, 2048}, Used{5, 834}));
}

// A frame that exactly fills its buffers takes no further one.
TEST_F(ReceiveTest, FrameThatEndsWithABuffer) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  post(0, 3, 128);
  receive(queue, pattern(244, 1));
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 128}, Used{1, 128}));
  EXPECT_EQ(guest_.read(buffer(0), 12), net_header(2));
}

// 5.1.6.3.1 of VERSION_1 without mergeable buffers: the field is there, and is 1.
TEST_F(ReceiveTest, Version1WithoutMergeable) {
  SplitQueue queue = device(rx_, kVersion1);
  post(0, 2, 2048);
  const Bytes frame = pattern(1514, 2);
  receive(queue, frame);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 1526}));
  EXPECT_EQ(guest_.read(buffer(0), 1526), concat(net_header(1), frame));
  expect_untouched(buffer(0) + 1526, 2048 - 1526);
}

TEST_F(ReceiveTest, LegacyWithMergeableHasTwelveBytes) {
  SplitQueue queue = device(rx_, kMergeable);
  post(0, 1, 2048);
  receive(queue, pattern(60, 2));
  EXPECT_EQ(guest_.read(buffer(0), 72), concat(net_header(1), pattern(60, 2)));
}

TEST_F(ReceiveTest, LegacyHasTenBytes) {
  SplitQueue queue = device(rx_, kLegacy);
  post(0, 1, 2048);
  receive(queue, pattern(60, 2));
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 70}));
  EXPECT_EQ(guest_.read(buffer(0), 70), concat(Bytes(10, 0), pattern(60, 2)));
  expect_untouched(buffer(0) + 70, 2048 - 70);
}

TEST_F(ReceiveTest, WithoutMergeableAFrameNeedsOneBuffer) {
  SplitQueue queue = device(rx_, kVersion1);
  post(0, 4, 1526);
  receive(queue, pattern(1515, 1));  // one byte more than fits
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  EXPECT_EQ(rx_.used_index(), 0);
  receive(queue, pattern(1514, 1));
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 1526}));
}

TEST_F(ReceiveTest, ReadOnlyBufferIsRefusedAndUntouched) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  rx_.describe(0, buffer(0), 2048);
  rx_.offer(0);
  post(1, 1, 2048);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(drops(DropReason::kWrongDirection), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}, Used{1, 72}));
  expect_untouched(buffer(0), 2048);
}

TEST_F(ReceiveTest, ReadableTailIsRefused) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  rx_.describe(0, buffer(0), 100, kWriteFlag | kNextFlag, 1);
  rx_.describe(1, buffer(1), 100);
  rx_.offer(0);
  post(2, 1, 2048);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(drops(DropReason::kWrongDirection), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}, Used{2, 72}));
  expect_untouched(buffer(0), 2048);
}

TEST_F(ReceiveTest, EmptyBufferThenAGoodOne) {
  for (const std::uint64_t features : {kVersion1 | kMergeable, kVersion1}) {
    FakeQueue ring(guest_, kRxRing, 256);
    SplitQueue queue = device(ring, features);
    ring.describe(0, buffer(0), 0, kWriteFlag);
    ring.describe(1, buffer(1), 2048, kWriteFlag);
    ring.offer(0);
    ring.offer(1);
    receive(queue, pattern(60, 3));
    EXPECT_THAT(ring.used_since(0), ElementsAre(Used{0, 0}, Used{1, 72}));
    EXPECT_EQ(guest_.read(buffer(1), 72), concat(net_header(1), pattern(60, 3)));
  }
  EXPECT_EQ(drops(DropReason::kBufferTooSmall), 2U);
  EXPECT_EQ(drops(), 2U);
}

TEST_F(ReceiveTest, BufferTooSmallForTheHeader) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  post(0, 1, 11);
  post(1, 1, 12);  // just the header, legal with mergeable buffers
  post(2, 1, 60);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(drops(DropReason::kBufferTooSmall), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}, Used{1, 12}, Used{2, 60}));
  EXPECT_EQ(guest_.read(buffer(1), 12), net_header(2));
  EXPECT_EQ(guest_.read(buffer(2), 60), pattern(60, 3));
  expect_untouched(buffer(0), 64);
}

// 5.1.6.4: the buffers of a frame follow each other. Those in front of a bad one go back unused,
// and the frame starts anew behind it.
TEST_F(ReceiveTest, BadBufferInTheMiddleOfAFrame) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  post(0, 2, 1000);
  rx_.describe(2, 0xdead0000, 1000, kWriteFlag);
  rx_.offer(2);
  post(3, 3, 1000);
  receive(queue, pattern(2500, 3));
  EXPECT_EQ(drops(DropReason::kUnmappedAddress), 1U);
  EXPECT_EQ(drops(), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}, Used{1, 0}, Used{2, 0}, Used{3, 1000},
                                             Used{4, 1000}, Used{5, 512}));
  Bytes all = concat(guest_.read(buffer(3), 1000), guest_.read(buffer(4), 1000));
  all = concat(all, guest_.read(buffer(5), 512));
  EXPECT_EQ(all, concat(net_header(3), pattern(2500, 3)));
  expect_untouched(buffer(0), 1000);
  expect_untouched(buffer(1), 1000);
}

TEST_F(ReceiveTest, BadBufferInTheMiddleAndTooFewBehindIt) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  post(0, 1, 1000);
  rx_.describe(1, 0xdead0000, 1000, kWriteFlag);
  rx_.offer(1);
  post(2, 2, 1000);
  receive(queue, pattern(2500, 3));
  EXPECT_EQ(drops(DropReason::kUnmappedAddress), 1U);
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}, Used{1, 0}));
  EXPECT_EQ(queue.position(), 2);  // 2 and 3 wait for the next frame
  receive(queue, pattern(60, 3));
  EXPECT_THAT(rx_.used_since(2), ElementsAre(Used{2, 72}));
}

// Bad buffers do not wait for a good one: they are returned when they are reached.
TEST_F(ReceiveTest, BadBufferAlone) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  rx_.describe(0, kEnd - 10, 11, kWriteFlag);
  rx_.offer(0);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(drops(DropReason::kUnmappedAddress), 1U);
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}));
}

TEST_F(ReceiveTest, OnlyBadBuffersInAWholeRing) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  for (std::uint16_t i = 0; i < 256; ++i) {
    rx_.describe(i, buffer(0), 64, kWriteFlag | kNextFlag, i);
    rx_.offer(i);
  }
  for (int i = 0; i < 1000 && rx_.used_index() != 256; ++i) receive(queue, pattern(60, 3));
  EXPECT_EQ(drops(DropReason::kDescriptorLoop), 256U);
  ASSERT_EQ(rx_.used_index(), 256);
  EXPECT_THAT(rx_.used_since(0), Each(::testing::Field(&Used::length, 0U)));
  EXPECT_EQ(counters_.packets.value(), 0U);
  post(0, 1, 2048);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(counters_.packets.value(), 1U);
}

// A receive ring of 32768 chains, each a loop through all descriptors, must not hold a worker.
TEST_F(ReceiveTest, WorkOfOneWriteIsBoundedInDescriptors) {
  FakeQueue ring(guest_, kRxRing, 32768);
  SplitQueue queue = device(ring, kVersion1 | kMergeable);
  for (std::uint32_t i = 0; i < 32768; ++i) {
    ring.describe(i, kEnd - 1, 0, kWriteFlag | kNextFlag,
                  static_cast<std::uint16_t>((i + 1) % 32768));
    ring.put_head(static_cast<std::uint16_t>(i));
  }
  ring.show();
  const OwnFrame own(pattern(60, 3));
  const std::vector<const Frame*> burst(32, &own.frame());
  queue.write(burst.data(), 32, counters_);
  EXPECT_EQ(drops(DropReason::kDescriptorLoop), 1U);  // alone more than a write's share
  EXPECT_EQ(drops(), 33U);                            // and every frame is accounted for
  EXPECT_EQ(ring.used_index(), 1);
  queue.write(burst.data(), 32, counters_);
  EXPECT_EQ(ring.used_index(), 2);
}

TEST_F(ReceiveTest, HeadOutOfRangeBreaksTheRing) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  post(0, 1, 100);
  rx_.offer(256);
  post(1, 1, 2048);
  receive(queue, pattern(60, 3));   // fits the first
  receive(queue, pattern(200, 3));  // would need the second
  EXPECT_EQ(queue.broken(), BrokenRing::kHeadOutOfRange);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 72}));
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(rx_.used_index(), 1);
}

TEST_F(ReceiveTest, IndexJumpBreaksTheRing) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  rx_.set_avail_index(300);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(queue.broken(), BrokenRing::kIndexJump);
  EXPECT_EQ(rx_.used_index(), 0);
}

// The guest shows more while what it showed is still out: no more is taken than the ring has.
TEST_F(ReceiveTest, MoreShownThanTheRingHolds) {
  FakeQueue ring(guest_, kRxRing, 4);
  SplitQueue queue = device(ring, kVersion1 | kMergeable);
  for (std::uint16_t i = 0; i < 4; ++i) ring.describe(i, buffer(i), 100, kWriteFlag);
  for (std::uint16_t i = 0; i < 4; ++i) ring.offer(i);
  virtq::Reservation first;
  ASSERT_TRUE(queue.reserve(300, first, counters_));  // all four
  EXPECT_EQ(first.buffers, 4);
  for (std::uint16_t i = 0; i < 4; ++i) ring.offer(i);
  virtq::Reservation second;
  EXPECT_FALSE(queue.reserve(60, second, counters_));
  const OwnFrame own(pattern(300, 1));
  queue.fill(first, own.frame());
  EXPECT_EQ(ring.used_index(), 0);  // nothing shows before commit
  queue.commit();
  EXPECT_EQ(ring.used_index(), 4);
}

TEST_F(ReceiveTest, EmptyRingDropsWholeBurst) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  const OwnFrame own(pattern(60, 3));
  const std::vector<const Frame*> burst(32, &own.frame());
  queue.write(burst.data(), 32, counters_);
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 32U);
  EXPECT_EQ(rx_.used_index(), 0);
}

// A burst larger than its room: the first frames are delivered in order, the rest counted.
TEST_F(ReceiveTest, BurstLargerThanTheRoom) {
  SplitQueue queue = device(rx_, kVersion1 | kMergeable);
  post(0, 20, 2048);
  std::deque<OwnFrame> frames;
  std::vector<const Frame*> burst;
  for (std::uint32_t i = 0; i < 32; ++i) {
    burst.push_back(&frames.emplace_back(pattern(60 + i, i)).frame());
  }
  queue.write(burst.data(), 32, counters_);
  EXPECT_EQ(counters_.packets.value(), 20U);
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 12U);
  ASSERT_EQ(rx_.used_index(), 20);
  for (std::uint16_t i = 0; i < 20; ++i) {
    EXPECT_EQ(rx_.used(i), (Used{i, 72u + i}));
    EXPECT_EQ(guest_.read(buffer(i) + 12, 60u + i), frames[i].bytes());
  }
}

}  // namespace
}  // namespace vswitch::testing
