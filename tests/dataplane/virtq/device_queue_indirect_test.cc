// Indirect descriptor tables (virtio 1.2, 2.7.5.3 and 2.8.7): legal ones at odd places, and
// malformed ones.
#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using ::testing::ElementsAre;
using virtq::BrokenRing;

class IndirectFixture : public DeviceQueueFixture {
 protected:
  explicit IndirectFixture(Layout layout) : DeviceQueueFixture(layout) {
    guest_.write(kTxBuffers, concat(Bytes(12, 0), frame_));
  }

  // A table at `place` of two entries: the header, and the frame.
  void put_table(const FakeGuest& guest, std::uint64_t place) const {
    tx_.put_entry(guest, place, 0, 2, kTxBuffers, 12);
    tx_.put_entry(guest, place, 1, 2, kTxBuffers + 12, 60);
  }

  void expect_delivered(std::uint16_t head) {
    DeviceUnderTest queue = device(tx_, kVersion1);
    tx_.offer(head);
    EXPECT_THAT(transmit(queue), ElementsAre(frame_));
    EXPECT_EQ(drops(), 0U);
    EXPECT_THAT(tx_.used_since(0), ElementsAre(Used{head, 0}));
  }
  void expect_refused(std::uint16_t head, DropReason reason, bool negotiated = true) {
    DeviceUnderTest queue = device(tx_, kVersion1, negotiated);
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

class IndirectTest : public IndirectFixture, public ::testing::WithParamInterface<Layout> {
 protected:
  IndirectTest() : IndirectFixture(GetParam()) {}
};
class SplitIndirectTest : public IndirectFixture {
 protected:
  SplitIndirectTest() : IndirectFixture(Layout::kSplit) {}
};
class PackedIndirectTest : public IndirectFixture {
 protected:
  PackedIndirectTest() : IndirectFixture(Layout::kPacked) {}
};

TEST_P(IndirectTest, TableOfTwo) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_delivered(0);
}

TEST_P(IndirectTest, TablesAtEveryOddAddress) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  for (std::uint16_t offset = 1; offset < 64; ++offset) {
    put_table(guest_, kTables + offset);
    tx_.describe(0, kTables + offset, 32, kIndirectFlag);
    tx_.offer(0);
    ASSERT_THAT(transmit(queue), ElementsAre(frame_)) << offset;
  }
}

// The boundary cuts a table before, inside and between its entries.
TEST_P(IndirectTest, TablesAcrossTwoRegions) {
  constexpr std::uint64_t kBoundary = 0x20010000;
  for (std::uint64_t before = 1; before < 32; ++before) {
    const FakeGuest guest({{0x20000000, 0x10000}, {kBoundary, 0x10000}});
    GuestRing ring(layout_, guest, 0x20000000, 16);
    guest.write(0x20011000, concat(Bytes(12, 0), frame_));
    ring.put_entry(kBoundary - before, 0, 2, 0x20011000, 12);
    ring.put_entry(kBoundary - before, 1, 2, 0x2001100c, 60);
    DeviceUnderTest queue = make_device(guest, ring, kVersion1);
    ring.describe(0, kBoundary - before, 32, kIndirectFlag);
    ring.offer(0);
    ASSERT_THAT(transmit(queue), ElementsAre(frame_)) << before;
  }
}

TEST_P(IndirectTest, NotNegotiated) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable, false);
}

TEST_P(IndirectTest, EmptyTable) {
  tx_.describe(0, kTables, 0, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_P(IndirectTest, TableShorterThanOneEntry) {
  tx_.describe(0, kTables, 15, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_P(IndirectTest, TableLengthIsNoMultipleOfSixteen) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 33, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_P(IndirectTest, TableWrapsAroundTheAddressSpace) {
  tx_.describe(0, 0xfffffffffffffff0, 32, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_P(IndirectTest, TableUnmapped) {
  tx_.describe(0, 0xdead0000, 32, kIndirectFlag);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_P(IndirectTest, SecondEntryUnmapped) {
  tx_.put_entry(kEnd - 16, 0, 2, kTxBuffers, 12);
  tx_.describe(0, kEnd - 16, 32, kIndirectFlag);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_P(IndirectTest, EntryCutOffByTheEndOfMemory) {
  tx_.put_entry(kEnd - 24, 0, 2, kTxBuffers, 12);
  tx_.describe(0, kEnd - 24, 32, kIndirectFlag);
  expect_refused(0, DropReason::kUnmappedAddress);
}

TEST_P(IndirectTest, DeviceWritableEntry) {
  tx_.put_entry(kTables, 0, 1, kTxBuffers, 72, kWriteFlag);
  tx_.describe(0, kTables, 16, kIndirectFlag);
  expect_refused(0, DropReason::kWrongDirection);
}

// 2.7.5.3.1: no chain longer than the queue, in a table neither.
TEST_P(IndirectTest, AsManyEntriesAsTheQueueHas) {
  const Bytes frame = pattern(1500, 2);
  guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
  tx_.put_entry(kTables, 0, 256, kTxBuffers, 12);
  for (std::uint16_t i = 1; i < 256; ++i) {  // 254 entries of 5 bytes, one of 230
    tx_.put_entry(kTables, i, 256, kTxBuffers + 12 + 5ull * (i - 1u), i == 255 ? 230 : 5);
  }
  DeviceUnderTest queue = device(tx_, kVersion1);
  tx_.describe(0, kTables, 256 * 16, kIndirectFlag);
  tx_.offer(0);
  EXPECT_THAT(transmit(queue), ElementsAre(frame));
  EXPECT_EQ(drops(), 0U);
}

TEST_P(IndirectTest, OneEntryMoreThanTheQueueHas) {
  for (std::uint16_t i = 0; i < 257; ++i) {
    tx_.put_entry(kTables, i, 257, kTxBuffers, 6);
  }
  tx_.describe(0, kTables, 257 * 16, kIndirectFlag);
  expect_refused(0, DropReason::kDescriptorLoop);
}

VSWITCH_FOR_BOTH_LAYOUTS(IndirectTest);

// --- What only a split table can say: it is a chain itself.

// Entries may be chained in any order, and not all need be used.
TEST_F(SplitIndirectTest, EntriesInAnyOrder) {
  guest_.put_descriptor(kTables, kTxBuffers, 12, kNextFlag, 3);
  guest_.put_descriptor(kTables + 16, kTxBuffers + 32, 40, 0, 0);
  guest_.put_descriptor(kTables + 32, 0xdead0000, 4096, 0, 0);
  guest_.put_descriptor(kTables + 48, kTxBuffers + 12, 20, kNextFlag, 1);
  tx_.describe(0, kTables, 64, kIndirectFlag);
  expect_delivered(0);
}

// 2.7.5.3.1: direct descriptors may come before the table; 2.7.5.3.2: WRITE on the descriptor that
// refers to it means nothing.
TEST_F(SplitIndirectTest, TwoDirectOnesThenATableWithWriteSet) {
  guest_.put_descriptor(kTables, kTxBuffers + 32, 40, 0, 0);
  tx_.describe(0, kTxBuffers, 12, kNextFlag, 1);
  tx_.describe(1, kTxBuffers + 12, 20, kNextFlag, 2);
  tx_.describe(2, kTables, 16, kIndirectFlag | kWriteFlag);
  expect_delivered(0);
}

TEST_F(SplitIndirectTest, TableInsideATable) {
  put_table(guest_, kTables + 0x100);
  guest_.put_descriptor(kTables, kTables + 0x100, 32, kIndirectFlag, 0);
  tx_.describe(0, kTables, 16, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(SplitIndirectTest, TableInsideATableBehindAGoodEntry) {
  put_table(guest_, kTables + 0x100);
  guest_.put_descriptor(kTables, kTxBuffers, 12, kNextFlag, 1);
  guest_.put_descriptor(kTables + 16, kTables + 0x100, 32, kIndirectFlag, 0);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(SplitIndirectTest, TableWithNext) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 32, kIndirectFlag | kNextFlag, 1);
  tx_.describe(1, kTxBuffers, 12);
  expect_refused(0, DropReason::kBadIndirectTable);
}

TEST_F(SplitIndirectTest, NextOutOfTheTable) {
  guest_.put_descriptor(kTables, kTxBuffers, 12, kNextFlag, 2);
  guest_.put_descriptor(kTables + 32, kTxBuffers + 12, 60, 0, 0);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_refused(0, DropReason::kDescriptorIndex);
}

TEST_F(SplitIndirectTest, LoopInTheTable) {
  guest_.put_descriptor(kTables, kTxBuffers, 12, kNextFlag, 1);
  guest_.put_descriptor(kTables + 16, kTxBuffers, 12, kNextFlag, 0);
  tx_.describe(0, kTables, 32, kIndirectFlag);
  expect_refused(0, DropReason::kDescriptorLoop);
}

// --- What only a packed table can say.

// 2.8.7: all flags of an entry but WRITE are ignored: it can neither refer to a table
// nor end the table early or late.
TEST_F(PackedIndirectTest, FlagsOfEntriesAreIgnored) {
  const std::uint16_t noise[] = {kIndirectFlag, kNextFlag, kAvailBit, kUsedBit, 0x7ff8};
  DeviceUnderTest queue = device(tx_, kVersion1);
  for (const std::uint16_t flags : noise) {
    guest_.put_descriptor(kTables, kTxBuffers, 12, 0xbeef, flags);
    guest_.put_descriptor(kTables + 16, kTxBuffers + 12, 60, 0xffff, flags);
    tx_.describe(0, kTables, 32, kIndirectFlag);
    tx_.offer(0);
    EXPECT_THAT(transmit(queue), ElementsAre(frame_)) << flags;
  }
  EXPECT_EQ(drops(), 0U);
}

// 2.8.19: WRITE on the descriptor that refers to the table means nothing.
TEST_F(PackedIndirectTest, WriteOnTheReferenceIsIgnored) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 32, kIndirectFlag | kWriteFlag);
  expect_delivered(0);
}

TEST_F(PackedIndirectTest, TableWithNext) {
  put_table(guest_, kTables);
  tx_.describe(0, kTables, 32, kIndirectFlag | kNextFlag, 1);
  tx_.describe(1, kTxBuffers, 12);
  expect_refused(0, DropReason::kBadIndirectTable);
}

// 2.8.19: direct and indirect descriptors do not mix in one list.
TEST_F(PackedIndirectTest, TwoDirectOnesThenATable) {
  guest_.put_descriptor(kTables, kTxBuffers + 32, 40, 0, 0);
  tx_.describe(0, kTxBuffers, 12, kNextFlag, 1);
  tx_.describe(1, kTxBuffers + 12, 20, kNextFlag, 2);
  tx_.describe(2, kTables, 16, kIndirectFlag | kWriteFlag);
  expect_refused(0, DropReason::kBadIndirectTable);
}

}  // namespace
}  // namespace vswitch::testing
