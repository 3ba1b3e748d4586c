// The device's end of the packed ring by itself (virtio 1.2, 2.8): positions and wraps, what a used
// descriptor looks like, suppression, and rings that only a hostile guest writes.
#include "dataplane/virtq/packed_device.h"

#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using virtq::Access;
using virtq::BrokenRing;
using virtq::Chain;
using virtq::Fetch;
using virtq::PackedDevice;

class PackedDeviceTest : public DeviceQueueFixture {
 protected:
  PackedDeviceTest()
      : DeviceQueueFixture(Layout::kPacked), translator_(*guest_.memory()), segments_(64) {
    arena_ = {segments_.data(), 0, 64};
    guest_.write(kTxBuffers, concat(Bytes(12, 0), frame_));
  }
  Fetch fetch(PackedDevice& end) {
    return end.fetch<Access::kReadable>(translator_, arena_, chain_);
  }
  void receive_into(PackedQueue& queue) {
    const OwnFrame own(frame_);
    const Frame* const frames[] = {&own.frame()};
    queue.write(frames, 1, counters_);
  }
  // The flags that make a slot available in a round with this wrap counter.
  static std::uint16_t available(bool wrap, std::uint16_t flags = 0) {
    return static_cast<std::uint16_t>(flags | (wrap ? kAvailBit : kUsedBit));
  }
  Bytes slot_bytes(const FakePackedQueue& ring, std::uint32_t slot) const {
    return guest_.read(ring.place(slot), 16);
  }

  const Bytes frame_ = pattern(60, 5);
  Translator translator_;
  std::vector<Segment> segments_;
  SegmentArena arena_;
  Chain chain_;
};

TEST_F(PackedDeviceTest, EmptyRing) {
  PackedDevice end(tx_.packed().ring(), 0x8000, {});
  EXPECT_EQ(end.peek(32), 0U);
  EXPECT_EQ(fetch(end), Fetch::kEmpty);
  EXPECT_EQ(end.position(), 0x8000);
}

// 2.8.6: the id of the last descriptor names the list; those of the others mean nothing. A list may
// begin in one round and end in the next.
TEST_F(PackedDeviceTest, ListOverTheEndOfTheRing) {
  FakePackedQueue ring(guest_, kTxRing, 5, 3);
  PackedDevice end(ring.ring(), 0x8003, {});
  ring.put_slot(4, kTxBuffers + 4096, 50, 2, available(true, kNextFlag));
  ring.put_slot(0, kTxBuffers + 8192, 20, 0xabcd, available(false));
  ring.put_slot(3, kTxBuffers, 100, 1, available(true, kNextFlag));
  EXPECT_EQ(end.peek(32), 5U);  // at most; how many only fetching tells
  ASSERT_EQ(fetch(end), Fetch::kReady);
  EXPECT_EQ(chain_.id, 0xabcd);
  EXPECT_EQ(chain_.slots, 3);
  EXPECT_EQ(chain_.bytes, 170U);
  ASSERT_EQ(chain_.segment_count, 3U);
  EXPECT_EQ(chain_.segments[1].data, reinterpret_cast<std::byte*>(guest_.at(kTxBuffers + 4096)));
  EXPECT_EQ(chain_.segments[1].length, 50U);
  EXPECT_EQ(end.position(), 0x0001);
  EXPECT_EQ(fetch(end), Fetch::kEmpty);

  const PackedDevice::Used used[] = {PackedDevice::used(chain_, 0)};
  const Bytes after[] = {slot_bytes(ring, 4), slot_bytes(ring, 0)};
  end.publish(used, 1);
  // One used descriptor, in the first slot of the list: len 0, the id, AVAIL and USED both 1.
  EXPECT_EQ(guest_.read(ring.place(3) + 8, 8), (Bytes{0, 0, 0, 0, 0xcd, 0xab, 0x80, 0x80}));
  EXPECT_EQ(slot_bytes(ring, 4), after[0]);
  EXPECT_EQ(slot_bytes(ring, 0), after[1]);
}

// 2.8.3: WRITE in a used descriptor says that bytes were written.
TEST_F(PackedDeviceTest, UsedDescriptorsAsBytes) {
  FakePackedQueue ring(guest_, kTxRing, 3, 1);
  PackedDevice end(ring.ring(), 0x8001, {});
  const PackedDevice::Used used[] = {{7, 1, 0x01020304}, {8, 1, 0}, {0x1234, 1, 72}};
  end.publish(used, 3);
  EXPECT_EQ(guest_.read(ring.place(1) + 8, 8), (Bytes{4, 3, 2, 1, 7, 0, 0x82, 0x80}));
  EXPECT_EQ(guest_.read(ring.place(2) + 8, 8), (Bytes{0, 0, 0, 0, 8, 0, 0x80, 0x80}));
  EXPECT_EQ(guest_.read(ring.place(0) + 8, 8), (Bytes{72, 0, 0, 0, 0x34, 0x12, 0x02, 0x00}));
}

// An id is the guest's own business: echoed, and used for nothing.
TEST_F(PackedDeviceTest, IdBeyondTheRingIsEchoed) {
  FakePackedQueue ring(guest_, kTxRing, 4);
  PackedQueue queue(PackedDevice(ring.ring(), 0x8000, {}), guest_.memory(), kVersion1, 4);
  ring.put_slot(0, kTxBuffers, 72, 0xffff, available(true));
  ASSERT_EQ(queue.read(burst_, counters_), 1U);
  ASSERT_EQ(burst_.count, 1U);
  EXPECT_EQ(bytes_of(burst_.frames[0]), frame_);
  queue.release();
  EXPECT_EQ(guest_.read(ring.place(0) + 8, 8), (Bytes{0, 0, 0, 0, 0xff, 0xff, 0x80, 0x80}));
}

// R1: a refused list goes back with its id and length 0, its slots are skipped, and what follows it
// is served. In the middle of a burst, so that all is published together.
TEST_F(PackedDeviceTest, RefusedListInTheMiddleOfABurst) {
  FakePackedQueue ring(guest_, kTxRing, 7, 5);
  PackedQueue queue(PackedDevice(ring.ring(), ring.device_start(), {}), guest_.memory(), kVersion1,
                    7);
  ring.put_slot(5, kTxBuffers, 72, 11, available(true));
  ring.put_slot(6, kTxBuffers, 72, 1, available(true, kNextFlag));
  ring.put_slot(0, 0xdead0000, 72, 2, available(false, kNextFlag));
  ring.put_slot(1, kTxBuffers, 72, 12, available(false));
  ring.put_slot(2, kTxBuffers, 72, 13, available(false));
  ASSERT_EQ(queue.read(burst_, counters_), 3U);
  EXPECT_EQ(burst_.count, 2U);
  EXPECT_EQ(drops(DropReason::kUnmappedAddress), 1U);
  EXPECT_EQ(drops(), 1U);
  EXPECT_EQ(queue.position(), 0x0003);
  queue.release();
  EXPECT_EQ(guest_.read(ring.place(5) + 8, 8), (Bytes{0, 0, 0, 0, 11, 0, 0x80, 0x80}));
  EXPECT_EQ(guest_.read(ring.place(6) + 8, 8), (Bytes{0, 0, 0, 0, 12, 0, 0x80, 0x80}));
  EXPECT_EQ(guest_.read(ring.place(0) + 12, 4), (Bytes{2, 0, 1, 0x80}));  // as the guest left it
  EXPECT_EQ(guest_.read(ring.place(1) + 12, 4), (Bytes{12, 0, 0, 0x80}));
  EXPECT_EQ(guest_.read(ring.place(2) + 8, 8), (Bytes{0, 0, 0, 0, 13, 0, 0, 0}));
  ring.put_slot(3, kTxBuffers, 72, 14, available(false));
  ASSERT_EQ(queue.read(burst_, counters_), 1U);
  EXPECT_EQ(burst_.count, 1U);
}

// R2: no descriptor of the ring ends the list.
TEST_F(PackedDeviceTest, EndlessListBreaksTheRing) {
  for (const std::uint32_t size : {1u, 4u, 7u}) {
    FakePackedQueue ring(guest_, kTxRing, size);
    PackedQueue queue(PackedDevice(ring.ring(), 0x8000, {}), guest_.memory(), kVersion1, size);
    for (std::uint32_t i = 0; i < size; ++i) {
      ring.put_slot(i, kTxBuffers, 72, 1, available(true, kNextFlag));
    }
    EXPECT_EQ(queue.read(burst_, counters_), 0U);
    EXPECT_EQ(queue.broken(), BrokenRing::kEndlessList);
    EXPECT_EQ(queue.position(), 0x8000);
    // Nothing is served any more, however the ring looks now.
    for (const std::uint16_t flags : {std::uint16_t{0}, kWriteFlag}) {
      for (std::uint32_t i = 0; i < size; ++i) {
        ring.put_slot(i, kTxBuffers, 72, 1, available(true, flags));
      }
      EXPECT_EQ(queue.read(burst_, counters_), 0U);
      receive_into(queue);
      for (std::uint32_t i = 0; i < size; ++i) {
        EXPECT_EQ(ring.slot_flags(i), available(true, flags));
      }
    }

    FakePackedQueue again(guest_, kTxRing, size);
    PackedQueue fresh(PackedDevice(again.ring(), 0x8000, {}), guest_.memory(), kVersion1, size);
    again.put_slot(0, kTxBuffers, 72, 1, available(true));
    EXPECT_EQ(fresh.read(burst_, counters_), 1U);
  }
}

// A list that goes on into slots which are still ours has no end of its own either.
TEST_F(PackedDeviceTest, ListIntoSlotsThatAreStillOut) {
  FakePackedQueue ring(guest_, kTxRing, 4);
  PackedDevice end(ring.ring(), 0x8000, {});
  ring.put_slot(0, kTxBuffers, 72, 9, available(true));
  ASSERT_EQ(fetch(end), Fetch::kReady);
  for (const std::uint32_t slot : {1u, 2u, 3u}) {
    ring.put_slot(slot, kTxBuffers, 72, 1, available(true, kNextFlag));
  }
  EXPECT_EQ(fetch(end), Fetch::kBroken);
  EXPECT_EQ(end.broken(), BrokenRing::kEndlessList);
  const PackedDevice::Used used[] = {{9, 1, 0}};
  end.publish(used, 1);  // what was taken before goes back all the same
  EXPECT_EQ(ring.slot_flags(0), kAvailBit | kUsedBit);
}

// The flags of slots that are still out say what the guest wants them to; nothing is taken twice.
TEST_F(PackedDeviceTest, FlagsFlippedBehindOutstandingChains) {
  for (const std::uint32_t size : {1u, 4u}) {
    FakePackedQueue ring(guest_, kTxRing, size);
    PackedDevice end(ring.ring(), 0x8000, {});
    for (std::uint32_t i = 0; i < size; ++i) ring.put_slot(i, kTxBuffers, 72, 3, available(true));
    std::vector<PackedDevice::Used> used;
    for (std::uint32_t i = 0; i < size; ++i) {
      ASSERT_EQ(fetch(end), Fetch::kReady);
      used.push_back(PackedDevice::used(chain_, 0));
    }
    for (const std::uint16_t flags : {kAvailBit, kUsedBit}) {
      for (std::uint32_t i = 0; i < size; ++i) ring.show_slot(i, flags);
      EXPECT_EQ(end.peek(32), 0U);
      EXPECT_EQ(fetch(end), Fetch::kEmpty);
      Segment segments[8];
      PackedDevice::Used elements[8];
      EXPECT_EQ(
          end.fetch_simple<Access::kReadable>(translator_.recent(), 8, 1 << 20, segments, elements),
          0U);
    }
    end.publish(used.data(), size);
    for (std::uint32_t i = 0; i < size; ++i) EXPECT_EQ(ring.slot_flags(i), kAvailBit | kUsedBit);
    EXPECT_EQ(end.position(), 0x0000);
    EXPECT_EQ(fetch(end), Fetch::kEmpty);
  }
}

TEST_F(PackedDeviceTest, RewoundListsComeAgain) {
  FakePackedQueue ring(guest_, kTxRing, 7);
  PackedDevice end(ring.ring(), 0x8000, {});
  // Two rounds: lists of 3, 1 and 2 slots, of which the last lies over the end in the second.
  std::uint16_t position = 0x8000;
  for (int round = 0; round < 14; ++round) {
    for (std::uint16_t i = 0; i < 6; ++i) {
      const bool next = i == 0 || i == 1 || i == 4;
      ring.describe(i, kTxBuffers, 10u + i, next ? kNextFlag : 0,
                    static_cast<std::uint16_t>(i + 1));
    }
    ring.put_head(0);
    ring.put_head(3);
    ring.put_head(4);
    ring.show();
    for (int time = 0; time < 3; ++time) {
      arena_.count = 0;
      std::vector<PackedDevice::Used> used;
      for (const std::uint16_t id : std::initializer_list<std::uint16_t>{0, 3, 4}) {
        ASSERT_EQ(fetch(end), Fetch::kReady);
        ASSERT_EQ(chain_.id, id);
        used.push_back(PackedDevice::used(chain_, 0));
      }
      EXPECT_THAT((std::vector<int>{used[0].slots, used[1].slots, used[2].slots}),
                  ElementsAre(3, 1, 2));
      ASSERT_EQ(fetch(end), Fetch::kEmpty);
      if (time == 0) {
        end.rewind(used.data(), 3);
        ASSERT_EQ(end.position(), position);
      } else if (time == 1) {
        end.rewind(used.data() + 1, 2);
        ASSERT_EQ(fetch(end), Fetch::kReady);
        ASSERT_EQ(chain_.id, 3);
        end.rewind(used.data(), 2);
        ASSERT_EQ(end.position(), position);
      } else {
        end.publish(used.data(), 3);
      }
    }
    position = ring.offered_raw();
    ASSERT_EQ(end.position(), position);
    ASSERT_EQ(ring.used_index(), 3 * (round + 1));
  }
  EXPECT_EQ(ring.wrong_flags(), 0U);
}

TEST_F(PackedDeviceTest, BacklogCountsChains) {
  FakePackedQueue ring(guest_, kTxRing, 5, 3);
  EXPECT_EQ(PackedDevice::backlog(ring.ring(), 0x8003), 0U);
  ring.describe(0, kTxBuffers, 10, kNextFlag, 1);
  ring.describe(1, kTxBuffers, 10);
  ring.describe(2, kTxBuffers, 10);
  ring.offer(0);
  ring.offer(2);
  ring.offer(0);
  EXPECT_EQ(PackedDevice::backlog(ring.ring(), 0x8003), 3U);
  EXPECT_EQ(PackedDevice::backlog(ring.ring(), 0x0000), 2U);
}

// 2.8.14: RING_EVENT_FLAGS_DISABLE is 1 from the start: this ring is polled.
TEST_F(PackedDeviceTest, KicksAreSuppressedFromTheStart) {
  EXPECT_EQ(guest_.read(tx_.packed().device_events(), 4), (Bytes{0, 0, 0, 0}));
  const DeviceUnderTest queue = device(tx_, kVersion1);
  EXPECT_EQ(guest_.read(tx_.packed().device_events(), 4), (Bytes{0, 0, 1, 0}));
  EXPECT_EQ(guest_.read(tx_.packed().driver_events(), 4), (Bytes{0, 0, 0, 0}));
}

// 2.8.14: flags 0 enable, 1 disable, 2 waits for a descriptor (only with EVENT_IDX); the other bits
// are reserved and mean nothing.
TEST_F(PackedDeviceTest, EventsAreSuppressedByTheGuest) {
  PackedDevice end(tx_.packed().ring(), 0x8000, {});
  const std::uint64_t events = tx_.packed().driver_events();
  EXPECT_TRUE(end.wants_event());
  for (const std::uint16_t reserved : std::initializer_list<std::uint16_t>{0, 0xfffc}) {
    guest_.put16(events + 2, static_cast<std::uint16_t>(1 | reserved));
    EXPECT_FALSE(end.wants_event());
    guest_.put16(events + 2, reserved);
    EXPECT_TRUE(end.wants_event());
    guest_.put16(events + 2, static_cast<std::uint16_t>(2 | reserved));  // not negotiated
    EXPECT_TRUE(end.wants_event());
  }
}

// The split rows of the same test, on rings of 16: passed is passed, over the wrap as well, and the
// other round is not.
TEST_F(PackedDeviceTest, EventDescriptorIsPassedNotEqual) {
  constexpr std::uint16_t kOne = 0x8000;  // wrap counter 1
  const struct {
    std::uint16_t event;
    std::uint16_t from;  // slots since the start
    bool wanted;
  } cases[] = {{10 | kOne, 8, true},   // 8 -> 14
               {8 | kOne, 8, true},    //
               {13 | kOne, 8, true},   //
               {14 | kOne, 8, false},  // not reached
               {15 | kOne, 8, false},  //
               {0, 8, false},          // the next round
               {10, 8, false},         //
               {7 | kOne, 8, false},   // long passed
               {14 | kOne, 12, true},  // 12 -> 2 of the next round
               {0, 12, true},          //
               {1, 12, true},          //
               {2, 12, false},         //
               {1 | kOne, 12, false},  // passed a round ago
               {11 | kOne, 12, false}, {13, 12, false},
               {14, 28, true},  // the same one round later: 28 is slot 12 of wrap counter 0
               {1 | kOne, 28, true},   {2 | kOne, 28, false},
               {14 | kOne, 28, false}};
  for (const auto& sample : cases) {
    FakePackedQueue ring(guest_, kTxRing, 16, sample.from);
    PackedDevice end(ring.ring(), ring.device_start(), {.event_index = true});
    ring.event_at(sample.event);
    EXPECT_TRUE(end.wants_event());   // what came before this object is unknown
    EXPECT_FALSE(end.wants_event());  // nothing since
    // Six slots in two batches, one of them a list.
    const PackedDevice::Used used[] = {{1, 1, 0}, {2, 3, 0}, {3, 2, 0}};
    end.publish(used, 1);
    end.publish(used + 1, 2);
    EXPECT_EQ(end.wants_event(), sample.wanted) << sample.event << " from " << sample.from;
    EXPECT_FALSE(end.wants_event()) << sample.event << " from " << sample.from;
  }
}

// Without a descriptor to wait for, flags decide with EVENT_IDX too; an offset beyond the ring is
// no place that is ever passed by accident.
TEST_F(PackedDeviceTest, EventFlagsWithEventIndex) {
  FakePackedQueue ring(guest_, kTxRing, 16);
  PackedDevice end(ring.ring(), 0x8000, {.event_index = true});
  const PackedDevice::Used used[] = {{1, 1, 0}};
  ring.suppress_events(true);
  EXPECT_FALSE(end.wants_event());
  end.publish(used, 1);
  ring.suppress_events(false);
  EXPECT_TRUE(end.wants_event());
  ring.event_at(0x8000 | 1);
  end.publish(used, 1);
  EXPECT_TRUE(end.wants_event());
  ring.event_at(0xffff);
  for (int i = 0; i < 64; ++i) {
    end.publish(used, 1);
    EXPECT_FALSE(end.wants_event());
  }
}

// Nothing but used descriptors is ever written on the transmit side.
TEST_F(PackedDeviceTest, TransmitWritesOnlyUsedDescriptors) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  for (std::uint16_t i = 0; i < 128; ++i) {  // lists of two slots
    const std::uint64_t address = kTxBuffers + 2048ull * i;
    guest_.write(address, concat(Bytes(12, 0), pattern(300, i)));
    tx_.describe(2u * i, address, 12, kNextFlag, static_cast<std::uint16_t>(2 * i + 1));
    tx_.describe(2u * i + 1, address + 12, 300);
    tx_.put_head(static_cast<std::uint16_t>(2 * i));
  }
  tx_.show();
  Bytes expected = guest_.read(kTxRing, 16 * 256 + 8);
  const Bytes buffers_before = guest_.read(kTxBuffers, 2048 * 128);
  EXPECT_EQ(transmit_all(queue).size(), 128U);
  for (std::uint32_t i = 0; i < 256; i += 2) {  // len 0, id, AVAIL | USED; the address stays
    const Bytes used{0, 0, 0, 0, static_cast<std::uint8_t>(i), 0, 0x80, 0x80};
    std::copy(used.begin(), used.end(), expected.begin() + 16 * i + 8);
  }
  EXPECT_EQ(guest_.read(kTxRing, 16 * 256 + 8), expected);
  EXPECT_EQ(guest_.read(kTxBuffers, 2048 * 128), buffers_before);
}

// Refused lists take work too: one poll walks a bounded number of descriptors.
TEST_F(PackedDeviceTest, WorkOfOnePollIsBoundedInDescriptors) {
  GuestRing tx = ring(kTxRing, 32768);
  DeviceUnderTest queue = device(tx, kVersion1);
  for (std::uint32_t i = 0; i < 1024; ++i) {
    tx.describe(i, 0xdead0000, 1, i == 1023 ? 0 : kNextFlag, static_cast<std::uint16_t>(i + 1));
  }
  for (int i = 0; i < 32; ++i) tx.offer(0);
  for (int poll = 0; poll < 32; ++poll) {
    EXPECT_THAT(transmit(queue), IsEmpty());
    EXPECT_EQ(taken_, 1U);
  }
  EXPECT_EQ(drops(DropReason::kUnmappedAddress), 32U);
  EXPECT_EQ(tx.used_index(), 32);
}

}  // namespace
}  // namespace vswitch::testing
