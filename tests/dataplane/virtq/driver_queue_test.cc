// virtio-net queues from the driver's side against a device played by hand. Headers and ring bytes
// are literals from virtio 1.2, 5.1.6 and 2.7.
#include "dataplane/virtq/driver_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace vswitch::virtq {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr std::uint64_t kVersion1 = 0x1'0000'0000;  // bit 32
constexpr std::uint64_t kMergeable = 0x8000;        // bit 15
constexpr std::uint64_t kAnyLayout = 0x800'0000;    // bit 27
constexpr std::uint64_t kLegacy = 0;
constexpr std::uint64_t kGuestBase = 0x4000'0000;
constexpr std::uint32_t kBufferBytes = 128;

// A queue of four descriptors and four buffers of 128 bytes.
class DriverQueueTest : public testing::Test {
 protected:
  DriverQueueTest() : buffers_(4 * kBufferBytes, 0xee) {
    ring_.descriptors = reinterpret_cast<Descriptor*>(memory_.data());
    ring_.avail = reinterpret_cast<RingHeader*>(memory_.data() + 64);
    ring_.used = reinterpret_cast<RingHeader*>(memory_.data() + 80);
    ring_.size = 4;
    area_ = {reinterpret_cast<std::byte*>(buffers_.data()), kGuestBase, kBufferBytes, 4};
  }

  std::unique_ptr<SplitDriver> driver() { return std::make_unique<SplitDriver>(ring_); }

  std::vector<int> descriptor(int index) {
    const auto* bytes = memory_.data() + 16 * index;
    return {bytes, bytes + 16};
  }
  int available_index() { return memory_[66] | memory_[67] << 8; }

  // The device uses chain `id` and claims to have written `length` bytes.
  void use(std::uint8_t id, std::uint8_t length) {
    std::uint8_t* element = memory_.data() + 84 + 8 * (used_ % 4);
    const std::array<std::uint8_t, 8> bytes = {id, 0, 0, 0, length, 0, 0, 0};
    std::memcpy(element, bytes.data(), bytes.size());
    ++used_;
  }
  void publish() { memory_[82] = static_cast<std::uint8_t>(used_); }

  std::uint8_t* buffer(int index) { return buffers_.data() + index * kBufferBytes; }
  void fill(int index, std::initializer_list<int> header, const std::string& content) {
    std::uint8_t* place = buffer(index);
    for (const int byte : header) *place++ = static_cast<std::uint8_t>(byte);
    std::memcpy(place, content.data(), content.size());
  }

  template <typename Queue>
  static std::string text(const Queue& queue, const typename Queue::Frame& frame) {
    std::string all;
    for (const auto& piece : queue.pieces(frame)) {
      all.append(reinterpret_cast<const char*>(piece.data), piece.length);
    }
    return all;
  }

  alignas(16) std::array<std::uint8_t, 128> memory_{};
  std::vector<std::uint8_t> buffers_;
  SplitRing ring_;
  BufferArea area_;
  unsigned used_ = 0;
};

using Transmit = DriverTransmitQueue<SplitDriver>;
using Receive = DriverReceiveQueue<SplitDriver>;

TEST_F(DriverQueueTest, SendsHeaderAndFrameAsOneDescriptor) {
  Transmit queue(driver(), area_, kVersion1);
  std::array<Transmit::Slot, 1> slots;
  ASSERT_EQ(queue.reserve(slots), 1U);
  EXPECT_EQ(slots[0].capacity, 116U);
  std::memset(slots[0].data, 0x77, 60);
  slots[0].length = 60;
  EXPECT_TRUE(queue.commit(slots));

  EXPECT_THAT(descriptor(0), ElementsAre(0, 0, 0, 0x40, 0, 0, 0, 0, 72, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(available_index(), 1);
  EXPECT_THAT(std::vector<int>(buffer(0), buffer(0) + 12), Each(0));
  EXPECT_THAT(std::vector<int>(buffer(0) + 12, buffer(0) + 72), Each(0x77));
  EXPECT_EQ(buffer(0)[72], 0xee);
}

TEST_F(DriverQueueTest, LegacyHeaderHasTenBytes) {
  Transmit queue(driver(), area_, kAnyLayout);
  std::array<Transmit::Slot, 1> slots;
  ASSERT_EQ(queue.reserve(slots), 1U);
  slots[0].length = 60;
  queue.commit(slots);
  EXPECT_EQ(descriptor(0)[8], 70);
  EXPECT_THAT(std::vector<int>(buffer(0), buffer(0) + 10), Each(0));
  EXPECT_EQ(buffer(0)[10], 0xee);
}

TEST_F(DriverQueueTest, MergeableAloneMakesTheHeaderTwelveBytes) {
  Transmit queue(driver(), area_, kMergeable);
  std::array<Transmit::Slot, 1> slots;
  ASSERT_EQ(queue.reserve(slots), 1U);
  EXPECT_EQ(slots[0].capacity, 116U);
}

TEST_F(DriverQueueTest, ABurstBecomesAvailableAtOnce) {
  Transmit queue(driver(), area_, kVersion1);
  std::array<Transmit::Slot, 8> slots;
  ASSERT_EQ(queue.reserve(slots), 4U);
  for (auto& slot : slots) slot.length = 60;
  queue.commit(std::span(slots).first(3));
  EXPECT_EQ(available_index(), 3);
  EXPECT_EQ(queue.in_flight(), 3U);
  EXPECT_EQ(queue.reserve(slots), 1U);
}

TEST_F(DriverQueueTest, SentBuffersComeBack) {
  Transmit queue(driver(), area_, kVersion1);
  std::array<Transmit::Slot, 4> slots;
  ASSERT_EQ(queue.reserve(slots), 4U);
  for (auto& slot : slots) slot.length = 60;
  queue.commit(slots);
  EXPECT_EQ(queue.reserve(slots), 0U);
  use(1, 0);
  use(0, 0);
  publish();
  ASSERT_EQ(queue.reserve(slots), 2U);
  EXPECT_EQ(slots[0].buffer, 1);
  EXPECT_EQ(slots[1].buffer, 0);
  EXPECT_EQ(queue.in_flight(), 2U);
}

TEST_F(DriverQueueTest, ReserveWithoutCommitTakesNothing) {
  Transmit queue(driver(), area_, kVersion1);
  std::array<Transmit::Slot, 4> slots;
  EXPECT_EQ(queue.reserve(slots), 4U);
  EXPECT_EQ(queue.reserve(slots), 4U);
  EXPECT_EQ(queue.in_flight(), 0U);
}

TEST_F(DriverQueueTest, PostsAllReceiveBuffersAtTheStart) {
  const Receive queue(driver(), area_, kVersion1 | kMergeable);
  EXPECT_EQ(available_index(), 4);
  EXPECT_THAT(descriptor(3),
              ElementsAre(0x80, 0x01, 0, 0x40, 0, 0, 0, 0, 128, 0, 0, 0, /*WRITE*/ 2, 0, 0, 0));
}

TEST_F(DriverQueueTest, ReceivesAFrameInOneBuffer) {
  Receive queue(driver(), area_, kVersion1 | kMergeable);
  fill(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}, "hello");
  use(0, 17);
  publish();
  std::array<Receive::Frame, 4> frames;
  ASSERT_EQ(queue.read(frames), 1U);
  EXPECT_EQ(frames[0].length, 5U);
  EXPECT_EQ(text(queue, frames[0]), "hello");
  EXPECT_EQ(available_index(), 4);
  queue.release();
  EXPECT_EQ(available_index(), 5);
  EXPECT_EQ(queue.read(frames), 0U);
}

TEST_F(DriverQueueTest, WithoutMergeableTheHeaderFieldDoesNotCount) {
  Receive queue(driver(), area_, kVersion1);
  fill(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9}, "hello");
  use(0, 17);
  publish();
  std::array<Receive::Frame, 4> frames;
  ASSERT_EQ(queue.read(frames), 1U);
  EXPECT_EQ(text(queue, frames[0]), "hello");
}

TEST_F(DriverQueueTest, LegacyReceiveHasTenHeaderBytes) {
  Receive queue(driver(), area_, kLegacy);
  fill(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "hello");
  use(0, 15);
  publish();
  std::array<Receive::Frame, 4> frames;
  ASSERT_EQ(queue.read(frames), 1U);
  EXPECT_EQ(text(queue, frames[0]), "hello");
}

TEST_F(DriverQueueTest, JoinsAFrameOverSeveralBuffers) {
  Receive queue(driver(), area_, kVersion1 | kMergeable);
  fill(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0}, "one ");
  fill(1, {}, "two ");
  fill(2, {}, "three");
  fill(3, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}, "next");
  use(0, 16);
  use(1, 4);
  use(2, 5);
  use(3, 16);
  publish();
  std::array<Receive::Frame, 4> frames;
  ASSERT_EQ(queue.read(frames), 2U);
  EXPECT_EQ(frames[0].length, 13U);
  EXPECT_EQ(frames[0].count, 3);
  EXPECT_EQ(text(queue, frames[0]), "one two three");
  EXPECT_EQ(text(queue, frames[1]), "next");
  queue.release();
  EXPECT_EQ(available_index(), 8);
}

TEST_F(DriverQueueTest, WaitsForTheRestOfAFrame) {
  Receive queue(driver(), area_, kVersion1 | kMergeable);
  fill(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0}, "one ");
  fill(1, {}, "two");
  std::array<Receive::Frame, 4> frames;
  use(0, 16);
  publish();
  EXPECT_EQ(queue.read(frames), 0U);
  queue.release();
  EXPECT_EQ(available_index(), 4);
  use(1, 3);
  publish();
  ASSERT_EQ(queue.read(frames), 1U);
  EXPECT_EQ(text(queue, frames[0]), "one two");
}

TEST_F(DriverQueueTest, CountsAndRecyclesBuffersWithoutAFrame) {
  Receive queue(driver(), area_, kVersion1 | kMergeable);
  fill(2, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "zero buffers");
  fill(3, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0}, "more than there are");
  use(0, 0);
  use(1, 11);
  use(2, 24);
  use(3, 31);
  publish();
  std::array<Receive::Frame, 4> frames;
  EXPECT_EQ(queue.read(frames), 0U);
  EXPECT_EQ(queue.counters().short_frames, 2U);
  EXPECT_EQ(queue.counters().bad_num_buffers, 2U);
  queue.release();
  EXPECT_EQ(available_index(), 8);
}

TEST_F(DriverQueueTest, AHeaderAloneIsAnEmptyFrame) {
  Receive queue(driver(), area_, kVersion1 | kMergeable);
  fill(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}, "");
  use(0, 12);
  publish();
  std::array<Receive::Frame, 4> frames;
  ASSERT_EQ(queue.read(frames), 1U);
  EXPECT_EQ(frames[0].length, 0U);
}

TEST_F(DriverQueueTest, DropsTheBeginningOfAFrameWhenTheDeviceGoes) {
  Receive queue(driver(), area_, kVersion1 | kMergeable);
  fill(0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0}, "never finished");
  use(0, 26);
  publish();
  std::array<Receive::Frame, 4> frames;
  ASSERT_EQ(queue.read(frames), 0U);
  queue.drop_partial();
  EXPECT_EQ(queue.ring().resume(), 1);
  queue.release();
  EXPECT_EQ(available_index(), 5);
  EXPECT_EQ(queue.ring().free_descriptors(), 0U);
}

TEST_F(DriverQueueTest, AsksForAKickOnlyWhenTheDeviceWantsIt) {
  Transmit queue(driver(), area_, kVersion1);
  std::array<Transmit::Slot, 1> slots;
  ASSERT_EQ(queue.reserve(slots), 1U);
  slots[0].length = 60;
  memory_[80] = 1;  // VIRTQ_USED_F_NO_NOTIFY
  EXPECT_FALSE(queue.commit(slots));
}

}  // namespace
}  // namespace vswitch::virtq
