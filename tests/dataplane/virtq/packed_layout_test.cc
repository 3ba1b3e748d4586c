// Positions, flags and the event rule of packed rings (virtio 1.2, 2.8), against a model that
// counts slots without ever wrapping.
#include "dataplane/virtq/packed_layout.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

namespace vswitch::virtq {
namespace {

// Slot number `count` of an endless ring.
PackedPosition at(std::uint32_t count, std::uint32_t size) {
  return {static_cast<std::uint16_t>(count % size), count / size % 2 == 0};
}

TEST(PackedLayoutTest, PositionAsOneNumber) {
  EXPECT_EQ(PackedPosition{}.raw(), 0x8000);  // 2.8.1: both counters begin with 1
  EXPECT_EQ(PackedPosition::from_raw(0x8000), PackedPosition{});
  EXPECT_EQ(PackedPosition::from_raw(0x7fff), (PackedPosition{0x7fff, false}));
  EXPECT_EQ((PackedPosition{5, true}).raw(), 0x8005);
  EXPECT_EQ((PackedPosition{5, false}).raw(), 0x0005);
}

TEST(PackedLayoutTest, PositionsMoveBothWays) {
  for (const std::uint32_t size : {1u, 2u, 3u, 7u, 100u, 32768u}) {
    const std::uint32_t step = size > 100 ? 5461 : 1;
    for (std::uint32_t from = 0; from < 2 * size; from += step) {
      for (std::uint32_t slots = 0; slots <= size; slots += step) {
        PackedPosition position = at(from, size);
        position.advance(slots, size);
        ASSERT_EQ(position, at(from + slots, size)) << size << " " << from << " " << slots;
        position.retreat(slots, size);
        ASSERT_EQ(position, at(from, size)) << size << " " << from << " " << slots;
      }
    }
  }
}

// 2.8.1: available is AVAIL != USED with AVAIL as the counter; used is both as the counter.
TEST(PackedLayoutTest, FlagsOfBothRounds) {
  EXPECT_EQ((PackedPosition{0, true}).avail_flags(), 0x0080);
  EXPECT_EQ((PackedPosition{0, false}).avail_flags(), 0x8000);
  EXPECT_EQ((PackedPosition{0, true}).used_flags(), 0x8080);
  EXPECT_EQ((PackedPosition{0, false}).used_flags(), 0x0000);
  for (const std::uint16_t other : std::initializer_list<std::uint16_t>{0, 0x7f7f, 0x0007}) {
    for (const std::uint16_t flags :
         std::initializer_list<std::uint16_t>{0x0000, 0x0080, 0x8000, 0x8080}) {
      const auto both = static_cast<std::uint16_t>(flags | other);
      EXPECT_EQ(is_available(both, true), flags == 0x0080);
      EXPECT_EQ(is_available(both, false), flags == 0x8000);
      EXPECT_EQ(is_used(both, true), flags == 0x8080);
      EXPECT_EQ(is_used(both, false), flags == 0x0000);
    }
  }
}

TEST(PackedLayoutTest, DescriptorAsBytes) {
  alignas(16) unsigned char bytes[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  auto& shared = reinterpret_cast<PackedDescriptor&>(bytes);
  const PackedDescriptor loaded = load_descriptor(shared);
  EXPECT_EQ(loaded.address, 0x0807060504030201U);
  EXPECT_EQ(loaded.length, 0x0c0b0a09U);
  EXPECT_EQ(loaded.id, 0x0e0d);
  EXPECT_EQ(loaded.flags, 0x100f);
  publish_descriptor(shared, 0x11223344, 0x5566, 0x7788);
  const std::vector<unsigned char> after(bytes, bytes + 16);
  EXPECT_EQ(after, (std::vector<unsigned char>{1, 2, 3, 4, 5, 6, 7, 8, 0x44, 0x33, 0x22, 0x11, 0x66,
                                               0x55, 0x88, 0x77}));
}

TEST(PackedLayoutTest, EventSuppressionAsBytes) {
  alignas(4) unsigned char bytes[4] = {0x34, 0x92, 0x02, 0x00};
  auto& shared = reinterpret_cast<EventSuppression&>(bytes);
  const EventSuppression loaded = load_event_suppression(shared);
  EXPECT_EQ(loaded.offset_wrap, 0x9234);
  EXPECT_EQ(loaded.flags, kEventsAtDescriptor);
  bytes[2] = 0xfd;  // reserved bits
  bytes[3] = 0xff;
  EXPECT_EQ(load_event_suppression(shared).flags, kEventsDisabled);
  store_event_suppression(shared, {0x8001, kEventsAtDescriptor});
  const std::vector<unsigned char> after(bytes, bytes + 4);
  EXPECT_EQ(after, (std::vector<unsigned char>{0x01, 0x80, 0x02, 0x00}));
}

// Every event position of both rounds, against the slots that were really passed.
TEST(PackedLayoutTest, EventIsWantedIfItsSlotWasPassed) {
  for (const std::uint32_t size : {1u, 2u, 3u, 7u, 16u}) {
    for (std::uint32_t from = 2 * size; from < 4 * size; ++from) {
      for (std::uint32_t slots = 0; slots <= size; ++slots) {
        for (std::uint32_t event = 0; event < 2 * size; ++event) {
          bool passed = false;
          for (std::uint32_t slot = from; slot < from + slots; ++slot) {
            passed |= at(slot, size) == at(event, size);
          }
          const EventSuppression wish{at(event, size).raw(), kEventsAtDescriptor};
          ASSERT_EQ(wants_packed_event(wish, true, slots, at(from + slots, size), size), passed)
              << "size " << size << " from " << from << " slots " << slots << " event " << event;
        }
      }
    }
  }
}

TEST(PackedLayoutTest, EventOfTheLargestRing) {
  constexpr std::uint32_t kSize = 32768;
  const auto wanted = [](PackedPosition event, std::uint32_t slots, PackedPosition to) {
    return wants_packed_event({event.raw(), kEventsAtDescriptor}, true, slots, to, kSize);
  };
  EXPECT_TRUE(wanted({32767, true}, 1, {0, false}));
  EXPECT_FALSE(wanted({0, false}, 1, {0, false}));
  EXPECT_FALSE(wanted({32766, true}, 1, {0, false}));
  EXPECT_TRUE(wanted({0, true}, kSize, {0, false}));
  EXPECT_TRUE(wanted({5, true}, kSize, {5, false}));
  EXPECT_TRUE(wanted({4, false}, kSize, {5, false}));
  EXPECT_FALSE(wanted({4, true}, kSize, {5, false}));
}

TEST(PackedLayoutTest, FlagsDecideWithoutADescriptor) {
  const PackedPosition to{3, true};
  EXPECT_TRUE(wants_packed_event({0, kEventsEnabled}, false, 0, to, 4));
  EXPECT_FALSE(wants_packed_event({0, kEventsDisabled}, false, 4, to, 4));
  EXPECT_TRUE(wants_packed_event({0, kEventsAtDescriptor}, false, 0, to, 4));  // not negotiated
  EXPECT_TRUE(wants_packed_event({0, kEventsEnabled}, true, 0, to, 4));
  EXPECT_FALSE(wants_packed_event({0, kEventsDisabled}, true, 4, to, 4));
}

}  // namespace
}  // namespace vswitch::virtq
