// virtio-net queues from the driver's side over split and packed rings: the three layouts of a sent
// frame, when sent buffers are looked for, and receiving in order and over several buffers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/virtq/driver_queue.h"
#include "tests/dataplane/virtq/hand_device.h"

namespace vswitch::virtq {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr std::uint64_t kMergeable = 0x8000;        // bit 15
constexpr std::uint64_t kAnyLayout = 0x800'0000;    // bit 27
constexpr std::uint64_t kIndirect = 0x1000'0000;    // bit 28
constexpr std::uint64_t kVersion1 = 0x1'0000'0000;  // bit 32
constexpr std::uint64_t kInOrder = 0x8'0000'0000;   // bit 35
constexpr std::uint32_t kBufferBytes = 128;
constexpr std::size_t kBuffers = HandDevice::kFree;
constexpr std::size_t kTables = HandDevice::kFree + (1 << 20);

MATCHER_P2(IsReadable, address, length, "") {
  *result_listener << "address " << arg.address << " length " << arg.length;
  return arg.address == static_cast<std::uint64_t>(address) &&
         arg.length == static_cast<std::uint32_t>(length) && !arg.device_writable;
}

// S1: one of the two bits is enough, and neither takes the other's place in the rule.
TEST(ResolveTxLayout, AutoPushesWhereAnyLayoutIsTaken) {
  const auto automatic = [](std::uint64_t features) {
    return resolve_tx_layout(TxLayout::kAuto, features);
  };
  EXPECT_EQ(automatic(kVersion1), TxLayout::kPush);
  EXPECT_EQ(automatic(kAnyLayout), TxLayout::kPush);
  EXPECT_EQ(automatic(kVersion1 | kAnyLayout | kIndirect), TxLayout::kPush);
  EXPECT_EQ(automatic(kIndirect), TxLayout::kIndirect);
  EXPECT_EQ(automatic(kIndirect | kMergeable), TxLayout::kIndirect);
  EXPECT_EQ(automatic(0), TxLayout::kChain);
  EXPECT_EQ(automatic(kMergeable), TxLayout::kChain);
}

TEST(ResolveTxLayout, WhatCannotBeHadIsRefused) {
  EXPECT_EQ(resolve_tx_layout(TxLayout::kPush, kVersion1), TxLayout::kPush);
  EXPECT_EQ(resolve_tx_layout(TxLayout::kPush, kAnyLayout), TxLayout::kPush);
  EXPECT_EQ(resolve_tx_layout(TxLayout::kPush, kIndirect | kMergeable), std::nullopt);
  EXPECT_EQ(resolve_tx_layout(TxLayout::kIndirect, kIndirect), TxLayout::kIndirect);
  EXPECT_EQ(resolve_tx_layout(TxLayout::kIndirect, kVersion1 | kAnyLayout), std::nullopt);
  EXPECT_EQ(resolve_tx_layout(TxLayout::kChain, 0), TxLayout::kChain);
  EXPECT_EQ(resolve_tx_layout(TxLayout::kChain, ~std::uint64_t{0}), TxLayout::kChain);
}

template <typename Device>
class DriverQueueLayouts : public testing::Test {
 protected:
  using Ring = typename Device::Driver;
  using Transmit = DriverTransmitQueue<Ring>;
  using Receive = DriverReceiveQueue<Ring>;

  std::unique_ptr<Ring> ring(std::uint32_t size, std::uint64_t features) {
    device_ = std::make_unique<Device>(size);
    HandMemory& memory = device_->memory();
    area_ = {memory.at(kBuffers),
             memory.guest(kBuffers),
             kBufferBytes,
             size,
             {memory.at(kTables), memory.guest(kTables)}};
    return std::make_unique<Ring>(device_->ring(), ring_features(features));
  }
  void transmit(std::uint32_t size, std::uint64_t features, const TransmitOptions& options = {}) {
    transmit_ = std::make_unique<Transmit>(ring(size, features), area_, features, options);
  }
  void receive(std::uint32_t size, std::uint64_t features) {
    receive_ = std::make_unique<Receive>(ring(size, features), area_, features);
  }

  // Sends frames of these lengths, filled with 0x77; returns how many.
  std::uint32_t send(const std::vector<std::uint32_t>& lengths) {
    std::vector<TransmitSlot> slots(lengths.size());
    const std::uint32_t count = transmit_->reserve(slots);
    for (std::uint32_t i = 0; i < count; ++i) {
      slots[i].length = lengths[i];
      std::memset(slots[i].data, 0x77, lengths[i]);
    }
    if (count > 0) kicked_ = transmit_->commit(std::span(slots).first(count));
    return count;
  }

  std::uint8_t* buffer(std::uint32_t index) {
    return reinterpret_cast<std::uint8_t*>(device_->memory().at(kBuffers + index * kBufferBytes));
  }
  static constexpr std::uint64_t address(std::uint32_t index) {
    return HandMemory::kGuestBase + kBuffers + index * kBufferBytes;
  }
  // The device writes these bytes into the buffer of a chain: a header with num_buffers, a text.
  void fill(const TakenChain& chain, std::uint16_t num_buffers, const std::string& text) {
    auto* place = device_->memory().template host<std::uint8_t>(chain.segments.at(0).address);
    if (num_buffers != 0) {
      std::memset(place, 0, 12);
      std::memcpy(place + 10, &num_buffers, 2);
      place += 12;
    }
    std::memcpy(place, text.data(), text.size());
  }
  std::vector<std::string> read(std::size_t limit = 32) {
    std::vector<ReceivedFrame> frames(limit);
    frames.resize(receive_->read(frames));
    std::vector<std::string> texts;
    for (const auto& frame : frames) {
      std::string& text = texts.emplace_back();
      for (const auto& piece : receive_->pieces(frame)) {
        text.append(reinterpret_cast<const char*>(piece.data), piece.length);
      }
      EXPECT_EQ(text.size(), frame.length);
    }
    return texts;
  }

  std::unique_ptr<Device> device_;
  BufferArea area_;
  std::unique_ptr<Transmit> transmit_;
  std::unique_ptr<Receive> receive_;
  bool kicked_ = false;
};

struct LayoutNames {
  template <typename T>
  static std::string GetName(int) {
    return T::kPacked ? "Packed" : "Split";
  }
};
using Layouts = testing::Types<HandSplit, HandPacked>;
TYPED_TEST_SUITE(DriverQueueLayouts, Layouts, LayoutNames);

TYPED_TEST(DriverQueueLayouts, PushIsOneDescriptor) {
  this->transmit(4, kVersion1);
  EXPECT_EQ(this->transmit_->layout(), TxLayout::kPush);
  EXPECT_EQ(this->send({60, 61, 62, 63, 64}), 4U);
  EXPECT_TRUE(this->kicked_);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto chain = this->device_->take();
    ASSERT_TRUE(chain.has_value());
    EXPECT_EQ(chain->slots, 1U);
    EXPECT_FALSE(chain->indirect);
    EXPECT_THAT(chain->segments, ElementsAre(IsReadable(this->address(i), 72 + i)));
    EXPECT_THAT(std::vector<int>(this->buffer(i), this->buffer(i) + 12), Each(0));
    EXPECT_THAT(std::vector<int>(this->buffer(i) + 12, this->buffer(i) + 72), Each(0x77));
    EXPECT_EQ(this->buffer(i)[72 + i], 0xa5);
  }
}

TYPED_TEST(DriverQueueLayouts, IndirectIsOneDescriptorAndATableOfTwo) {
  this->transmit(4, kVersion1 | kIndirect, {.layout = TxLayout::kIndirect});
  EXPECT_EQ(this->send({60, 61, 62, 63, 64}), 4U);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto chain = this->device_->take();
    ASSERT_TRUE(chain.has_value());
    EXPECT_EQ(chain->slots, 1U);
    EXPECT_TRUE(chain->indirect);
    EXPECT_THAT(chain->segments, ElementsAre(IsReadable(this->address(i), 12),
                                             IsReadable(this->address(i) + 12, 60 + i)));
    EXPECT_THAT(std::vector<int>(this->buffer(i), this->buffer(i) + 12), Each(0));
    EXPECT_EQ(this->buffer(i)[12], 0x77);
  }
  // Nothing behind the last table.
  EXPECT_EQ(*this->device_->memory().at(kTables + 4 * 32), std::byte{0xa5});
}

TYPED_TEST(DriverQueueLayouts, ChainIsTwoDescriptorsAndHalfAsManyFrames) {
  this->transmit(TypeParam::kPacked ? 5 : 4, kVersion1, {.layout = TxLayout::kChain});
  EXPECT_EQ(this->send({60, 61, 62}), 2U);
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto chain = this->device_->take();
    ASSERT_TRUE(chain.has_value());
    EXPECT_EQ(chain->slots, 2U);
    EXPECT_THAT(chain->segments, ElementsAre(IsReadable(this->address(i), 12),
                                             IsReadable(this->address(i) + 12, 60 + i)));
    this->device_->use(chain->id, 0, 1, 2);
  }
  EXPECT_EQ(this->send({60, 61, 62}), 2U);
  EXPECT_EQ(this->transmit_->in_flight(), 2U);
}

// 2.7.5.3.1: not even a table is longer than the queue.
TYPED_TEST(DriverQueueLayouts, OnlyPushFitsAQueueOfOne) {
  for (const auto& [layout, frames] :
       {std::pair{TxLayout::kPush, 1U}, {TxLayout::kIndirect, 0U}, {TxLayout::kChain, 0U}}) {
    this->transmit(1, kVersion1 | kIndirect, {.layout = layout});
    EXPECT_EQ(this->send({60, 61}), frames) << tx_layout_name(layout);
    EXPECT_EQ(this->transmit_->in_flight(), frames) << tx_layout_name(layout);
  }
}

TYPED_TEST(DriverQueueLayouts, LegacyHeadersHaveTenBytesInEveryLayout) {
  for (const TxLayout layout : {TxLayout::kPush, TxLayout::kIndirect, TxLayout::kChain}) {
    this->transmit(4, kAnyLayout | kIndirect, {.layout = layout});
    ASSERT_EQ(this->send({60}), 1U);
    const auto chain = this->device_->take();
    ASSERT_TRUE(chain.has_value());
    EXPECT_THAT(std::vector<int>(this->buffer(0), this->buffer(0) + 10), Each(0));
    EXPECT_EQ(this->buffer(0)[10], 0x77);
    if (layout == TxLayout::kPush) {
      EXPECT_THAT(chain->segments, ElementsAre(IsReadable(this->address(0), 70)));
    } else {
      EXPECT_THAT(chain->segments, ElementsAre(IsReadable(this->address(0), 10),
                                               IsReadable(this->address(0) + 10, 60)));
    }
  }
}

TYPED_TEST(DriverQueueLayouts, AHeaderIsZeroWhateverStoodThere) {
  for (const auto policy : {HeaderPolicy::kCompareThenWrite, HeaderPolicy::kAlwaysWrite}) {
    this->transmit(1, kVersion1, {.header_policy = policy});
    for (int byte = 0; byte < 12; ++byte) {
      std::memset(this->buffer(0), 0, 12);
      this->buffer(0)[byte] = 1;
      ASSERT_EQ(this->send({60}), 1U);
      EXPECT_THAT(std::vector<int>(this->buffer(0), this->buffer(0) + 12), Each(0)) << byte;
      this->device_->use(this->device_->take()->id, 0);
    }
  }
}

TYPED_TEST(DriverQueueLayouts, LazyReclaimLooksOnlyWhenBuffersRunShort) {
  this->transmit(4, kVersion1);
  ASSERT_EQ(this->send({60, 60}), 2U);
  this->device_->use(this->device_->take()->id, 0);
  this->device_->use(this->device_->take()->id, 0);
  std::array<TransmitSlot, 3> slots;
  EXPECT_EQ(this->transmit_->reserve(std::span(slots).first(2)), 2U);
  EXPECT_EQ(this->transmit_->in_flight(), 2U);
  EXPECT_EQ(this->transmit_->reserve(slots), 3U);
  EXPECT_EQ(this->transmit_->in_flight(), 0U);
}

TYPED_TEST(DriverQueueLayouts, EagerReclaimAlwaysLooks) {
  this->transmit(4, kVersion1, {.reclaim = Reclaim::kEager});
  ASSERT_EQ(this->send({60, 60}), 2U);
  this->device_->use(this->device_->take()->id, 0);
  std::array<TransmitSlot, 1> slots;
  EXPECT_EQ(this->transmit_->reserve(slots), 1U);
  EXPECT_EQ(this->transmit_->in_flight(), 1U);
}

TYPED_TEST(DriverQueueLayouts, EveryLayoutGoesRoundLargeRings) {
  for (const TxLayout layout : {TxLayout::kPush, TxLayout::kIndirect, TxLayout::kChain}) {
    for (const bool in_order : {false, true}) {
      this->transmit(256, kVersion1 | kIndirect | (in_order ? kInOrder : 0), {.layout = layout});
      std::uint64_t sent = 0;
      for (int round = 0; round < 200; ++round) {
        sent += this->send(std::vector<std::uint32_t>(32, 60));
        std::uint16_t chains = 0;
        std::uint32_t slots = 0;
        while (const auto chain = this->device_->take()) {
          ++chains;
          slots += chain->slots;
          if (!in_order) {
            this->device_->use(chain->id, 0, 1, chain->slots);
          } else if (chains == 32) {
            this->device_->use(chain->id, 0, chains, slots);
          }
        }
        ASSERT_EQ(chains, 32);
      }
      EXPECT_EQ(sent, 6400U);
      this->transmit_->reclaim();
      EXPECT_EQ(this->transmit_->in_flight(), 0U);
      EXPECT_EQ(this->transmit_->ring().counters().bad_ids, 0U);
    }
  }
}

TYPED_TEST(DriverQueueLayouts, PostsAllReceiveBuffersAtOnce) {
  for (const std::uint32_t size : {1U, 256U}) {
    this->receive(size, kVersion1 | kMergeable);
    for (std::uint32_t i = 0; i < size; ++i) {
      const auto chain = this->device_->take();
      ASSERT_TRUE(chain.has_value());
      ASSERT_EQ(chain->segments.size(), 1U);
      EXPECT_EQ(chain->segments[0].address, this->address(i));
      EXPECT_EQ(chain->segments[0].length, 128U);
      EXPECT_TRUE(chain->segments[0].device_writable);
    }
    EXPECT_FALSE(this->device_->take().has_value());
  }
}

TYPED_TEST(DriverQueueLayouts, ReceivesOverSeveralBuffersAndGivesThemBack) {
  this->receive(4, kVersion1 | kMergeable);
  for (int lap = 0; lap < 5; ++lap) {
    const auto first = this->device_->take(), second = this->device_->take(),
               third = this->device_->take();
    ASSERT_TRUE(third.has_value());
    this->fill(*first, 2, "one ");
    this->fill(*second, 0, "two");
    this->fill(*third, 1, "next");
    this->device_->use(first->id, 16);
    EXPECT_THAT(this->read(), ElementsAre());
    this->device_->use(second->id, 3);
    this->device_->use(third->id, 16);
    EXPECT_THAT(this->read(), ElementsAre("one two", "next"));
    EXPECT_EQ(this->receive_->pieces().size(), 3U);
    this->receive_->release();
    EXPECT_EQ(this->receive_->ring().free_descriptors(), 0U);
  }
}

// 2.7.9 and 2.8.8: what an in-order device skipped it has written completely.
TYPED_TEST(DriverQueueLayouts, SkippedReceiveBuffersAreFull) {
  this->receive(4, kVersion1 | kInOrder);
  const auto first = this->device_->take(), second = this->device_->take();
  this->fill(*first, 1, std::string(116, 'f'));
  this->fill(*second, 1, "second");
  this->device_->use(second->id, 18, 2, 2);
  EXPECT_THAT(this->read(), ElementsAre(std::string(116, 'f'), "second"));
  this->receive_->release();
  EXPECT_EQ(this->receive_->ring().free_descriptors(), 0U);
}

TYPED_TEST(DriverQueueLayouts, ALengthPastTheBufferReadsNoFurther) {
  this->receive(4, kVersion1 | kMergeable);
  const auto chain = this->device_->take();
  this->fill(*chain, 1, std::string(116, 'x'));
  this->device_->use(chain->id, 100'000);
  EXPECT_THAT(this->read(), ElementsAre(std::string(116, 'x')));
  EXPECT_EQ(this->receive_->ring().counters().capped_lengths, 1U);
}

TYPED_TEST(DriverQueueLayouts, ReceivesNothingFromABrokenRing) {
  this->receive(4, kVersion1 | kMergeable);
  const auto chain = this->device_->take();
  this->fill(*chain, 1, "good");
  this->device_->use(chain->id, 16);
  this->device_->use(chain->id, 16, 9);
  if (TypeParam::kPacked) {
    EXPECT_THAT(this->read(), ElementsAre("good"));
  } else {
    EXPECT_THAT(this->read(), ElementsAre());
  }
  EXPECT_TRUE(this->receive_->ring().broken());
  EXPECT_THAT(this->read(), ElementsAre());
  this->receive_->release();
  // A new device finds all buffers again.
  this->device_->start_at(this->receive_->ring().resume());
  int buffers = 0;
  while (this->device_->take()) ++buffers;
  EXPECT_EQ(buffers, 4);
}

}  // namespace
}  // namespace vswitch::virtq
