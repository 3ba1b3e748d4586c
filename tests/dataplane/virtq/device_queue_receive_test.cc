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

class ReceiveFixture : public DeviceQueueFixture {
 protected:
  explicit ReceiveFixture(Layout layout) : DeviceQueueFixture(layout) {
    guest_.fill(kRxBuffers, 0x100000, 0xaa);
  }

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

class ReceiveTest : public ReceiveFixture, public ::testing::WithParamInterface<Layout> {
 protected:
  ReceiveTest() : ReceiveFixture(GetParam()) {}
};
class SplitReceiveTest : public ReceiveFixture {
 protected:
  SplitReceiveTest() : ReceiveFixture(Layout::kSplit) {}
};

TEST_P(ReceiveTest, OneFrameIntoOneBuffer) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
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
TEST_P(ReceiveTest, LargeFrameOverFiveBuffers) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
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

TEST_P(ReceiveTest, LargeFrameWithOneBufferTooFew) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  post(0, 4, 2048);
  receive(queue, pattern(9014, 4));
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  EXPECT_EQ(drops(), 1U);
  EXPECT_EQ(counters_.packets.value(), 0U);
  EXPECT_EQ(rx_.used_index(), 0);
  EXPECT_EQ(queue.position(), rx_.device_start());
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
TEST_P(ReceiveTest, FrameThatEndsWithABuffer) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  post(0, 3, 128);
  receive(queue, pattern(244, 1));
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 128}, Used{1, 128}));
  EXPECT_EQ(guest_.read(buffer(0), 12), net_header(2));
}

// 5.1.6.3.1 of VERSION_1 without mergeable buffers: the field is there, and is 1.
TEST_P(ReceiveTest, Version1WithoutMergeable) {
  DeviceUnderTest queue = device(rx_, kVersion1);
  post(0, 2, 2048);
  const Bytes frame = pattern(1514, 2);
  receive(queue, frame);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 1526}));
  EXPECT_EQ(guest_.read(buffer(0), 1526), concat(net_header(1), frame));
  expect_untouched(buffer(0) + 1526, 2048 - 1526);
}

TEST_P(ReceiveTest, LegacyWithMergeableHasTwelveBytes) {
  DeviceUnderTest queue = device(rx_, kMergeable);
  post(0, 1, 2048);
  receive(queue, pattern(60, 2));
  EXPECT_EQ(guest_.read(buffer(0), 72), concat(net_header(1), pattern(60, 2)));
}

TEST_P(ReceiveTest, LegacyHasTenBytes) {
  DeviceUnderTest queue = device(rx_, kLegacy);
  post(0, 1, 2048);
  receive(queue, pattern(60, 2));
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 70}));
  EXPECT_EQ(guest_.read(buffer(0), 70), concat(Bytes(10, 0), pattern(60, 2)));
  expect_untouched(buffer(0) + 70, 2048 - 70);
}

TEST_P(ReceiveTest, WithoutMergeableAFrameNeedsOneBuffer) {
  DeviceUnderTest queue = device(rx_, kVersion1);
  post(0, 4, 1526);
  receive(queue, pattern(1515, 1));  // one byte more than fits
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  EXPECT_EQ(rx_.used_index(), 0);
  receive(queue, pattern(1514, 1));
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 1526}));
}

TEST_P(ReceiveTest, ReadOnlyBufferIsRefusedAndUntouched) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  rx_.describe(0, buffer(0), 2048);
  rx_.offer(0);
  post(1, 1, 2048);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(drops(DropReason::kWrongDirection), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}, Used{1, 72}));
  expect_untouched(buffer(0), 2048);
}

TEST_P(ReceiveTest, ReadableTailIsRefused) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  rx_.describe(0, buffer(0), 100, kWriteFlag | kNextFlag, 1);
  rx_.describe(1, buffer(1), 100);
  rx_.offer(0);
  post(2, 1, 2048);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(drops(DropReason::kWrongDirection), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}, Used{2, 72}));
  expect_untouched(buffer(0), 2048);
}

// Used step by step a queue goes on for ever: neither commits nor failed reservations use it up.
TEST_P(ReceiveTest, ManyReservationsOneByOne) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  const OwnFrame own(pattern(60, 1));
  for (std::uint16_t round = 0; round < 2000; ++round) {
    virtq::Reservation reservation;
    EXPECT_FALSE(queue.reserve(60, reservation, counters_));
    post(0, 1, 100);
    EXPECT_FALSE(queue.reserve(500, reservation, counters_));
    ASSERT_TRUE(queue.reserve(60, reservation, counters_)) << "round " << round;
    queue.fill(reservation, own.frame());
    queue.commit();
    ASSERT_EQ(rx_.used_index(), round + 1);
  }
  EXPECT_EQ(drops(), 0U);
}

TEST_P(ReceiveTest, EmptyBufferThenAGoodOne) {
  for (const std::uint64_t features : {kVersion1 | kMergeable, kVersion1}) {
    GuestRing ring = this->ring(kRxRing, 256);
    DeviceUnderTest queue = device(ring, features);
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

TEST_P(ReceiveTest, BufferTooSmallForTheHeader) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
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
TEST_P(ReceiveTest, BadBufferInTheMiddleOfAFrame) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
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

TEST_P(ReceiveTest, BadBufferInTheMiddleAndTooFewBehindIt) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  post(0, 1, 1000);
  rx_.describe(1, 0xdead0000, 1000, kWriteFlag);
  rx_.offer(1);
  post(2, 2, 1000);
  receive(queue, pattern(2500, 3));
  EXPECT_EQ(drops(DropReason::kUnmappedAddress), 1U);
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}, Used{1, 0}));
  EXPECT_EQ(queue.position() & 0x7fff, 2);  // 2 and 3 wait for the next frame
  receive(queue, pattern(60, 3));
  EXPECT_THAT(rx_.used_since(2), ElementsAre(Used{2, 72}));
}

// Bad buffers do not wait for a good one: they are returned when they are reached.
TEST_P(ReceiveTest, BadBufferAlone) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  rx_.describe(0, kEnd - 10, 11, kWriteFlag);
  rx_.offer(0);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(drops(DropReason::kUnmappedAddress), 1U);
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 0}));
}

TEST_P(ReceiveTest, EmptyRingDropsWholeBurst) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  const OwnFrame own(pattern(60, 3));
  const std::vector<const Frame*> burst(32, &own.frame());
  queue.write(burst.data(), 32, counters_);
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 32U);
  EXPECT_EQ(rx_.used_index(), 0);
}

// A burst larger than its room: the first frames are delivered in order, the rest counted.
TEST_P(ReceiveTest, BurstLargerThanTheRoom) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
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

// Guests recycle buffers with the header intact; only a header that differs is written. Here it
// ends a page that cannot be written.
TEST_P(ReceiveTest, HeaderThatIsRightAlreadyIsNotWritten) {
  constexpr std::uint64_t kPage = kRxBuffers + 0x1000;
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  rx_.describe(0, kPage - 12, 2048, kWriteFlag);
  rx_.describe(1, kPage - 12, 2048, kWriteFlag);
  guest_.write(kPage - 12, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  rx_.offer(0);
  receive(queue, pattern(60, 1));
  EXPECT_EQ(guest_.read(kPage - 12, 72), concat(net_header(1), pattern(60, 1)));
  ASSERT_EQ(mprotect(guest_.at(kRxBuffers), 0x1000, PROT_READ), 0);
  rx_.offer(1);
  receive(queue, pattern(1000, 2));
  EXPECT_EQ(guest_.read(kPage - 12, 1012), concat(net_header(1), pattern(1000, 2)));
  ASSERT_EQ(mprotect(guest_.at(kRxBuffers), 0x1000, PROT_READ | PROT_WRITE), 0);
  EXPECT_THAT(rx_.used_since(0), ElementsAre(Used{0, 72}, Used{1, 1012}));
}

// Several mergeable frames whose buffers are lists or chains themselves.
TEST_P(ReceiveTest, MergeableFramesOverChains) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  for (std::uint16_t i = 0; i < 12; ++i) {  // 12 chains of 3 descriptors, 600 bytes each
    const auto head = static_cast<std::uint16_t>(3 * i);
    for (std::uint16_t d = 0; d < 3; ++d) {
      rx_.describe(head + d, buffer(i) + 200ull * d, 200,
                   static_cast<std::uint16_t>(d == 2 ? kWriteFlag : kWriteFlag | kNextFlag),
                   static_cast<std::uint16_t>(head + d + 1));
    }
    rx_.offer(head);
  }
  const OwnFrame frames[] = {OwnFrame(pattern(1000, 1)), OwnFrame(pattern(60, 2)),
                             OwnFrame(pattern(2400, 3))};
  const Frame* const burst[] = {&frames[0].frame(), &frames[1].frame(), &frames[2].frame()};
  queue.write(burst, 3, counters_);
  // 1012 = 600 + 412; 72; 2412 = 4 x 600 + 12.
  EXPECT_THAT(rx_.used_since(0),
              ElementsAre(Used{0, 600}, Used{3, 412}, Used{6, 72}, Used{9, 600}, Used{12, 600},
                          Used{15, 600}, Used{18, 600}, Used{21, 12}));
  Bytes all;
  for (std::uint16_t i = 3; i < 8; ++i) all = concat(all, guest_.read(buffer(i), 600));
  all.resize(2412);
  EXPECT_EQ(all, concat(net_header(5), pattern(2400, 3)));
  EXPECT_EQ(concat(guest_.read(buffer(0), 600), guest_.read(buffer(1), 412)),
            concat(net_header(2), pattern(1000, 1)));
  // Four chains are left: too few for five, and all of them come back for the next.
  receive(queue, pattern(2400, 4));
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 1U);
  receive(queue, pattern(2388, 5));
  EXPECT_THAT(rx_.used_since(8),
              ElementsAre(Used{24, 600}, Used{27, 600}, Used{30, 600}, Used{33, 600}));
  EXPECT_EQ(drops(), 1U);
}

VSWITCH_FOR_BOTH_LAYOUTS(ReceiveTest);

// --- What only a split ring can say.

TEST_F(SplitReceiveTest, OnlyBadBuffersInAWholeRing) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
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
TEST_F(SplitReceiveTest, WorkOfOneWriteIsBoundedInDescriptors) {
  GuestRing ring = this->ring(kRxRing, 32768);
  DeviceUnderTest queue = device(ring, kVersion1 | kMergeable);
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

TEST_F(SplitReceiveTest, HeadOutOfRangeBreaksTheRing) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
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

// Nor does it go on with what it had loaded, or taken and given back, before it broke.
TEST_F(SplitReceiveTest, BrokenRingServesNothingMore) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  post(0, 2, 100);
  rx_.offer(256);
  // The first frame needs three buffers, and the third is none; the others would fit into one.
  const OwnFrame frames[] = {OwnFrame(pattern(250, 1)), OwnFrame(pattern(60, 2)),
                             OwnFrame(pattern(60, 3))};
  const Frame* const burst[] = {&frames[0].frame(), &frames[1].frame(), &frames[2].frame()};
  queue.write(burst, 3, counters_);
  EXPECT_EQ(queue.broken(), BrokenRing::kHeadOutOfRange);
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 3U);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 4U);
  EXPECT_EQ(rx_.used_index(), 0);
}

TEST_F(SplitReceiveTest, IndexJumpBehindLoadedEntries) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  post(0, 4, 100);
  const OwnFrame large(pattern(500, 3));  // more than there is: all are given back
  const std::vector<const Frame*> first(4, &large.frame());
  queue.write(first.data(), 4, counters_);
  EXPECT_EQ(queue.broken(), BrokenRing::kNone);
  rx_.split().set_avail_index(300);
  const OwnFrame small(pattern(60, 3));
  const std::vector<const Frame*> second(5, &small.frame());
  queue.write(second.data(), 5, counters_);
  EXPECT_EQ(queue.broken(), BrokenRing::kIndexJump);
  EXPECT_EQ(drops(DropReason::kNoRxBuffer), 9U);
  EXPECT_EQ(rx_.used_index(), 0);
}

TEST_F(SplitReceiveTest, IndexJumpBreaksTheRing) {
  DeviceUnderTest queue = device(rx_, kVersion1 | kMergeable);
  rx_.split().set_avail_index(300);
  receive(queue, pattern(60, 3));
  EXPECT_EQ(queue.broken(), BrokenRing::kIndexJump);
  EXPECT_EQ(rx_.used_index(), 0);
}

// The guest shows more while what it showed is still out: no more is taken than the ring has.
TEST_F(SplitReceiveTest, MoreShownThanTheRingHolds) {
  GuestRing ring = this->ring(kRxRing, 4);
  DeviceUnderTest queue = device(ring, kVersion1 | kMergeable);
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

}  // namespace
}  // namespace vswitch::testing
