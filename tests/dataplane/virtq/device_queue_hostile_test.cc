// What a hostile or broken guest puts into its transmit ring, and that it harms only itself.
// Sections are of virtio 1.2.
#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using virtq::BrokenRing;

class HostileTransmitFixture : public DeviceQueueFixture {
 protected:
  using DeviceQueueFixture::DeviceQueueFixture;

  // The good frame that must come through after every bad chain.
  void offer_good() {
    put_frame(tx_, 200, kTxBuffers + 0x100000, good_);
    tx_.offer(200);
  }
  // One bad chain at `head`, a good one behind it: the first returned unused and counted, the
  // second delivered.
  void expect_refused(std::uint16_t head, DropReason reason, bool indirect = true) {
    DeviceUnderTest queue = device(tx_, kVersion1, indirect);
    tx_.offer(head);
    offer_good();
    EXPECT_THAT(transmit(queue), ElementsAre(good_));
    EXPECT_EQ(drops(reason), 1U) << drop_reason_label(reason);
    EXPECT_EQ(drops(), 1U);
    EXPECT_EQ(tx_.used_index(), 2);
    EXPECT_THAT(tx_.used_since(0), ElementsAre(Used{head, 0}, Used{200, 0}));
    EXPECT_EQ(queue.broken(), BrokenRing::kNone);
  }

  const Bytes good_ = pattern(60, 7);
};

class HostileTransmitTest : public HostileTransmitFixture,
                            public ::testing::WithParamInterface<Layout> {
 protected:
  HostileTransmitTest() : HostileTransmitFixture(GetParam()) {}
};
class SplitHostileTransmitTest : public HostileTransmitFixture {
 protected:
  SplitHostileTransmitTest() : HostileTransmitFixture(Layout::kSplit) {}
};

TEST_P(HostileTransmitTest, BufferEndsOneByteBehindTheLastRegion) {
  tx_.describe(0, kEnd - 100, 101);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_P(HostileTransmitTest, BufferUpToTheLastByteIsFine) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  put_frame(tx_, 0, kEnd - 72, good_);
  tx_.offer(0);
  EXPECT_THAT(transmit(queue), ElementsAre(good_));
}

TEST_P(HostileTransmitTest, BufferBeginsBeforeTheFirstRegion) {
  tx_.describe(0, kBase - 1, 72);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_P(HostileTransmitTest, BufferWrapsAroundTheAddressSpace) {
  tx_.describe(0, 0xffffffffffffffc0, 128);
  expect_refused(0, DropReason::kUnmappedAddress);
}

// address + length wraps to inside the region.
TEST_P(HostileTransmitTest, BufferFromInsideWithTheLargestLength) {
  tx_.describe(0, kTxBuffers, 0xffffffff);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_P(HostileTransmitTest, UnmappedSecondDescriptor) {
  tx_.describe(0, kTxBuffers, 72, kNextFlag, 1);
  tx_.describe(1, 0xdead0000, 72);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_P(HostileTransmitTest, DeviceWritableBufferSent) {
  guest_.fill(kTxBuffers, 72, 0x5a);
  tx_.describe(0, kTxBuffers, 72, kWriteFlag);
  expect_refused(0, DropReason::kWrongDirection);
  EXPECT_EQ(guest_.read(kTxBuffers, 72), Bytes(72, 0x5a));
}

TEST_P(HostileTransmitTest, DeviceWritableTail) {
  tx_.describe(0, kTxBuffers, 72, kNextFlag, 1);
  tx_.describe(1, kTxBuffers + 100, 72, kWriteFlag);
  expect_refused(0, DropReason::kWrongDirection);
}

// Chains no longer than the header: no frame in them.
TEST_P(HostileTransmitTest, ChainsNoLongerThanTheHeader) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  tx_.describe(0, kTxBuffers, 0);
  tx_.describe(1, kTxBuffers, 11);
  tx_.describe(2, kTxBuffers, 12);
  std::uint16_t seen = 0;
  for (std::uint16_t i = 0; i < 3000; ++i) {
    tx_.offer(i % 3);
    if (i % 200 != 199) continue;
    EXPECT_THAT(transmit_all(queue), IsEmpty());
    ASSERT_EQ(tx_.used_index(), i + 1);
    for (; seen != tx_.used_index(); ++seen) {
      ASSERT_EQ(tx_.used(seen), (Used{seen % 3u, 0}));
    }
  }
  EXPECT_EQ(drops(DropReason::kHeaderTooShort), 3000U);
  EXPECT_EQ(drops(), 3000U);
  offer_good();
  EXPECT_THAT(transmit(queue), ElementsAre(good_));
  EXPECT_EQ(tx_.used_index(), 3001);
}

TEST_P(HostileTransmitTest, LegacyHeaderIsTenBytes) {
  DeviceUnderTest queue = device(tx_, kLegacy);
  tx_.describe(0, kTxBuffers, 10);
  guest_.write(kTxBuffers, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77});
  tx_.describe(1, kTxBuffers, 11);
  tx_.offer(0);
  tx_.offer(1);
  EXPECT_THAT(transmit(queue), ElementsAre(Bytes{0x77}));
  EXPECT_EQ(drops(DropReason::kHeaderTooShort), 1U);
}

TEST_P(HostileTransmitTest, ZeroLengthChainOfSeveralDescriptors) {
  tx_.describe(0, 0xdead0000, 0, kNextFlag, 1);  // no bytes need no address
  tx_.describe(1, 0xdead0000, 0);
  expect_refused(0, DropReason::kHeaderTooShort);
}

// A chain over more regions than segments can be kept: a queue of one keeps 577.
TEST_P(HostileTransmitTest, ChainOverTooManyRegions) {
  std::vector<FakeGuest::Extent> extents{{0x1000, 0x1000}};
  for (std::uint64_t i = 0; i < 600; ++i) extents.push_back({0x100000 + 16 * i, 16});
  const FakeGuest guest(std::move(extents));
  GuestRing ring(layout_, guest, 0x1000, 1);
  DeviceUnderTest queue = make_device(guest, ring, kVersion1);
  ring.describe(0, 0x100000, 600 * 16);
  ring.offer(0);
  EXPECT_THAT(transmit(queue), IsEmpty());
  EXPECT_EQ(drops(DropReason::kTooFragmented), 1U);
  EXPECT_THAT(ring.used_since(0), ElementsAre(Used{0, 0}));

  const Bytes frame = pattern(500 * 16 - 12, 3);
  guest.write(0x100000, concat(Bytes(12, 0), frame));
  ring.describe(0, 0x100000, 500 * 16);
  ring.offer(0);
  EXPECT_THAT(transmit(queue), ElementsAre(frame));
}

VSWITCH_FOR_BOTH_LAYOUTS(HostileTransmitTest);

// --- What only a split ring can say.

TEST_F(SplitHostileTransmitTest, CircularChain) {
  tx_.describe(0, kTxBuffers, 40, kNextFlag, 1);
  tx_.describe(1, kTxBuffers, 40, kNextFlag, 0);
  expect_refused(0, DropReason::kDescriptorLoop);
}

TEST_F(SplitHostileTransmitTest, DescriptorThatIsItsOwnNext) {
  tx_.describe(9, kTxBuffers, 0, kNextFlag, 9);
  expect_refused(9, DropReason::kDescriptorLoop);
}

// 2.7.6: an entry that names no descriptor loses the ring's accounting.
TEST_F(SplitHostileTransmitTest, HeadOutOfRangeBreaksTheRing) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  put_frame(tx_, 0, kTxBuffers, good_);
  tx_.offer(0);
  tx_.offer(300);
  offer_good();
  EXPECT_THAT(transmit(queue), ElementsAre(good_));  // what came before it is still served
  EXPECT_EQ(queue.broken(), BrokenRing::kHeadOutOfRange);
  EXPECT_THAT(transmit(queue), IsEmpty());
  EXPECT_EQ(taken_, 0U);
  EXPECT_THAT(tx_.used_since(0), ElementsAre(Used{0, 0}));
  EXPECT_EQ(queue.position(), 1);
  EXPECT_EQ(drops(), 0U);
}

TEST_F(SplitHostileTransmitTest, FirstHeadOutOfRange) {
  for (const int head : {256, 0x7fff, 0xffff}) {
    GuestRing ring = this->ring(kRxRing, 256);
    DeviceUnderTest queue = device(ring, kVersion1);
    ring.offer(static_cast<std::uint16_t>(head));
    EXPECT_EQ(queue.read(burst_, counters_), 0U);
    EXPECT_EQ(queue.broken(), BrokenRing::kHeadOutOfRange);
    EXPECT_EQ(ring.used_index(), 0);
  }
}

TEST_F(SplitHostileTransmitTest, NextOutOfRange) {
  tx_.describe(0, kTxBuffers, 40, kNextFlag, 300);
  expect_refused(0, DropReason::kDescriptorIndex);
}

TEST_F(SplitHostileTransmitTest, NextIsTheQueueSize) {
  tx_.describe(0, kTxBuffers, 40, kNextFlag, 256);
  expect_refused(0, DropReason::kDescriptorIndex);
}

// A next field without the NEXT flag means nothing.
TEST_F(SplitHostileTransmitTest, NextIsIgnoredWithoutItsFlag) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  guest_.write(kTxBuffers, concat(Bytes(12, 0), good_));
  tx_.describe(0, kTxBuffers, 72, 0, 0xffff);
  tx_.offer(0);
  EXPECT_THAT(transmit(queue), ElementsAre(good_));
}

// 2.7.13.3: the index counts chains modulo 2^16 and never runs further ahead than the queue is
// long.
TEST_F(SplitHostileTransmitTest, IndexJumpBreaksTheRingAndANewOneRecovers) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  put_frame(tx_, 0, kTxBuffers, good_);
  tx_.split().set_avail_index(300);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(queue.read(burst_, counters_), 0U);
    EXPECT_EQ(queue.broken(), BrokenRing::kIndexJump);
  }
  EXPECT_EQ(tx_.used_index(), 0);
  EXPECT_EQ(drops(), 0U);

  GuestRing again = ring(kTxRing, 256);
  DeviceUnderTest fresh = device(again, kVersion1);
  put_frame(again, 0, kTxBuffers, good_);
  again.offer(0);
  EXPECT_THAT(transmit(fresh), ElementsAre(good_));
}

TEST_F(SplitHostileTransmitTest, IndexJumpByOneMoreThanTheSize) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  tx_.split().set_avail_index(257);
  EXPECT_EQ(queue.read(burst_, counters_), 0U);
  EXPECT_EQ(queue.broken(), BrokenRing::kIndexJump);
}

TEST_F(SplitHostileTransmitTest, IndexGoingBackwards) {
  DeviceUnderTest queue = make_device(guest_, tx_, kVersion1, {}, 10);
  tx_.split().set_avail_index(9);
  EXPECT_EQ(queue.read(burst_, counters_), 0U);
  EXPECT_EQ(queue.broken(), BrokenRing::kIndexJump);
}

TEST_F(SplitHostileTransmitTest, IndexAcrossItsWrapIsNoJump) {
  GuestRing ring = this->ring(kTxRing, 256, 0xfff0);
  DeviceUnderTest queue = device(ring, kVersion1);
  put_frame(ring, 0, kTxBuffers, good_);
  for (int i = 0; i < 32; ++i) ring.put_head(0);
  ring.show();
  ASSERT_EQ(ring.offered(), 0x10);
  EXPECT_EQ(transmit_all(queue).size(), 32U);
  EXPECT_EQ(ring.used_index(), 0x10);
  EXPECT_EQ(queue.position(), 0x10);
  EXPECT_EQ(queue.broken(), BrokenRing::kNone);
}

// Refused chains take work too. However long the chains of a hostile queue, one poll walks a
// bounded number of descriptors, and the next goes on behind them.
TEST_F(SplitHostileTransmitTest, WorkOfOnePollIsBoundedInDescriptors) {
  GuestRing ring = this->ring(kTxRing, 32768);
  DeviceUnderTest queue = device(ring, kVersion1);
  for (std::uint32_t i = 0; i < 32768; ++i) {
    ring.describe(i, kTxBuffers, 0, kNextFlag, static_cast<std::uint16_t>((i + 1) % 32768));
  }
  for (std::uint16_t i = 0; i < 32; ++i) ring.offer(i);
  std::uint32_t polls = 0;
  while (transmit(queue).empty() && taken_ != 0) {
    EXPECT_EQ(taken_, 1U);  // each loop alone is more than a poll's share
    ++polls;
  }
  EXPECT_EQ(polls, 32U);
  EXPECT_EQ(drops(DropReason::kDescriptorLoop), 32U);
  EXPECT_EQ(ring.used_index(), 32);
}

}  // namespace
}  // namespace vswitch::testing
