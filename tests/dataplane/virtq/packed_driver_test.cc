// The driver's end of a packed ring against a device played by hand. All bytes are literals laid
// out as virtio 1.2, 2.8.13 (descriptor) and 2.8.14 (event suppression) draw them. What is alike
// for split and packed rings is in driver_ring_test.cc.
#include "dataplane/virtq/packed_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace vswitch::virtq {
namespace {

using testing::ElementsAre;

constexpr DriverSegment readable(std::uint64_t address, std::uint32_t length) {
  return {address, length, false};
}
constexpr DriverSegment writable(std::uint64_t address, std::uint32_t length) {
  return {address, length, true};
}

MATCHER_P2(IsUsed, id, length, "") {
  *result_listener << "id " << arg.id << " length " << arg.length;
  return arg.id == id && arg.length == static_cast<std::uint32_t>(length);
}

// Three descriptors, in memory that holds garbage before the driver formats it.
class PackedDriverTest : public testing::Test {
 protected:
  static constexpr std::size_t kDriverEvents = 48, kDeviceEvents = 52;

  PackedDriverTest() {
    memory_.fill(0xa5);
    ring_.descriptors = reinterpret_cast<PackedDescriptor*>(memory_.data());
    ring_.driver_events = reinterpret_cast<EventSuppression*>(memory_.data() + kDriverEvents);
    ring_.device_events = reinterpret_cast<EventSuppression*>(memory_.data() + kDeviceEvents);
    ring_.size = 3;
  }

  std::vector<int> bytes(std::size_t offset, std::size_t count) {
    return {memory_.data() + offset, memory_.data() + offset + count};
  }
  std::vector<int> descriptor(std::size_t index) { return bytes(16 * index, 16); }
  std::vector<int> flags(std::size_t index) { return bytes(16 * index + 14, 2); }
  void write(std::size_t offset, std::initializer_list<int> values) {
    for (const int value : values) memory_[offset++] = static_cast<std::uint8_t>(value);
  }
  // Length, id and flags of a used descriptor.
  void use(std::size_t index, std::initializer_list<int> rest) { write(16 * index + 8, rest); }

  static std::uint16_t post(PackedDriver& driver, std::initializer_list<DriverSegment> chain) {
    const auto id = driver.post(std::span(chain.begin(), chain.size()));
    EXPECT_TRUE(id.has_value());
    return id.value_or(0xffff);
  }
  static std::vector<UsedChain> reap(PackedDriver& driver, std::size_t limit = 8) {
    std::vector<UsedChain> used(limit);
    used.resize(driver.reap(used));
    return used;
  }

  alignas(16) std::array<std::uint8_t, 64> memory_;
  PackedRing ring_;
};

TEST_F(PackedDriverTest, FormatsTheRingEmpty) {
  const PackedDriver driver(ring_);
  EXPECT_EQ(bytes(0, 56), std::vector<int>(56, 0));
  EXPECT_EQ(bytes(56, 8), std::vector<int>(8, 0xa5));
  EXPECT_EQ(driver.free_descriptors(), 3U);
  EXPECT_EQ(PackedDriver::kFreshBase, 0x8000);
}

TEST_F(PackedDriverTest, LaysOutOneReadableBuffer) {
  PackedDriver driver(ring_);
  EXPECT_EQ(post(driver, {readable(0x1122334455667788, 0x5ea)}), 0);
  driver.expose();
  EXPECT_THAT(descriptor(0), ElementsAre(0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // address
                                         0xea, 0x05, 0x00, 0x00,                          // length
                                         0x00, 0x00,                                      // id
                                         0x80, 0x00));                                    // AVAIL
}

TEST_F(PackedDriverTest, TheFirstFlagsOfAllStagedComeLast) {
  PackedDriver driver(ring_);
  EXPECT_EQ(post(driver, {readable(0x1000, 12), writable(0x2000, 2048)}), 0);
  EXPECT_EQ(post(driver, {writable(0x3000, 64)}), 2);
  EXPECT_THAT(descriptor(0), ElementsAre(0x00, 0x10, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(descriptor(1),
              ElementsAre(0x00, 0x20, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, /*WRITE*/ 0x82, 0));
  EXPECT_THAT(descriptor(2), ElementsAre(0x00, 0x30, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 2, 0, 0x82, 0));
  driver.expose();
  EXPECT_THAT(flags(0), ElementsAre(/*NEXT*/ 0x81, 0));
}

TEST_F(PackedDriverTest, AListWrapsWithTheCounter) {
  PackedDriver driver(ring_);
  post(driver, {readable(0x1000, 1), readable(0x2000, 1)});
  driver.expose();
  use(0, {0, 0, 0, 0, 0, 0, 0x80, 0x80});
  ASSERT_THAT(reap(driver), ElementsAre(IsUsed(0, 0)));
  // The next list: offset 2 in the first round, 0 and 1 in the second, where USED says available.
  EXPECT_EQ(post(driver, {readable(0x3000, 1), readable(0x4000, 1), writable(0x5000, 1)}), 2);
  EXPECT_THAT(flags(2), ElementsAre(0, 0));
  EXPECT_THAT(flags(0), ElementsAre(0x01, 0x80));
  EXPECT_THAT(flags(1), ElementsAre(0x02, 0x80));
  driver.expose();
  EXPECT_THAT(flags(2), ElementsAre(0x81, 0));
  // Used in the first round, from there on in the second: both bits clear.
  use(2, {1, 0, 0, 0, 2, 0, 0x82, 0x80});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(2, 1)));
  EXPECT_EQ(post(driver, {writable(0x6000, 5)}), 2);
  driver.expose();
  EXPECT_THAT(flags(2), ElementsAre(/*WRITE*/ 0x02, 0x80));
  use(2, {5, 0, 0, 0, 2, 0, 0x02, 0x00});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(2, 5)));
  EXPECT_THAT(reap(driver), ElementsAre());
}

TEST_F(PackedDriverTest, ARingOfOneAlternates) {
  ring_.size = 1;
  PackedDriver driver(ring_);
  for (int lap = 0; lap < 5; ++lap) {
    const bool odd = lap % 2 != 0;
    EXPECT_EQ(post(driver, {writable(0x1000, 64)}), 0);
    EXPECT_EQ(driver.free_descriptors(), 0U);
    EXPECT_TRUE(reap(driver).empty());
    driver.expose();
    EXPECT_THAT(flags(0), odd ? ElementsAre(0x02, 0x80) : ElementsAre(0x82, 0));
    EXPECT_TRUE(reap(driver).empty());
    use(0, {9, 0, 0, 0, 0, 0, odd ? 0x02 : 0x82, odd ? 0x00 : 0x80});
    EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 9)));
    EXPECT_TRUE(reap(driver).empty());
  }
}

TEST_F(PackedDriverTest, ALengthWithoutTheWriteFlagMeansNothing) {
  PackedDriver driver(ring_);
  post(driver, {writable(0x1000, 64)});
  driver.expose();
  use(0, {0xff, 0xff, 0, 0, 0, 0, 0x80, 0x80});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 0)));
  EXPECT_EQ(driver.counters().capped_lengths, 0U);
}

TEST_F(PackedDriverTest, LaysOutAnIndirectTable) {
  PackedDriver driver(ring_, {.indirect = true});
  alignas(16) std::array<std::uint8_t, 48> table;
  table.fill(0x5a);
  const std::array chain = {readable(0x1000, 12), writable(0x2000, 60)};
  const auto id =
      driver.post_indirect({reinterpret_cast<std::byte*>(table.data()), 0x7654'3000}, chain);
  EXPECT_EQ(id, 0);
  driver.expose();
  EXPECT_THAT(descriptor(0), ElementsAre(0x00, 0x30, 0x54, 0x76, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0,
                                         /*INDIRECT*/ 0x84, 0));
  // No NEXT and no id inside a table.
  EXPECT_THAT(std::vector<int>(table.begin(), table.begin() + 16),
              ElementsAre(0x00, 0x10, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(std::vector<int>(table.begin() + 16, table.begin() + 32),
              ElementsAre(0x00, 0x20, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 2, 0));
  EXPECT_EQ(table[32], 0x5a);
}

// A2, A58: an id that is not in flight tells no position to go on from.
TEST_F(PackedDriverTest, AnIdNeverPostedBreaksTheRing) {
  for (const int id : {1, 2, 3, 300, 0xffff}) {
    SCOPED_TRACE(id);
    PackedDriver driver(ring_);
    post(driver, {writable(0x1000, 64)});
    driver.expose();
    use(0, {1, 0, 0, 0, id & 0xff, id >> 8, 0x82, 0x80});
    EXPECT_THAT(reap(driver), ElementsAre());
    EXPECT_TRUE(driver.broken());
    EXPECT_EQ(driver.counters().bad_ids, 1U);
    // It stays so, whatever the device writes now.
    use(0, {1, 0, 0, 0, 0, 0, 0x82, 0x80});
    EXPECT_THAT(reap(driver), ElementsAre());
    EXPECT_EQ(driver.counters().bad_ids, 1U);
    EXPECT_EQ(driver.free_descriptors(), 2U);
  }
}

TEST_F(PackedDriverTest, AnIdUsedTwiceBreaksTheRing) {
  PackedDriver driver(ring_);
  post(driver, {writable(0x1000, 64)});
  post(driver, {writable(0x2000, 64)});
  driver.expose();
  use(0, {5, 0, 0, 0, 0, 0, 0x82, 0x80});
  use(1, {5, 0, 0, 0, 0, 0, 0x82, 0x80});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 5)));
  EXPECT_TRUE(driver.broken());
  EXPECT_EQ(driver.free_descriptors(), 2U);
  // Only being set up anew helps.
  EXPECT_EQ(driver.resume(), 0x8000);
  EXPECT_FALSE(driver.broken());
  EXPECT_THAT(descriptor(0), ElementsAre(0x00, 0x20, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 1, 0, 0x82, 0));
  EXPECT_EQ(bytes(16, 32), std::vector<int>(32, 0));
  use(0, {7, 0, 0, 0, 1, 0, 0x82, 0x80});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(1, 7)));
  EXPECT_EQ(driver.free_descriptors(), 3U);
}

TEST_F(PackedDriverTest, ADeviceThatUsesWhatWasNotOfferedBreaksTheRing) {
  PackedDriver driver(ring_);
  use(0, {1, 0, 0, 0, 0, 0, 0x82, 0x80});
  EXPECT_THAT(reap(driver), ElementsAre());
  EXPECT_TRUE(driver.broken());
}

TEST_F(PackedDriverTest, FlagsThatFlipAreNotUsed) {
  PackedDriver driver(ring_);
  post(driver, {writable(0x1000, 64)});
  driver.expose();
  // Only both bits equal to the wrap counter say "used".
  for (const auto& [low, high] : {std::pair(0x02, 0x00), {0x82, 0x00}, {0x02, 0x80}}) {
    use(0, {1, 0, 0, 0, 0, 0, low, high});
    EXPECT_THAT(reap(driver), ElementsAre());
  }
  EXPECT_FALSE(driver.broken());
  use(0, {1, 0, 0, 0, 0, 0, 0x82, 0x80});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 1)));
}

TEST_F(PackedDriverTest, CallsByFlags) {
  PackedDriver driver(ring_);
  EXPECT_THAT(bytes(kDriverEvents, 4), ElementsAre(0, 0, 0, 0));
  driver.suppress_calls(true);
  EXPECT_THAT(bytes(kDriverEvents, 4), ElementsAre(0, 0, 1, 0));
  driver.suppress_calls(false);
  EXPECT_THAT(bytes(kDriverEvents, 4), ElementsAre(0, 0, 0, 0));
}

TEST_F(PackedDriverTest, CallsByDescriptor) {
  PackedDriver driver(ring_, {.event_index = true});
  driver.suppress_calls(true);
  EXPECT_THAT(bytes(kDriverEvents, 4), ElementsAre(0, 0, 1, 0));
  driver.suppress_calls(false);
  // Offset 0, wrap counter 1; "at a descriptor".
  EXPECT_THAT(bytes(kDriverEvents, 4), ElementsAre(0, 0x80, 2, 0));
  for (int i = 0; i < 3; ++i) post(driver, {writable(0x1000, 64)});
  driver.expose();
  use(0, {1, 0, 0, 0, 0, 0, 0x82, 0x80});
  use(1, {1, 0, 0, 0, 1, 0, 0x82, 0x80});
  ASSERT_EQ(reap(driver).size(), 2U);
  EXPECT_THAT(bytes(kDriverEvents, 4), ElementsAre(2, 0x80, 2, 0));
  use(2, {1, 0, 0, 0, 2, 0, 0x82, 0x80});
  ASSERT_EQ(reap(driver).size(), 1U);
  // The next lap.
  EXPECT_THAT(bytes(kDriverEvents, 4), ElementsAre(0, 0x00, 2, 0));
}

TEST_F(PackedDriverTest, KicksByFlags) {
  PackedDriver driver(ring_);
  post(driver, {readable(0x1000, 1)});
  driver.expose();
  write(kDeviceEvents, {0, 0, 1, 0});
  EXPECT_FALSE(driver.wants_event());
  write(kDeviceEvents, {0, 0, 0, 0});
  EXPECT_TRUE(driver.wants_event());
  // "At a descriptor" was not negotiated: a kick too many is allowed, one too few is not.
  write(kDeviceEvents, {2, 0x80, 2, 0});
  EXPECT_TRUE(driver.wants_event());
}

TEST_F(PackedDriverTest, KicksByDescriptorAndLap) {
  struct Case {
    int offset, wrap;  // of the event
    bool wanted;
  };
  // Offsets 2 of the first lap, 0 and 1 of the second become available.
  for (const auto& [offset, wrap, wanted] : {Case{2, 0x80, true},
                                             {0, 0x00, true},
                                             {1, 0x00, true},
                                             {2, 0x00, false},
                                             {0, 0x80, false},
                                             {1, 0x80, false}}) {
    SCOPED_TRACE(testing::Message() << offset << " " << wrap);
    PackedDriver driver(ring_, {.event_index = true});
    post(driver, {readable(0x1000, 1), readable(0x2000, 1)});
    driver.expose();
    driver.wants_event();
    use(0, {0, 0, 0, 0, 0, 0, 0x80, 0x80});
    ASSERT_EQ(reap(driver).size(), 1U);
    for (int i = 0; i < 3; ++i) post(driver, {readable(0x1000, 1)});
    driver.expose();
    write(kDeviceEvents, {offset, wrap, 2, 0});
    EXPECT_EQ(driver.wants_event(), wanted);
    EXPECT_FALSE(driver.wants_event());
  }
}

TEST_F(PackedDriverTest, ResumeKeepsTheWishForCalls) {
  PackedDriver driver(ring_);
  driver.suppress_calls(true);
  post(driver, {writable(0x1000, 64)});
  write(kDeviceEvents, {0, 0, 1, 0});
  driver.resume();
  EXPECT_THAT(bytes(kDriverEvents, 8), ElementsAre(0, 0, 1, 0, 0, 0, 0, 0));
  // What was staged only is offered as well.
  EXPECT_THAT(flags(0), ElementsAre(0x82, 0));
}

}  // namespace
}  // namespace vswitch::virtq
