// What split and packed driver ends do alike, against a device played by hand: batches of in-order
// devices, indirect tables, notifications in both ways, and what a hostile device returns.
#include "dataplane/virtq/driver_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/dataplane/virtq/hand_device.h"

namespace vswitch::virtq {
namespace {

using testing::ElementsAre;

MATCHER_P2(IsUsed, id, length, "") {
  *result_listener << "id " << arg.id << " length " << arg.length;
  return arg.id == id && arg.length == static_cast<std::uint32_t>(length);
}
MATCHER_P3(IsSegment, address, length, writable, "") {
  *result_listener << "address " << arg.address << " length " << arg.length;
  return arg.address == static_cast<std::uint64_t>(address) &&
         arg.length == static_cast<std::uint32_t>(length) && arg.device_writable == writable;
}

constexpr DriverSegment readable(std::uint64_t address, std::uint32_t length) {
  return {address, length, false};
}
constexpr DriverSegment writable(std::uint64_t address, std::uint32_t length) {
  return {address, length, true};
}

constexpr RingFeatures kPlain{};
constexpr RingFeatures kIndirect{.indirect = true};
constexpr RingFeatures kEventIndex{.event_index = true};
constexpr RingFeatures kInOrder{.in_order = true};

// The device and, once made, the driver.
template <typename Device>
class DriverRingTest : public testing::Test {
 protected:
  using Driver = typename Device::Driver;

  Driver& make(std::uint32_t size, RingFeatures features = kPlain) {
    device_ = std::make_unique<Device>(size);
    driver_ = std::make_unique<Driver>(device_->ring(), features);
    return *driver_;
  }

  std::uint16_t post(std::initializer_list<DriverSegment> chain) {
    const auto id = driver_->post(std::span(chain.begin(), chain.size()));
    EXPECT_TRUE(id.has_value());
    return id.value_or(0xffff);
  }
  void post_and_expose(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) post({writable(0x1000 * (i + 1), 100)});
    driver_->expose();
  }
  // Returns `count` chains in the order they come.
  void complete(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto chain = device_->take();
      ASSERT_TRUE(chain.has_value());
      device_->use(chain->id, 1);
    }
  }
  std::vector<UsedChain> reap(std::size_t limit = 64) {
    std::vector<UsedChain> used(limit);
    used.resize(driver_->reap(used));
    return used;
  }
  // Moves `count` descriptors through the ring, one a chain.
  void pass(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      post_and_expose(1);
      complete(1);
      ASSERT_EQ(reap().size(), 1U) << i;
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Driver> driver_;
};

struct LayoutNames {
  template <typename T>
  static std::string GetName(int) {
    return T::kPacked ? "Packed" : "Split";
  }
};
using Layouts = testing::Types<HandSplit, HandPacked>;
TYPED_TEST_SUITE(DriverRingTest, Layouts, LayoutNames);

TYPED_TEST(DriverRingTest, NothingIsSeenBeforeExpose) {
  this->make(4);
  this->post({readable(0x1000, 10)});
  this->post({readable(0x2000, 20), writable(0x3000, 30)});
  EXPECT_FALSE(this->device_->take().has_value());
  this->driver_->expose();
  const auto first = this->device_->take();
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(first->segments, ElementsAre(IsSegment(0x1000, 10, false)));
  const auto second = this->device_->take();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->slots, 2U);
  EXPECT_THAT(second->segments, ElementsAre(IsSegment(0x2000, 20, false),  //
                                            IsSegment(0x3000, 30, true)));
  EXPECT_FALSE(this->device_->take().has_value());
}

TYPED_TEST(DriverRingTest, EverySizeGoesRoundTheRing) {
  for (const std::uint32_t size : {1U, 2U, 3U, 5U, 256U, 32'768U}) {
    if (!TypeParam::kPacked && (size & (size - 1)) != 0) continue;
    SCOPED_TRACE(size);
    this->make(size);
    // Three laps of a full ring, then single chains.
    for (int lap = 0; lap < 3; ++lap) {
      this->post_and_expose(size);
      EXPECT_EQ(this->driver_->free_descriptors(), 0U);
      const DriverSegment one = readable(0x9000, 9);
      EXPECT_FALSE(this->driver_->post(std::span(&one, 1)).has_value());
      this->complete(size);
      std::uint32_t reaped = 0;
      for (std::size_t got = 1; got != 0; reaped += static_cast<std::uint32_t>(got)) {
        got = this->reap().size();
      }
      EXPECT_EQ(reaped, size);
      EXPECT_EQ(this->driver_->free_descriptors(), size);
    }
    this->pass(5);
    EXPECT_FALSE(this->driver_->broken());
    EXPECT_EQ(this->driver_->counters().bad_ids, 0U);
  }
}

TYPED_TEST(DriverRingTest, ListsRunOverTheEndOfTheRing) {
  this->make(4);
  for (int round = 0; round < 12; ++round) {
    this->post({readable(0x1000, 1), readable(0x2000, 2), writable(0x3000, 3)});
    this->driver_->expose();
    const auto chain = this->device_->take();
    ASSERT_TRUE(chain.has_value()) << round;
    EXPECT_THAT(chain->segments, ElementsAre(IsSegment(0x1000, 1, false),  //
                                             IsSegment(0x2000, 2, false),  //
                                             IsSegment(0x3000, 3, true)));
    this->device_->use(chain->id, 3, 1, 3);
    EXPECT_THAT(this->reap(), ElementsAre(IsUsed(chain->id, 3)));
    EXPECT_EQ(this->driver_->free_descriptors(), 4U);
  }
}

TYPED_TEST(DriverRingTest, ReturnedOutOfOrderInAnyWay) {
  this->make(4);
  this->post({writable(0x1000, 10)});
  this->post({writable(0x2000, 20), writable(0x3000, 30)});
  this->post({writable(0x4000, 40)});
  this->driver_->expose();
  const auto first = this->device_->take(), second = this->device_->take(),
             third = this->device_->take();
  this->device_->use(third->id, 40);
  this->device_->use(second->id, 50, 1, 2);
  EXPECT_THAT(this->reap(), ElementsAre(IsUsed(third->id, 40), IsUsed(second->id, 50)));
  this->device_->use(first->id, 7);
  EXPECT_THAT(this->reap(), ElementsAre(IsUsed(first->id, 7)));
  EXPECT_EQ(this->driver_->free_descriptors(), 4U);
}

TYPED_TEST(DriverRingTest, AReturnedLengthIsCapped) {
  this->make(4);
  this->post({writable(0x1000, 2048)});
  this->post({readable(0x2000, 76), writable(0x3000, 16)});
  this->post({readable(0x4000, 60)});
  this->driver_->expose();
  const std::array ids = {this->device_->take()->id, this->device_->take()->id,
                          this->device_->take()->id};
  this->device_->use(ids[0], 2049);
  this->device_->use(ids[1], 0xffff'ffff, 1, 2);
  this->device_->use(ids[2], 1);
  EXPECT_THAT(this->reap(),
              ElementsAre(IsUsed(ids[0], 2048), IsUsed(ids[1], 16), IsUsed(ids[2], 0)));
  EXPECT_EQ(this->driver_->counters().capped_lengths, 3U);
}

TYPED_TEST(DriverRingTest, AnIndirectTableTakesOneDescriptor) {
  this->make(4, kIndirect);
  HandMemory& memory = this->device_->memory();
  const IndirectTable table{memory.at(HandDevice::kFree), memory.guest(HandDevice::kFree)};
  const std::array chain = {readable(0x1000, 12), readable(0x2000, 60), writable(0x3000, 1),
                            writable(0x4000, 2)};
  const auto id = this->driver_->post_indirect(table, chain);
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(this->driver_->free_descriptors(), 3U);
  this->driver_->expose();
  const auto taken = this->device_->take();
  ASSERT_TRUE(taken.has_value());
  EXPECT_TRUE(taken->indirect);
  EXPECT_EQ(taken->slots, 1U);
  EXPECT_THAT(taken->segments,
              ElementsAre(IsSegment(0x1000, 12, false), IsSegment(0x2000, 60, false),
                          IsSegment(0x3000, 1, true), IsSegment(0x4000, 2, true)));
  this->device_->use(taken->id, 99);
  EXPECT_THAT(this->reap(), ElementsAre(IsUsed(*id, 3)));
  EXPECT_EQ(this->driver_->counters().capped_lengths, 1U);
}

TYPED_TEST(DriverRingTest, AnIndirectTableThatCannotBeIsRefused) {
  this->make(2);
  HandMemory& memory = this->device_->memory();
  const IndirectTable table{memory.at(HandDevice::kFree), memory.guest(HandDevice::kFree)};
  const std::array chain = {readable(0x1000, 1), readable(0x2000, 2), readable(0x3000, 3)};
  const auto two = std::span(chain).first(2);
  EXPECT_FALSE(this->driver_->post_indirect(table, two).has_value());  // not negotiated
  this->make(2, kIndirect);
  EXPECT_FALSE(this->driver_->post_indirect(table, {}).has_value());
  EXPECT_FALSE(this->driver_->post_indirect(table, chain).has_value());  // longer than the queue
  EXPECT_EQ(this->driver_->free_descriptors(), 2U);
  this->post_and_expose(2);
  EXPECT_FALSE(this->driver_->post_indirect(table, two).has_value());  // no descriptor left
}

TYPED_TEST(DriverRingTest, AnEntryThatStandsInTheTableIsNotWrittenAgain) {
  this->make(4, kIndirect);
  HandMemory& memory = this->device_->memory();
  const IndirectTable table{memory.at(HandDevice::kFree), memory.guest(HandDevice::kFree)};
  const std::array chain = {readable(0x1000, 12), readable(0x2000, 60)};
  ASSERT_TRUE(this->driver_->post_indirect(table, chain).has_value());
  const std::vector<std::byte> before(table.host, table.host + 32);
  // Anything else in the place of an entry is put right.
  table.host[16] = std::byte{0x77};
  ASSERT_TRUE(this->driver_->post_indirect(table, chain).has_value());
  EXPECT_EQ(std::vector<std::byte>(table.host, table.host + 32), before);
}

// --- In order --------------------------------------------------------------------------------

TYPED_TEST(DriverRingTest, ABatchIsNamedByItsLastChain) {
  this->make(8, kInOrder);
  this->post({writable(0x1000, 100)});
  this->post({writable(0x2000, 200), writable(0x3000, 300)});
  this->post({readable(0x4000, 400)});
  this->post({writable(0x5000, 500)});
  this->driver_->expose();
  std::vector<std::uint16_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(this->device_->take()->id);
  // One element for the first three: skipped ones count as completely written.
  this->device_->use(ids[2], 0, 3, 4);
  EXPECT_THAT(this->reap(),
              ElementsAre(IsUsed(ids[0], 100), IsUsed(ids[1], 500), IsUsed(ids[2], 0)));
  this->device_->use(ids[3], 77);
  EXPECT_THAT(this->reap(), ElementsAre(IsUsed(ids[3], 77)));
  EXPECT_EQ(this->driver_->free_descriptors(), 8U);
  EXPECT_EQ(this->driver_->counters().bad_ids, 0U);
}

TYPED_TEST(DriverRingTest, ABatchIsHandedOutAsThereIsRoom) {
  this->make(8, kInOrder);
  this->post_and_expose(7);
  std::vector<std::uint16_t> ids;
  for (int i = 0; i < 7; ++i) ids.push_back(this->device_->take()->id);
  this->device_->use(ids[4], 50, 5, 5);
  EXPECT_THAT(this->reap(2), ElementsAre(IsUsed(ids[0], 100), IsUsed(ids[1], 100)));
  EXPECT_EQ(this->driver_->free_descriptors(), 3U);
  this->device_->use(ids[6], 60, 2, 2);
  EXPECT_THAT(this->reap(4), ElementsAre(IsUsed(ids[2], 100), IsUsed(ids[3], 100),
                                         IsUsed(ids[4], 50), IsUsed(ids[5], 100)));
  EXPECT_THAT(this->reap(4), ElementsAre(IsUsed(ids[6], 60)));
  EXPECT_THAT(this->reap(4), ElementsAre());
}

TYPED_TEST(DriverRingTest, BatchesGoRoundTheRing) {
  for (const std::uint32_t size : {4U, 8U, 256U}) {
    SCOPED_TRACE(size);
    this->make(size, kInOrder);
    for (std::uint32_t round = 0; round < 5 * size; ++round) {
      const std::uint32_t chains = 1 + round % (size / 2);
      // Every other chain has two descriptors.
      std::uint32_t slots = 0;
      std::uint32_t posted = 0;
      for (; posted < chains && slots + 2 <= size; ++posted) {
        if (posted % 2 == 0) {
          this->post({writable(0x1000, 8)});
          slots += 1;
        } else {
          this->post({writable(0x1000, 8), writable(0x2000, 8)});
          slots += 2;
        }
      }
      this->driver_->expose();
      std::uint16_t last = 0;
      for (std::uint32_t i = 0; i < posted; ++i) {
        const auto chain = this->device_->take();
        ASSERT_TRUE(chain.has_value());
        last = chain->id;
      }
      this->device_->use(last, 5, static_cast<std::uint16_t>(posted), slots);
      const auto used = this->reap(size);
      ASSERT_EQ(used.size(), posted);
      EXPECT_EQ(used.back().id, last);
      EXPECT_EQ(used.back().length, 5U);
      ASSERT_EQ(this->driver_->free_descriptors(), size);
    }
  }
}

TYPED_TEST(DriverRingTest, InOrderDevicesThatWriteEveryElement) {
  this->make(4, kInOrder);
  for (int lap = 0; lap < 6; ++lap) {
    this->post_and_expose(3);
    for (int i = 0; i < 3; ++i) this->device_->use(this->device_->take()->id, 40 + i);
    const auto used = this->reap();
    ASSERT_EQ(used.size(), 3U);
    for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(used[i].length, 40 + i);
  }
}

// --- Coming back -----------------------------------------------------------------------------

TYPED_TEST(DriverRingTest, ResumeOffersEverythingInFlightInOrder) {
  this->make(8, kIndirect);
  HandMemory& memory = this->device_->memory();
  const IndirectTable table{memory.at(HandDevice::kFree), memory.guest(HandDevice::kFree)};
  this->post({writable(0x1000, 10)});
  this->post({readable(0x2000, 20), writable(0x3000, 30)});
  this->post({writable(0x4000, 40)});
  const std::array pair = {readable(0x5000, 50), readable(0x6000, 60)};
  ASSERT_TRUE(this->driver_->post_indirect(table, pair).has_value());
  this->driver_->expose();
  this->device_->take();
  this->device_->take();
  const auto third = this->device_->take();
  // Out of order: of a packed ring this overwrites the first list, which is still in flight.
  this->device_->use(third->id, 40);
  ASSERT_EQ(this->reap().size(), 1U);
  this->post({writable(0x7000, 70)});
  this->driver_->expose();

  this->device_->start_at(this->driver_->resume());
  std::vector<std::vector<DriverSegment>> chains;
  std::set<std::uint16_t> ids;
  while (const auto chain = this->device_->take()) {
    chains.push_back(chain->segments);
    ids.insert(chain->id);
    this->device_->use(chain->id, 1, 1, chain->slots);
  }
  EXPECT_THAT(chains,
              ElementsAre(ElementsAre(IsSegment(0x1000, 10, true)),
                          ElementsAre(IsSegment(0x2000, 20, false), IsSegment(0x3000, 30, true)),
                          ElementsAre(IsSegment(0x5000, 50, false), IsSegment(0x6000, 60, false)),
                          ElementsAre(IsSegment(0x7000, 70, true))));
  EXPECT_EQ(ids.size(), 4U);
  EXPECT_EQ(this->reap().size(), 4U);
  EXPECT_EQ(this->driver_->free_descriptors(), 8U);
  EXPECT_EQ(this->driver_->counters().bad_ids, 0U);
}

// C35 (ii): in order, 8 posted, 5 used, gone.
TYPED_TEST(DriverRingTest, ResumeOfAnInOrderRingDeliversTheRestOnce) {
  this->make(8, kInOrder);
  this->post_and_expose(8);
  std::vector<std::uint16_t> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(this->device_->take()->id);
  this->device_->use(ids[4], 9, 5, 5);
  ASSERT_EQ(this->reap().size(), 5U);
  const std::uint16_t base = this->driver_->resume();
  EXPECT_EQ(base, TypeParam::kPacked ? 0x8000 : 5);
  this->device_->start_at(base);
  std::vector<std::uint64_t> addresses;
  while (const auto chain = this->device_->take()) {
    addresses.push_back(chain->segments.at(0).address);
    ids.push_back(chain->id);
  }
  EXPECT_THAT(addresses, ElementsAre(0x6000, 0x7000, 0x8000));
  this->device_->use(ids.back(), 9, 3, 3);
  EXPECT_EQ(this->reap().size(), 3U);
  EXPECT_EQ(this->driver_->free_descriptors(), 8U);
  this->post_and_expose(8);
  this->complete(8);
  EXPECT_EQ(this->reap().size(), 8U);
}

TYPED_TEST(DriverRingTest, ResumeInTheMiddleOfABatchLosesNoBuffer) {
  this->make(4, kInOrder);
  this->post_and_expose(4);
  std::uint16_t last = 0;
  for (int i = 0; i < 3; ++i) last = this->device_->take()->id;
  this->device_->use(last, 9, 3, 3);
  ASSERT_EQ(this->reap(1).size(), 1U);
  this->device_->start_at(this->driver_->resume());
  int offered = 0;
  while (const auto chain = this->device_->take()) {
    this->device_->use(chain->id, 1);
    ++offered;
  }
  EXPECT_EQ(offered, 3);
  EXPECT_EQ(this->reap().size(), 3U);
  EXPECT_EQ(this->driver_->free_descriptors(), 4U);
}

// --- Notifications ---------------------------------------------------------------------------

TYPED_TEST(DriverRingTest, KicksUnlessTheDeviceAsksNotTo) {
  this->make(4);
  this->post_and_expose(1);
  EXPECT_TRUE(this->driver_->wants_event());
  this->device_->want_kicks(false);
  this->post_and_expose(1);
  EXPECT_FALSE(this->driver_->wants_event());
  this->device_->want_kicks(true);
  EXPECT_TRUE(this->driver_->wants_event());
}

TYPED_TEST(DriverRingTest, SuppressesCallsByFlags) {
  this->make(4);
  EXPECT_FALSE(this->device_->calls_suppressed());
  for (int i = 0; i < 3; ++i) {
    this->driver_->suppress_calls(true);
    EXPECT_TRUE(this->device_->calls_suppressed());
    this->driver_->suppress_calls(false);
    EXPECT_FALSE(this->device_->calls_suppressed());
  }
}

TYPED_TEST(DriverRingTest, AnEventIndexAsksForTheNextUsedOne) {
  this->make(4, kEventIndex);
  this->driver_->suppress_calls(false);
  EXPECT_TRUE(this->device_->wants_call_at(0));
  this->pass(3);
  EXPECT_TRUE(this->device_->wants_call_at(3));
  this->driver_->suppress_calls(true);
  EXPECT_FALSE(this->device_->wants_call_at(3));
  this->pass(2);
  EXPECT_FALSE(this->device_->wants_call_at(5));
  this->driver_->suppress_calls(false);
  EXPECT_TRUE(this->device_->wants_call_at(5));
  this->pass(4);
  EXPECT_TRUE(this->device_->wants_call_at(9));
}

// B19: the device waits for `event`; the driver's position goes from `from` to `to`.
struct EventCase {
  std::uint16_t event, from, to;
  bool wanted;
};
constexpr std::array kEventCases = {
    EventCase{10, 8, 14, true},  EventCase{0xfffe, 0xfffc, 2, true}, EventCase{20, 8, 14, false},
    EventCase{14, 8, 14, false}, EventCase{8, 8, 14, true},          EventCase{13, 8, 14, true},
    EventCase{7, 8, 14, false},
};

TYPED_TEST(DriverRingTest, KicksAsTheEventIndexSays) {
  for (const EventCase& event : kEventCases) {
    SCOPED_TRACE(event.event);
    // Positions in a packed ring repeat after two laps of 256, and so do the cases' in 2^16.
    this->make(256, kEventIndex);
    // Far enough that an event of the lap before is told apart.
    this->pass(event.from);
    this->device_->want_kick_at(0);
    this->driver_->wants_event();
    this->device_->want_kick_at(event.event);
    this->post_and_expose(static_cast<std::uint16_t>(event.to - event.from));
    EXPECT_EQ(this->driver_->wants_event(), event.wanted);
    // What was asked about once is not asked about again.
    EXPECT_FALSE(this->driver_->wants_event());
  }
}

TYPED_TEST(DriverRingTest, ABurstThatWasNotAskedAboutCountsLater) {
  this->make(8, kEventIndex);
  this->device_->want_kick_at(1);
  this->post_and_expose(2);
  this->post_and_expose(2);
  EXPECT_TRUE(this->driver_->wants_event());
}

TYPED_TEST(DriverRingTest, WithoutTheFeatureEventIndicesDoNotCount) {
  this->make(4);
  this->device_->want_kick_at(100);
  this->device_->want_kicks(true);
  this->post_and_expose(1);
  EXPECT_TRUE(this->driver_->wants_event());
  this->driver_->suppress_calls(false);
  this->pass(1);
  EXPECT_FALSE(this->device_->calls_suppressed());
}

// --- Hostile devices -------------------------------------------------------------------------

// A58: no buffer is handed out twice, whatever the device returns, and nothing is touched that is
// not there (under the sanitizers).
TYPED_TEST(DriverRingTest, NoBufferIsEverHandedOutTwice) {
  for (const bool in_order : {false, true}) {
    std::uint32_t random = 12'345;
    const auto next_random = [&random] {
      random = random * 1'664'525 + 1'013'904'223;
      return random >> 8;
    };
    this->make(16, {.indirect = true, .event_index = true, .in_order = in_order});
    std::map<std::uint16_t, std::uint32_t> out;  // descriptors by id
    std::uint32_t restarts = 0;
    for (int round = 0; round < 20'000; ++round) {
      for (std::uint32_t i = next_random() % 4; i > 0; --i) {
        const std::array chain = {readable(0x1000, 1), writable(0x2000, 50), writable(0x3000, 50)};
        const auto part = std::span(chain).first(1 + next_random() % 3);
        const auto id = this->driver_->post(part);
        if (id) {
          EXPECT_TRUE(out.emplace(*id, part.size()).second);
        }
      }
      this->driver_->expose();
      this->driver_->wants_event();
      // Mostly a legal element; sometimes anything.
      const std::uint32_t kind = next_random() % 64;
      const bool legal = kind < 60 && !out.empty();
      const std::uint32_t id = legal ? out.begin()->first : next_random() % 70'000;
      const std::uint32_t slots = legal ? out.begin()->second : 1;
      const auto chains = static_cast<std::uint16_t>(kind == 63 ? next_random() % 40 : 1);
      if (next_random() % 2 == 0) this->device_->use(id, next_random() % 200, chains, slots);
      if (kind == 62) this->device_->memory().at(0)[next_random() % 256] = std::byte(round);
      for (const UsedChain& used : this->reap(3)) {
        EXPECT_EQ(out.erase(used.id), 1U) << used.id;
        EXPECT_LE(used.length, 100U);
      }
      if (this->driver_->broken()) {
        this->device_->start_at(this->driver_->resume());
        EXPECT_FALSE(this->driver_->broken());
        ++restarts;
      }
      ASSERT_LE(out.size(), 16U);
    }
    EXPECT_GT(restarts, 0U);
  }
}

}  // namespace
}  // namespace vswitch::virtq
