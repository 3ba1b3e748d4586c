// The device's end of the split ring by itself (virtio 1.2, 2.7): positions, wraps, suppression.
#include "dataplane/virtq/split_device.h"

#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using ::testing::ElementsAre;
using virtq::Access;
using virtq::Chain;
using virtq::Fetch;
using virtq::SplitDevice;

class SplitDeviceTest : public DeviceQueueTest {
 protected:
  SplitDeviceTest() : translator_(*guest_.memory()), segments_(64) {
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
  SplitDevice end(tx_.ring(), 0, {.indirect = true});
  EXPECT_EQ(end.peek(32), 0U);
  EXPECT_EQ(fetch(end), Fetch::kEmpty);
  EXPECT_EQ(end.position(), 0);
}

TEST_F(SplitDeviceTest, ChainSaysWhatWasOffered) {
  SplitDevice end(tx_.ring(), 0, {.indirect = true});
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
  SplitDevice end(tx_.ring(), 0, {.indirect = true});
  tx_.describe(0, kTxBuffers, 100, kNextFlag, 1);
  tx_.describe(1, 0xdead0000, 50);
  tx_.offer(0);
  EXPECT_EQ(fetch(end), Fetch::kBadChain);
  EXPECT_EQ(chain_.id, 0);
  EXPECT_EQ(chain_.reason, DropReason::kUnmappedAddress);
  EXPECT_EQ(arena_.count, 0U);
}

TEST_F(SplitDeviceTest, ArenaTooSmallForAChain) {
  SplitDevice end(tx_.ring(), 0, {.indirect = true});
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
  SplitDevice end(tx_.ring(), 0, {.indirect = true});
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
  SplitDevice end(tx_.ring(), 0, {.indirect = true});
  for (std::uint16_t i = 0; i < 100; ++i) tx_.put_head(i);
  EXPECT_EQ(end.peek(8), 0U);  // not shown yet
  tx_.show();
  EXPECT_EQ(end.peek(8), 8U);
  EXPECT_EQ(end.peek(1000), 32U);
  EXPECT_EQ(SplitDevice::backlog(tx_.ring(), 0), 100);
  EXPECT_EQ(SplitDevice::backlog(tx_.ring(), 98), 2);
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
  EXPECT_EQ(guest_.read(tx_.used_ring(), 4), (Bytes{0, 0, 0, 0}));
  const SplitQueue queue = device(tx_, kVersion1);
  EXPECT_EQ(guest_.read(tx_.used_ring(), 4), (Bytes{1, 0, 0, 0}));
}

// 2.7.7.2: VIRTQ_AVAIL_F_NO_INTERRUPT is 1; other bits mean nothing.
TEST_F(SplitDeviceTest, EventsAreSuppressedByTheGuest) {
  SplitDevice end(tx_.ring(), 0, {.indirect = true});
  EXPECT_TRUE(end.wants_event());
  guest_.write(tx_.avail(), {1, 0});
  EXPECT_FALSE(end.wants_event());
  guest_.write(tx_.avail(), {0xfe, 0xff});
  EXPECT_TRUE(end.wants_event());
}

// Nothing but the used ring is ever written on the transmit side.
TEST_F(SplitDeviceTest, TransmitWritesOnlyTheUsedRing) {
  SplitQueue queue = device(tx_, kVersion1);
  for (std::uint16_t i = 0; i < 256; ++i) {
    put_frame(tx_, i, kTxBuffers + 2048ull * i, pattern(300, i));
    tx_.put_head(i);
  }
  tx_.show();
  const std::size_t until_used = tx_.used_ring() - kTxRing;
  const Bytes ring_before = guest_.read(kTxRing, until_used);
  const Bytes buffers_before = guest_.read(kTxBuffers, 2048 * 256);
  EXPECT_EQ(transmit_all(queue).size(), 256U);
  EXPECT_EQ(guest_.read(kTxRing, until_used), ring_before);
  EXPECT_EQ(guest_.read(kTxBuffers, 2048 * 256), buffers_before);
}

class RingSizeTest : public DeviceQueueTest, public ::testing::WithParamInterface<std::uint32_t> {};

// Many rounds through rings of every kind of size, both sides, started just before the index wraps.
TEST_P(RingSizeTest, ManyRounds) {
  const std::uint32_t size = GetParam();
  FakeQueue tx(guest_, kTxRing, size, 0xff80);
  FakeQueue rx(guest_, kRxRing, size, 0xff80);
  SplitQueue from = device(tx, kVersion1, 0xff80);
  SplitQueue to = device(rx, kVersion1, 0xff80);
  std::uint32_t sent = 0;
  while (sent < 1000) {
    const std::uint32_t batch = std::min(size, 1 + sent % 61);
    for (std::uint32_t i = 0; i < batch; ++i) {
      const auto slot = static_cast<std::uint16_t>((sent + i) % size);
      put_frame(tx, slot, kTxBuffers + 128 * (slot % 4096ull), pattern(60, sent + i));
      tx.put_head(slot);
      rx.describe(slot, kRxBuffers + 128 * (slot % 4096ull), 100, kWriteFlag);
      rx.put_head(slot);
    }
    tx.show();
    rx.show();
    while (from.read(burst_, counters_) != 0) {
      for (std::uint32_t i = 0; i < burst_.count; ++i) receive(to, burst_.frames[i]);
      from.release();
    }
    ASSERT_EQ(tx.used_index(), tx.offered());
    ASSERT_EQ(rx.used_index(), rx.offered());
    for (std::uint32_t i = 0; i < batch; ++i) {
      const auto slot = static_cast<std::uint32_t>((sent + i) % size);
      const auto index = static_cast<std::uint16_t>(0xff80 + sent + i);
      ASSERT_EQ(tx.used(index), (Used{slot, 0}));
      ASSERT_EQ(rx.used(index), (Used{slot, 72}));
      ASSERT_EQ(guest_.read(kRxBuffers + 128 * (slot % 4096ull) + 12, 60), pattern(60, sent + i));
    }
    sent += batch;
  }
  EXPECT_EQ(drops(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RingSizeTest, ::testing::Values(1, 2, 4, 64, 256, 32768));

// 2.7: the largest ring, entirely in use at once.
TEST_F(SplitDeviceTest, LargestRingFull) {
  FakeQueue ring(guest_, kTxRing, 32768);
  SplitQueue queue = device(ring, kVersion1);
  for (std::uint32_t i = 0; i < 32768; ++i) {
    ring.describe(i, kTxBuffers + 16 * (i % 1024), 72);
    ring.put_head(static_cast<std::uint16_t>(i));
  }
  ring.show();
  std::uint32_t frames = 0;
  while (queue.read(burst_, counters_) != 0) {
    frames += burst_.count;
    queue.release();
  }
  EXPECT_EQ(frames, 32768U);
  EXPECT_EQ(ring.used_index(), 32768);
  EXPECT_EQ(ring.used(32767), (Used{32767, 0}));
}

// One legal chain through the whole of the largest ring.
TEST_F(SplitDeviceTest, LongestChainOfTheLargestRing) {
  FakeQueue ring(guest_, kTxRing, 32768);
  SplitQueue queue = device(ring, kVersion1);
  const Bytes frame = pattern(32768 - 12, 1);
  guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
  for (std::uint32_t i = 0; i < 32768; ++i) {
    ring.describe(i, kTxBuffers + i, 1, i == 32767 ? 0 : kNextFlag,
                  static_cast<std::uint16_t>(i + 1));
  }
  ring.offer(0);
  EXPECT_THAT(transmit(queue), ElementsAre(frame));
}

}  // namespace
}  // namespace vswitch::testing
