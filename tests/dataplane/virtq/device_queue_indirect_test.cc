// Indirect descriptor tables (virtio 1.2, 2.7.5.3): legal ones at odd places, and malformed ones.
#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using ::testing::ElementsAre;
using virtq::BrokenRing;

class IndirectTest : public DeviceQueueTest {
 protected:
  IndirectTest() { guest_.write(kTxBuffers, concat(Bytes(12, 0), frame_)); }

  // A table at `place` of two entries: the header, and the frame.
  void put_table(const FakeGuest& guest, std::uint64_t place) const {
    guest.put_descriptor(place, kTxBuffers, 12, kNextFlag, 1);
    guest.put_descriptor(place + 16, kTxBuffers + 12, 60, 0, 0);
  }

  void expect_delivered(std::uint16_t head) {
    SplitQueue queue = device(tx_, kVersion1);
    tx_.offer(head);
    EXPECT_THAT(transmit(queue), ElementsAre(frame_));
    EXPECT_EQ(drops(), 0U);
    EXPECT_THAT(tx_.used_since(0), ElementsAre(Used{head, 0}));
  }
  void expect_refused(std::uint16_t head, DropReason reason, bool negotiated = true) {
    SplitQueue queue = device(tx_, kVersion1, 0, negotiated);
    tx_.offer(head);
    put_frame(tx_, 200, kTxBuffers + 0x1000, pattern(61, 9));
    tx_.offer(200);
    EXPECT_THAT(transmit(queue), ElementsAre(pattern(61, 9)));
    EXPECT_EQ(drops(reason), 1U) << drop_reason_label(reason);
    EXPECT_EQ(drops(), 1U);
    EXPECT_THAT(tx_.used_since(0), ElementsAre(Used{head, 0}, Used{200, 0}));
    EXPECT_EQ(queue.broken(), BrokenRing::kNone);
  }

  const Bytes frame_ = pattern(60, 5);
};

TEST_F(IndirectTest, TableOfTwo) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_delivered(0);
}

TEST_F(IndirectTest, TablesAtEveryOddAddress) {
  SplitQueue queue = device(tx_, kVersion1);
  for (std::uint16_t offset = 1; offset < 64; ++offset) {
    put_table(guest_, kTables + offset);
    tx_.describe(0, kTables + offset, 32, kIndirectFlag);
    tx_.offer(0);
    ASSERT_THAT(transmit(queue), ElementsAre(frame_)) << offset;
  }
}

// The boundary cuts a table before, inside and between its entries.
TEST_F(IndirectTest, TablesAcrossTwoRegions) {
  constexpr std::uint64_t kBoundary = 0x20010000;
  for (std::uint64_t before = 1; before < 32; ++before) {
    const FakeGuest guest({{0x20000000, 0x10000}, {kBoundary, 0x10000}});
    FakeQueue ring(guest, 0x20000000, 16);
    guest.write(0x20011000, concat(Bytes(12, 0), frame_));
    guest.put_descriptor(kBoundary - before, 0x20011000, 12, kNextFlag, 1);
    guest.put_descriptor(kBoundary - before + 16, 0x2001100c, 60, 0, 0);
    SplitQueue queue(virtq::SplitDevice(ring.ring(), 0, {.indirect = true}), guest.memory(),
                     kVersion1, 16);
    ring.describe(0, kBoundary - before, 32, kIndirectFlag);
    ring.offer(0);
    ASSERT_THAT(transmit(queue), ElementsAre(frame_)) << before;
  }
}

// Entries may be chained in any order, and not all need be used.
TEST_F(IndirectTest, EntriesInAnyOrder) {
  guest_.put_descriptor(kTables, kTxBuffers, 12, kNextFlag, 3);
  guest_.put_descriptor(kTables + 16, kTxBuffers + 32, 40, 0, 0);
  guest_.put_descriptor(kTables + 32, 0xdead0000, 4096, 0, 0);
  guest_.put_descriptor(kTables + 48, kTxBuffers + 12, 20, kNextFlag, 1);
  tx_.describe(0, kTables, 64, kIndirectFlag);
  expect_delivered(0);
}

// 2.7.5.3.1: direct descriptors may come before the table; 2.7.5.3.2: WRITE on the descriptor that
// refers to it means nothing.
TEST_F(IndirectTest, TwoDirectOnesThenATableWithWriteSet) {
  guest_.put_descriptor(kTables, kTxBuffers + 32, 40, 0, 0);
  tx_.describe(0, kTxBuffers, 12, kNextFlag, 1);
  tx_.describe(1, kTxBuffers + 12, 20, kNextFlag, 2);
  tx_.describe(2, kTables, 16, kIndirectFlag | kWriteFlag);
  expect_delivered(0);
}

TEST_F(IndirectTest, TableInsideATable) {
  put_table(guest_, kTables + 0x100);
  guest_.put_descriptor(kTables, kTables + 0x100, 32, kIndirectFlag, 0);
  tx_.describe(0, kTables, 16, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(IndirectTest, TableInsideATableBehindAGoodEntry) {
  put_table(guest_, kTables + 0x100);
  guest_.put_descriptor(kTables, kTxBuffers, 12, kNextFlag, 1);
  guest_.put_descriptor(kTables + 16, kTables + 0x100, 32, kIndirectFlag, 0);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(IndirectTest, TableWithNext) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 32, kIndirectFlag | kNextFlag, 1);
  tx_.describe(1, kTxBuffers, 12);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(IndirectTest, NotNegotiated) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable, false);
}

TEST_F(IndirectTest, EmptyTable) {
  tx_.describe(0, kTables, 0, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(IndirectTest, TableShorterThanOneEntry) {
  tx_.describe(0, kTables, 15, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(IndirectTest, TableLengthIsNoMultipleOfSixteen) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 33, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(IndirectTest, TableWrapsAroundTheAddressSpace) {
  tx_.describe(0, 0xfffffffffffffff0, 32, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(IndirectTest, TableUnmapped) {
  tx_.describe(0, 0xdead0000, 32, kIndirectFlag);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_F(IndirectTest, SecondEntryUnmapped) {
  guest_.put_descriptor(kEnd - 16, kTxBuffers, 12, kNextFlag, 1);
  tx_.describe(0, kEnd - 16, 32, kIndirectFlag);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_F(IndirectTest, EntryCutOffByTheEndOfMemory) {
  guest_.put_descriptor(kEnd - 24, kTxBuffers, 12, kNextFlag, 1);
  tx_.describe(0, kEnd - 24, 32, kIndirectFlag);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_F(IndirectTest, NextOutOfTheTable) {
  guest_.put_descriptor(kTables, kTxBuffers, 12, kNextFlag, 2);
  guest_.put_descriptor(kTables + 32, kTxBuffers + 12, 60, 0, 0);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_refused(0, DropReason::kDescriptorIndex);
}

TEST_F(IndirectTest, LoopInTheTable) {
  guest_.put_descriptor(kTables, kTxBuffers, 12, kNextFlag, 1);
  guest_.put_descriptor(kTables + 16, kTxBuffers, 12, kNextFlag, 0);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_refused(0, DropReason::kDescriptorLoop);
}

TEST_F(IndirectTest, DeviceWritableEntry) {
  guest_.put_descriptor(kTables, kTxBuffers, 72, kWriteFlag, 0);
  tx_.describe(0, kTables, 16, kIndirectFlag);
  expect_refused(0, DropReason::kWrongDirection);
}

// 2.7.5.3.1: no chain longer than the queue, in a table neither.
TEST_F(IndirectTest, AsManyEntriesAsTheQueueHas) {
  const Bytes frame = pattern(1500, 2);
  guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
  guest_.put_descriptor(kTables, kTxBuffers, 12, kNextFlag, 1);
  for (std::uint16_t i = 1; i < 256; ++i) {
    const bool last = i == 255;  // 254 entries of 5 bytes, one of 230
    guest_.put_descriptor(kTables + 16ull * i, kTxBuffers + 12 + 5ull * (i - 1u), last ? 230 : 5,
                          last ? 0 : kNextFlag, static_cast<std::uint16_t>(i + 1));
  }
  SplitQueue queue = device(tx_, kVersion1);
  tx_.describe(0, kTables, 256 * 16, kIndirectFlag);
  tx_.offer(0);
  EXPECT_THAT(transmit(queue), ElementsAre(frame));
  EXPECT_EQ(drops(), 0U);
}

TEST_F(IndirectTest, OneEntryMoreThanTheQueueHas) {
  for (std::uint16_t i = 0; i < 257; ++i) {
    guest_.put_descriptor(kTables + 16ull * i, kTxBuffers, 6, i == 256 ? 0 : kNextFlag,
                          static_cast<std::uint16_t>(i + 1));
  }
  tx_.describe(0, kTables, 257 * 16, kIndirectFlag);
  expect_refused(0, DropReason::kDescriptorLoop);
}

}  // namespace
}  // namespace vswitch::testing
