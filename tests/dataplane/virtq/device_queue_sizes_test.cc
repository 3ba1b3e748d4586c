// Rings of every kind of size, many times round, and the largest ones full.
#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using ::testing::ElementsAre;

struct Shape {
  Layout layout;
  std::uint32_t size;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << layout_name(shape.layout) << " " << shape.size;
}

class RingSizeTest : public DeviceQueueFixture, public ::testing::WithParamInterface<Shape> {
 protected:
  // Both rings begin shortly before the 16-bit index wraps; of a packed ring that is any slot.
  static constexpr std::uint16_t kStart = 0xff80;

  RingSizeTest() : DeviceQueueFixture(GetParam().layout) {}

  static std::uint64_t place(std::uint16_t slot) { return 128 * (slot % 4096ull); }
};

TEST_P(RingSizeTest, ManyRounds) {
  const std::uint32_t size = GetParam().size;
  GuestRing tx = ring(kTxRing, size, kStart);
  GuestRing rx = ring(kRxRing, size, kStart);
  DeviceUnderTest from = device(tx, kVersion1);
  DeviceUnderTest to = device(rx, kVersion1);
  // More than 2^16 chains through the smallest.
  const std::uint32_t wanted = size < 8 ? 70'000 : 1'000;
  std::uint32_t sent = 0;
  while (sent < wanted) {
    const std::uint32_t batch = std::min(size, 1 + sent % 61);
    for (std::uint32_t i = 0; i < batch; ++i) {
      const auto slot = static_cast<std::uint16_t>((sent + i) % size);
      put_frame(tx, slot, kTxBuffers + place(slot), pattern(60, sent + i));
      tx.put_head(slot);
      rx.describe(slot, kRxBuffers + place(slot), 100, kWriteFlag);
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
    ASSERT_EQ(from.position(), tx.device_end());
    ASSERT_EQ(to.position(), rx.device_end());
    for (std::uint32_t i = 0; i < batch; ++i) {
      const auto slot = static_cast<std::uint16_t>((sent + i) % size);
      const auto index = static_cast<std::uint16_t>(kStart + sent + i);
      ASSERT_EQ(tx.used(index), (Used{slot, 0}));
      ASSERT_EQ(rx.used(index), (Used{slot, 72}));
      ASSERT_EQ(guest_.read(kRxBuffers + place(slot) + 12, 60), pattern(60, sent + i));
    }
    sent += batch;
  }
  EXPECT_EQ(drops(), 0U);
  EXPECT_EQ(tx.wrong_flags() + rx.wrong_flags(), 0U);
}

// Chains of 1, 2, 3... descriptors, as long as the ring allows, so that they lie over its end in
// every way.
TEST_P(RingSizeTest, ChainsOfEveryLength) {
  const std::uint32_t size = GetParam().size;
  GuestRing tx = ring(kTxRing, size);
  DeviceUnderTest queue = device(tx, kVersion1);
  const std::uint32_t longest = std::min(size, 40u);
  const Bytes frame = pattern(100, 7);
  guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
  for (std::uint16_t round = 0; round < 2000; ++round) {
    const std::uint32_t length = 1 + round % longest;
    for (std::uint32_t i = 0; i < length; ++i) {
      const bool last = i + 1 == length;  // two bytes each, the rest in the last
      tx.describe(i, kTxBuffers + 2 * i, last ? 112 - 2 * i : 2, last ? 0 : kNextFlag,
                  static_cast<std::uint16_t>(i + 1));
    }
    tx.offer(0);
    ASSERT_THAT(transmit(queue), ElementsAre(frame));
    ASSERT_THAT(tx.used_since(round), ElementsAre(Used{0, 0}));
    ASSERT_EQ(queue.position(), tx.device_end());
  }
  EXPECT_EQ(drops(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RingSizeTest,
                         ::testing::Values(Shape{Layout::kSplit, 1}, Shape{Layout::kSplit, 2},
                                           Shape{Layout::kSplit, 4}, Shape{Layout::kSplit, 64},
                                           Shape{Layout::kSplit, 256}, Shape{Layout::kSplit, 32768},
                                           Shape{Layout::kPacked, 1}, Shape{Layout::kPacked, 2},
                                           Shape{Layout::kPacked, 3}, Shape{Layout::kPacked, 7},
                                           Shape{Layout::kPacked, 100}, Shape{Layout::kPacked, 256},
                                           Shape{Layout::kPacked, 32768}));

class LargestRingTest : public DeviceQueueTest {};

// 2.7, 2.8.10.1: entirely in use at once.
TEST_P(LargestRingTest, Full) {
  GuestRing tx = ring(kTxRing, 32768);
  DeviceUnderTest queue = device(tx, kVersion1);
  for (std::uint32_t i = 0; i < 32768; ++i) {
    tx.describe(i, kTxBuffers + 16 * (i % 1024), 72);
    tx.put_head(static_cast<std::uint16_t>(i));
  }
  tx.show();
  std::uint32_t frames = 0;
  while (queue.read(burst_, counters_) != 0) {
    frames += burst_.count;
    queue.release();
  }
  EXPECT_EQ(frames, 32768U);
  EXPECT_EQ(tx.used_index(), 32768);
  EXPECT_EQ(tx.used(32767), (Used{32767, 0}));
}

// One legal chain through the whole of it.
TEST_P(LargestRingTest, OneChain) {
  GuestRing tx = ring(kTxRing, 32768);
  DeviceUnderTest queue = device(tx, kVersion1);
  const Bytes frame = pattern(32768 - 12, 1);
  guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
  for (std::uint32_t i = 0; i < 32768; ++i) {
    tx.describe(i, kTxBuffers + i, 1, i == 32767 ? 0 : kNextFlag,
                static_cast<std::uint16_t>(i + 1));
  }
  for (std::uint16_t round = 0; round < 3; ++round) {  // and again behind itself
    tx.offer(0);
    EXPECT_THAT(transmit(queue), ElementsAre(frame));
    EXPECT_THAT(tx.used_since(round), ElementsAre(Used{0, 0}));
  }
}

VSWITCH_FOR_BOTH_LAYOUTS(LargestRingTest);

}  // namespace
}  // namespace vswitch::testing
