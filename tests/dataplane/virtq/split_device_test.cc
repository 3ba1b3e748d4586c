// The device's end of the split ring by itself (virtio 1.2, 2.7): positions, wraps, suppression.
#include "dataplane/virtq/split_device.h"

#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using virtq::Access;
using virtq::Chain;
using virtq::Fetch;
using virtq::SplitDevice;

class SplitDeviceTest : public DeviceQueueFixture {
 protected:
  SplitDeviceTest()
      : DeviceQueueFixture(Layout::kSplit), translator_(*guest_.memory()), segments_(64) {
    arena_ = {segments_.data(), 0, 64};
  }
  Fetch fetch(SplitDevice& end) {
    return end.fetch<Access::kReadable>(translator_, arena_, chain_);
  }

  Translator translator_;
  std::vector<Segment> segments_;
  SegmentArena arena_;
  Chain chain_;
};

TEST_F(SplitDeviceTest, EmptyRing) {
  SplitDevice end(tx_.split().ring(), 0, {.indirect = true});
  EXPECT_EQ(end.peek(32), 0U);
  EXPECT_EQ(fetch(end), Fetch::kEmpty);
  EXPECT_EQ(end.position(), 0);
}

TEST_F(SplitDeviceTest, ChainSaysWhatWasOffered) {
  SplitDevice end(tx_.split().ring(), 0, {.indirect = true});
  tx_.describe(77, kTxBuffers, 100, kNextFlag, 3);
  tx_.describe(3, kTxBuffers + 4096, 50);
  tx_.offer(77);
  ASSERT_EQ(fetch(end), Fetch::kReady);
  EXPECT_EQ(chain_.id, 77);
  EXPECT_EQ(chain_.slots, 1);
  EXPECT_EQ(chain_.bytes, 150U);
  ASSERT_EQ(chain_.segment_count, 2U);
  EXPECT_EQ(chain_.segments[0].data, reinterpret_cast<std::byte*>(guest_.at(kTxBuffers)));
  EXPECT_EQ(chain_.segments[0].length, 100U);
  EXPECT_EQ(chain_.segments[1].data, reinterpret_cast<std::byte*>(guest_.at(kTxBuffers + 4096)));
  EXPECT_EQ(chain_.segments[1].length, 50U);
  EXPECT_EQ(fetch(end), Fetch::kEmpty);
}

TEST_F(SplitDeviceTest, RefusedChainLeavesNoSegments) {
  SplitDevice end(tx_.split().ring(), 0, {.indirect = true});
  tx_.describe(0, kTxBuffers, 100, kNextFlag, 1);
  tx_.describe(1, 0xdead0000, 50);
  tx_.offer(0);
  EXPECT_EQ(fetch(end), Fetch::kBadChain);
  EXPECT_EQ(chain_.id, 0);
  EXPECT_EQ(chain_.reason, DropReason::kUnmappedAddress);
  EXPECT_EQ(arena_.count, 0U);
}

TEST_F(SplitDeviceTest, ArenaTooSmallForAChain) {
  SplitDevice end(tx_.split().ring(), 0, {.indirect = true});
  for (std::uint16_t i = 0; i < 65; ++i) {
    tx_.describe(i, kTxBuffers, 10, i == 64 ? 0 : kNextFlag, static_cast<std::uint16_t>(i + 1));
  }
  tx_.offer(0);
  tx_.offer(64);
  EXPECT_EQ(fetch(end), Fetch::kBadChain);
  EXPECT_EQ(chain_.reason, DropReason::kTooFragmented);
  EXPECT_EQ(arena_.count, 0U);
  EXPECT_EQ(fetch(end), Fetch::kReady);
}

// 2.7.5.2: chains of 2^32 bytes or more are forbidden; a length never wraps to a small one.
TEST_F(SplitDeviceTest, ChainOfFourGigabytes) {
  const FakeGuest guest({{0x100000000, 0x81000000}});
  FakeQueue ring(guest, 0x100000000, 16);
  SplitDevice end(ring.ring(), 0, {.indirect = true});
  Translator translator(*guest.memory());
  ring.describe(0, 0x100001000, 0x80000000, kNextFlag, 1);
  ring.describe(1, 0x100001000, 0x80000000, kNextFlag, 2);
  ring.describe(2, 0x100001000, 60);
  ring.offer(0);
  EXPECT_EQ(end.fetch<Access::kReadable>(translator, arena_, chain_), Fetch::kBadChain);
  EXPECT_EQ(arena_.count, 0U);
}

TEST_F(SplitDeviceTest, RewoundChainsComeAgain) {
  SplitDevice end(tx_.split().ring(), 0, {.indirect = true});
  for (std::uint16_t i = 0; i < 40; ++i) {
    tx_.describe(i, kTxBuffers, 10u + i);
    tx_.put_head(i);
  }
  tx_.show();
  for (std::uint16_t i = 0; i < 36; ++i) {
    ASSERT_EQ(fetch(end), Fetch::kReady);
    EXPECT_EQ(chain_.id, i);
  }
  end.rewind(nullptr, 6);  // over the border of a block of 32
  EXPECT_EQ(end.position(), 30);
  for (std::uint16_t i = 30; i < 40; ++i) {
    ASSERT_EQ(fetch(end), Fetch::kReady);
    EXPECT_EQ(chain_.id, i);
    EXPECT_EQ(chain_.bytes, 10u + i);
  }
  EXPECT_EQ(fetch(end), Fetch::kEmpty);
}

TEST_F(SplitDeviceTest, PeekCountsAndStopsAtABlock) {
  SplitDevice end(tx_.split().ring(), 0, {.indirect = true});
  for (std::uint16_t i = 0; i < 100; ++i) tx_.put_head(i);
  EXPECT_EQ(end.peek(8), 0U);  // not shown yet
  tx_.show();
  EXPECT_EQ(end.peek(8), 8U);
  EXPECT_EQ(end.peek(1000), 32U);
  EXPECT_EQ(SplitDevice::backlog(tx_.split().ring(), 0), 100);
  EXPECT_EQ(SplitDevice::backlog(tx_.split().ring(), 98), 2);
}

// 2.7.8: elements go round the ring, the index round 2^16; one step for all of a batch.
TEST_F(SplitDeviceTest, UsedRingWraps) {
  FakeQueue ring(guest_, kTxRing, 8, 0xfffd);
  SplitDevice end(ring.ring(), 0xfffd, {.indirect = true});
  const virtq::UsedElement elements[] = {{1, 10}, {2, 20}, {3, 30}, {4, 40}, {5, 50}};
  end.publish(elements, 5);
  EXPECT_EQ(ring.used_index(), 2);
  // 0xfffd is slot 5: slots 5, 6, 7, 0, 1, as literal bytes.
  EXPECT_EQ(guest_.read(ring.used_ring() + 4 + 40, 24),
            (Bytes{1, 0, 0, 0, 10, 0, 0, 0, 2, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, 30, 0, 0, 0}));
  EXPECT_EQ(guest_.read(ring.used_ring() + 4, 16),
            (Bytes{4, 0, 0, 0, 40, 0, 0, 0, 5, 0, 0, 0, 50, 0, 0, 0}));
  EXPECT_EQ(guest_.read(ring.used_ring() + 4 + 16, 24), Bytes(24, 0));
  EXPECT_EQ(guest_.read(ring.used_ring() + 4 + 64, 2), Bytes(2, 0));  // avail_event stays
}

// 2.7.8 and 2.7.10: VIRTQ_USED_F_NO_NOTIFY is 1 from the start: this ring is polled.
TEST_F(SplitDeviceTest, KicksAreSuppressedFromTheStart) {
  EXPECT_EQ(guest_.read(tx_.split().used_ring(), 4), (Bytes{0, 0, 0, 0}));
  const DeviceUnderTest queue = device(tx_, kVersion1);
  EXPECT_EQ(guest_.read(tx_.split().used_ring(), 4), (Bytes{1, 0, 0, 0}));
}

// 2.7.7.2: VIRTQ_AVAIL_F_NO_INTERRUPT is 1; other bits mean nothing.
TEST_F(SplitDeviceTest, EventsAreSuppressedByTheGuest) {
  SplitDevice end(tx_.split().ring(), 0, {.indirect = true});
  EXPECT_TRUE(end.wants_event());
  guest_.write(tx_.split().avail(), {1, 0});
  EXPECT_FALSE(end.wants_event());
  guest_.write(tx_.split().avail(), {0xfe, 0xff});
  EXPECT_TRUE(end.wants_event());
}

// Nothing but the used ring is ever written on the transmit side.
TEST_F(SplitDeviceTest, TransmitWritesOnlyTheUsedRing) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  for (std::uint16_t i = 0; i < 256; ++i) {
    put_frame(tx_, i, kTxBuffers + 2048ull * i, pattern(300, i));
    tx_.put_head(i);
  }
  tx_.show();
  const std::size_t until_used = tx_.split().used_ring() - kTxRing;
  const Bytes ring_before = guest_.read(kTxRing, until_used);
  const Bytes buffers_before = guest_.read(kTxBuffers, 2048 * 256);
  EXPECT_EQ(transmit_all(queue).size(), 256U);
  EXPECT_EQ(guest_.read(kTxRing, until_used), ring_before);
  EXPECT_EQ(guest_.read(kTxBuffers, 2048 * 256), buffers_before);
}

// 2.7.7.2: an event is wanted when the used index passed used_event, modulo 2^16, and only then.
TEST_F(SplitDeviceTest, EventIndexIsPassedNotEqual) {
  const struct {
    std::uint16_t event, from, to;
    bool wanted;
  } cases[] = {{10, 8, 14, true},  {0xfffe, 0xfffc, 2, true}, {20, 8, 14, false},
               {14, 8, 14, false}, {13, 8, 14, true},         {8, 8, 14, true},
               {7, 8, 14, false},  {2, 0xfffc, 2, false},     {1, 0xfffc, 2, true}};
  for (const auto& sample : cases) {
    FakeQueue ring(guest_, kTxRing, 256, sample.from);
    SplitDevice end(ring.ring(), sample.from, {.event_index = true});
    ring.event_at(sample.event);
    EXPECT_TRUE(end.wants_event());   // what came before this object is unknown
    EXPECT_FALSE(end.wants_event());  // nothing since
    ring.suppress_events(true);       // the flag means nothing now
    const std::vector<virtq::UsedElement> elements(6);
    end.publish(elements.data(), static_cast<std::uint16_t>(sample.to - sample.from));
    EXPECT_EQ(end.wants_event(), sample.wanted) << sample.event;
    EXPECT_FALSE(end.wants_event()) << sample.event;
  }
}

// 2.7.10.1: with event indices kicks are asked for 65,535 chains ahead, that is never.
TEST_F(SplitDeviceTest, KicksAreSuppressedByEventIndexToo) {
  FakeQueue ring(guest_, kTxRing, 256, 5);
  SplitDevice end(ring.ring(), 5, {.event_index = true});
  end.suppress_kicks();
  EXPECT_EQ(guest_.read(ring.used_ring(), 2), (Bytes{1, 0}));
  EXPECT_EQ(guest_.read(ring.used_ring() + 4 + 8 * 256, 2), (Bytes{4, 0}));
}

}  // namespace
}  // namespace vswitch::testing
