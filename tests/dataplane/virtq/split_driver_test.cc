// The driver's end of a split ring against a device played by hand. All bytes are literals laid out
// as virtio 1.2, 2.7.5 (descriptor), 2.7.6 (available ring) and 2.7.8 (used ring) draw them.
#include "dataplane/virtq/split_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace vswitch::virtq {
namespace {

using testing::ElementsAre;

std::vector<int> bytes_at(const void* place, std::size_t count) {
  const auto* bytes = static_cast<const std::uint8_t*>(place);
  return {bytes, bytes + count};
}

// A queue of four descriptors in memory that holds garbage before the driver formats it.
class SplitDriverTest : public testing::Test {
 protected:
  SplitDriverTest() {
    memory_.fill(0xa5);
    ring_.descriptors = reinterpret_cast<Descriptor*>(memory_.data());
    ring_.avail = reinterpret_cast<RingHeader*>(memory_.data() + 64);
    ring_.used = reinterpret_cast<RingHeader*>(memory_.data() + 80);
    ring_.size = 4;
  }

  std::vector<int> descriptor(int index) { return bytes_at(memory_.data() + 16 * index, 16); }
  std::vector<int> avail() { return bytes_at(memory_.data() + 64, 12); }

  void write(std::size_t offset, std::initializer_list<int> bytes) {
    for (const int byte : bytes) memory_[offset++] = static_cast<std::uint8_t>(byte);
  }
  // Offset of the used ring's parts: flags 80, idx 82, elements of 8 bytes from 84.
  void write_used_index(std::initializer_list<int> bytes) { write(82, bytes); }
  void write_used_element(std::size_t slot, std::initializer_list<int> bytes) {
    write(84 + 8 * slot, bytes);
  }

  std::vector<UsedChain> reap(SplitDriver& driver, std::size_t limit = 8) {
    std::vector<UsedChain> used(limit);
    used.resize(driver.reap(used));
    return used;
  }

  alignas(16) std::array<std::uint8_t, 128> memory_;
  SplitRing ring_;
};

MATCHER_P2(IsUsed, id, length, "") {
  *result_listener << "id " << arg.id << " length " << arg.length;
  return arg.id == id && arg.length == static_cast<std::uint32_t>(length);
}

constexpr DriverSegment readable(std::uint64_t address, std::uint32_t length) {
  return {address, length, false};
}
constexpr DriverSegment writable(std::uint64_t address, std::uint32_t length) {
  return {address, length, true};
}

std::uint16_t post(SplitDriver& driver, std::initializer_list<DriverSegment> chain) {
  const auto id = driver.post(std::span(chain.begin(), chain.size()));
  EXPECT_TRUE(id.has_value());
  return id.value_or(0xffff);
}

TEST_F(SplitDriverTest, FormatsTheRingEmpty) {
  const SplitDriver driver(ring_);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(descriptor(i), std::vector<int>(16, 0));
  EXPECT_THAT(avail(), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(bytes_at(memory_.data() + 80, 36), std::vector<int>(36, 0));
  EXPECT_EQ(driver.free_descriptors(), 4U);
}

TEST_F(SplitDriverTest, LaysOutOneReadableBuffer) {
  SplitDriver driver(ring_);
  EXPECT_EQ(post(driver, {readable(0x1122334455667788, 0x5ea)}), 0);
  EXPECT_THAT(descriptor(0), ElementsAre(0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // address
                                         0xea, 0x05, 0x00, 0x00,                          // length
                                         0x00, 0x00,                                      // flags
                                         0x00, 0x00));                                    // next
  EXPECT_EQ(driver.free_descriptors(), 3U);
}

TEST_F(SplitDriverTest, LinksAChainWithNextAndWriteFlags) {
  SplitDriver driver(ring_);
  EXPECT_EQ(post(driver, {readable(0x1000, 12), writable(0x2000, 2048)}), 0);
  EXPECT_THAT(descriptor(0),
              ElementsAre(0x00, 0x10, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, /*NEXT*/ 1, 0, 1, 0));
  EXPECT_THAT(descriptor(1),
              ElementsAre(0x00, 0x20, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, /*WRITE*/ 2, 0, 0, 0));
}

TEST_F(SplitDriverTest, NothingIsAvailableBeforeExpose) {
  SplitDriver driver(ring_);
  post(driver, {readable(0x1000, 1)});
  post(driver, {readable(0x2000, 1), readable(0x3000, 1)});
  EXPECT_THAT(bytes_at(memory_.data() + 66, 2), ElementsAre(0, 0));
  driver.expose();
  EXPECT_THAT(bytes_at(memory_.data() + 64, 8), ElementsAre(0, 0,          // flags
                                                            2, 0,          // idx
                                                            0, 0, 1, 0));  // ring[0], ring[1]
}

TEST_F(SplitDriverTest, RefusesChainsThatDoNotFit) {
  SplitDriver driver(ring_);
  post(driver, {readable(0x1000, 1), readable(0x1000, 1), readable(0x1000, 1)});
  const std::array two = {readable(0x2000, 1), readable(0x2000, 1)};
  EXPECT_FALSE(driver.post(two).has_value());
  EXPECT_FALSE(driver.post({}).has_value());
  EXPECT_EQ(driver.free_descriptors(), 1U);
  EXPECT_TRUE(driver.post(std::span(two).first(1)).has_value());
}

TEST_F(SplitDriverTest, ReapsWhatTheDeviceUsedInItsOrder) {
  SplitDriver driver(ring_);
  post(driver, {writable(0x1000, 2048)});
  post(driver, {writable(0x2000, 2048), writable(0x3000, 2048)});
  driver.expose();
  EXPECT_THAT(reap(driver), ElementsAre());

  write_used_element(0, {1, 0, 0, 0, 0x34, 0x0c, 0, 0});  // 3124 bytes over both buffers
  write_used_element(1, {0, 0, 0, 0, 0x4c, 0x00, 0, 0});
  write_used_index({2, 0});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(1, 3124), IsUsed(0, 76)));
  EXPECT_THAT(reap(driver), ElementsAre());
  EXPECT_EQ(driver.free_descriptors(), 4U);
  EXPECT_EQ(driver.counters().bad_ids, 0U);
}

TEST_F(SplitDriverTest, ReapsNoMoreThanAsked) {
  SplitDriver driver(ring_);
  for (int i = 0; i < 3; ++i) post(driver, {writable(0x1000, 64)});
  driver.expose();
  for (int i = 0; i < 3; ++i) write_used_element(static_cast<std::size_t>(i), {i, 0, 0, 0, 9});
  write_used_index({3, 0});
  EXPECT_THAT(reap(driver, 2), ElementsAre(IsUsed(0, 9), IsUsed(1, 9)));
  EXPECT_THAT(reap(driver, 2), ElementsAre(IsUsed(2, 9)));
}

TEST_F(SplitDriverTest, RefusesAndCountsIdsThatAreNotInFlight) {
  SplitDriver driver(ring_);
  post(driver, {writable(0x1000, 64), writable(0x2000, 64)});
  driver.expose();
  write_used_element(0, {4, 0, 0, 0, 1, 0, 0, 0});  // one past the queue
  write_used_element(1, {0, 0, 1, 0, 1, 0, 0, 0});  // 65536: only the low half is an id
  write_used_element(2, {1, 0, 0, 0, 1, 0, 0, 0});  // inside a chain, not its head
  write_used_element(3, {0, 0, 0, 0, 7, 0, 0, 0});  // the one that was posted
  write_used_index({4, 0});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 7)));
  EXPECT_EQ(driver.counters().bad_ids, 3U);
  EXPECT_FALSE(driver.broken());
  EXPECT_EQ(driver.free_descriptors(), 4U);
}

TEST_F(SplitDriverTest, HandsNoBufferOutTwice) {
  SplitDriver driver(ring_);
  post(driver, {writable(0x1000, 64)});
  post(driver, {writable(0x2000, 64)});
  driver.expose();
  write_used_element(0, {0, 0, 0, 0, 5, 0, 0, 0});
  write_used_element(1, {0, 0, 0, 0, 5, 0, 0, 0});
  write_used_index({2, 0});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 5)));
  EXPECT_EQ(driver.counters().bad_ids, 1U);
  EXPECT_EQ(driver.free_descriptors(), 3U);
  // The ring carries on.
  write_used_element(2, {1, 0, 0, 0, 6, 0, 0, 0});
  write_used_index({3, 0});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(1, 6)));
}

TEST_F(SplitDriverTest, CapsTheUsedLengthToWhatWasWritable) {
  SplitDriver driver(ring_);
  post(driver, {writable(0x1000, 2048)});
  post(driver, {readable(0x2000, 76), writable(0x3000, 16)});
  driver.expose();
  write_used_element(0, {0, 0, 0, 0, 0x01, 0x08, 0, 0});  // 2049
  write_used_element(1, {1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff});
  write_used_index({2, 0});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 2048), IsUsed(1, 16)));
  EXPECT_EQ(driver.counters().capped_lengths, 2U);
}

TEST_F(SplitDriverTest, StopsWhenTheUsedIndexJumpsPastTheQueue) {
  SplitDriver driver(ring_);
  post(driver, {writable(0x1000, 64)});
  driver.expose();
  write_used_index({5, 0});
  EXPECT_THAT(reap(driver), ElementsAre());
  EXPECT_TRUE(driver.broken());
  write_used_index({1, 0});
  EXPECT_THAT(reap(driver), ElementsAre());
}

TEST_F(SplitDriverTest, IndicesWrapAt65536) {
  SplitDriver driver(ring_);
  for (std::uint32_t lap = 0; lap < 65'536; ++lap) {
    const std::uint16_t id = post(driver, {writable(0x1000, 64)});
    driver.expose();
    const int low = static_cast<int>((lap + 1) & 0xff);
    const int high = static_cast<int>((lap + 1) >> 8 & 0xff);
    write_used_element(lap % 4, {id, 0, 0, 0, 1, 0, 0, 0});
    write_used_index({low, high});
    ASSERT_EQ(reap(driver).size(), 1U) << lap;
  }
  EXPECT_THAT(bytes_at(memory_.data() + 66, 2), ElementsAre(0, 0));
  post(driver, {writable(0x1000, 64)});
  driver.expose();
  EXPECT_THAT(bytes_at(memory_.data() + 66, 2), ElementsAre(1, 0));
}

TEST_F(SplitDriverTest, AnInOrderDeviceMeetsTheSameDescriptorsEachLap) {
  SplitDriver driver(ring_);
  for (int lap = 0; lap < 3; ++lap) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(post(driver, {writable(0x1000, 64)}), i);
      write_used_element(static_cast<std::size_t>(i), {i, 0, 0, 0, 1, 0, 0, 0});
    }
    driver.expose();
    write_used_index({4 * (lap + 1), 0});
    EXPECT_EQ(reap(driver).size(), 4U);
  }
}

TEST_F(SplitDriverTest, KicksUnlessTheDeviceAsksNotTo) {
  SplitDriver driver(ring_);
  EXPECT_TRUE(driver.wants_event());
  write(80, {1, 0});  // VIRTQ_USED_F_NO_NOTIFY
  EXPECT_FALSE(driver.wants_event());
  write(80, {2, 0});  // any other bit
  EXPECT_TRUE(driver.wants_event());
}

TEST_F(SplitDriverTest, SuppressesCallsInTheAvailableFlags) {
  SplitDriver driver(ring_);
  driver.suppress_calls(true);
  EXPECT_THAT(bytes_at(memory_.data() + 64, 2), ElementsAre(1, 0));  // VIRTQ_AVAIL_F_NO_INTERRUPT
  driver.suppress_calls(false);
  EXPECT_THAT(bytes_at(memory_.data() + 64, 2), ElementsAre(0, 0));
}

TEST_F(SplitDriverTest, ResumeOffersWhatIsInFlightFromTheUsedIndex) {
  SplitDriver driver(ring_);
  for (int i = 0; i < 3; ++i) post(driver, {writable(0x1000, 64)});
  driver.expose();
  write_used_element(0, {0, 0, 0, 0, 1, 0, 0, 0});
  write_used_index({1, 0});
  ASSERT_EQ(reap(driver).size(), 1U);
  EXPECT_EQ(driver.resume(), 1);
  EXPECT_THAT(bytes_at(memory_.data() + 64, 10), ElementsAre(0, 0, 3, 0, 0, 0, 1, 0, 2, 0));
}

TEST_F(SplitDriverTest, ResumeAfterADeviceThatWorkedOutOfOrder) {
  SplitDriver driver(ring_);
  for (int i = 0; i < 4; ++i) post(driver, {writable(0x1000, 64)});
  driver.expose();
  // 2 and 3 are used first and posted again; 0 and 1 are still out, their slots overwritten.
  write_used_element(0, {2, 0, 0, 0, 1, 0, 0, 0});
  write_used_element(1, {3, 0, 0, 0, 1, 0, 0, 0});
  write_used_index({2, 0});
  ASSERT_EQ(reap(driver).size(), 2U);
  EXPECT_EQ(post(driver, {writable(0x1000, 64)}), 2);
  EXPECT_EQ(post(driver, {writable(0x1000, 64)}), 3);
  driver.expose();
  EXPECT_EQ(driver.resume(), 2);
  // idx 6; slots 2, 3, 0, 1 hold 0, 1, 2, 3.
  EXPECT_THAT(bytes_at(memory_.data() + 64, 12), ElementsAre(0, 0, 6, 0, 2, 0, 3, 0, 0, 0, 1, 0));
}

TEST_F(SplitDriverTest, ResumeClearsABrokenRing) {
  SplitDriver driver(ring_);
  post(driver, {writable(0x1000, 64)});
  driver.expose();
  write_used_index({9, 0});
  reap(driver);
  ASSERT_TRUE(driver.broken());
  EXPECT_EQ(driver.resume(), 9);
  EXPECT_THAT(bytes_at(memory_.data() + 66, 2), ElementsAre(10, 0));
  write_used_element(1, {0, 0, 0, 0, 3, 0, 0, 0});
  write_used_index({10, 0});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 3)));
}

TEST_F(SplitDriverTest, LaysOutAnIndirectTable) {
  SplitDriver driver(ring_, {.indirect = true});
  alignas(16) std::array<std::uint8_t, 48> table;
  table.fill(0x5a);
  const std::array chain = {readable(0x1000, 12), writable(0x2000, 60)};
  const auto id =
      driver.post_indirect({reinterpret_cast<std::byte*>(table.data()), 0x7654'3000}, chain);
  EXPECT_EQ(id, 0);
  EXPECT_THAT(descriptor(0), ElementsAre(0x00, 0x30, 0x54, 0x76, 0, 0, 0, 0, 32, 0, 0, 0,
                                         /*INDIRECT*/ 4, 0, 0, 0));
  EXPECT_THAT(bytes_at(table.data(), 16),
              ElementsAre(0x00, 0x10, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, /*NEXT*/ 1, 0, 1, 0));
  EXPECT_THAT(bytes_at(table.data() + 16, 16),
              ElementsAre(0x00, 0x20, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, /*WRITE*/ 2, 0, 0, 0));
  EXPECT_EQ(table[32], 0x5a);
}

// 2.7.5: with VIRTIO_F_IN_ORDER the next descriptor is the next of the table, 0 after the last.
TEST_F(SplitDriverTest, InOrderChainsUseTheTableRoundAndRound) {
  SplitDriver driver(ring_, {.in_order = true});
  for (std::uint32_t round = 0; round < 8; ++round) {
    const std::uint16_t head =
        post(driver, {writable(0x1000, 1), writable(0x1000, 1), writable(0x1000, 1)});
    EXPECT_EQ(head, 3 * round % 4);
    EXPECT_EQ(descriptor(head)[14], (head + 1) % 4);
    EXPECT_EQ(descriptor((head + 1) % 4)[14], (head + 2) % 4);
    driver.expose();
    write_used_element(round % 4, {head, 0, 0, 0, 1, 0, 0, 0});
    write_used_index({static_cast<int>(round + 1), 0});
    ASSERT_EQ(reap(driver).size(), 1U);
  }
}

// 2.7.9: the one element stands at the first entry of the batch, the next one at the first of the
// next.
TEST_F(SplitDriverTest, AnInOrderBatchIsOneElementAndAJumpOfTheIndex) {
  SplitDriver driver(ring_, {.in_order = true});
  for (int i = 0; i < 4; ++i) post(driver, {writable(0x1000, 64)});
  driver.expose();
  write_used_element(0, {2, 0, 0, 0, 7, 0, 0, 0});
  write_used_index({3, 0});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 64), IsUsed(1, 64), IsUsed(2, 7)));
  write_used_element(3, {3, 0, 0, 0, 8, 0, 0, 0});
  write_used_index({4, 0});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(3, 8)));
}

TEST_F(SplitDriverTest, AnInOrderRingCarriesOnAfterARefusedId) {
  // The bad element in the place of a good one; the next batch covers it.
  {
    SplitDriver driver(ring_, {.in_order = true});
    for (int i = 0; i < 4; ++i) post(driver, {writable(0x1000, 64)});
    driver.expose();
    write_used_element(0, {9, 0, 0, 0, 1, 0, 0, 0});
    write_used_index({1, 0});
    EXPECT_THAT(reap(driver), ElementsAre());
    EXPECT_EQ(driver.counters().bad_ids, 1U);
    write_used_element(1, {1, 0, 0, 0, 5, 0, 0, 0});
    write_used_index({2, 0});
    EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 64), IsUsed(1, 5)));
    write_used_element(2, {2, 0, 0, 0, 6, 0, 0, 0});
    write_used_index({3, 0});
    EXPECT_THAT(reap(driver), ElementsAre(IsUsed(2, 6)));
  }
  // One element too many.
  SplitDriver driver(ring_, {.in_order = true});
  for (int i = 0; i < 3; ++i) post(driver, {writable(0x1000, 64)});
  driver.expose();
  write_used_element(0, {9, 0, 0, 0, 1, 0, 0, 0});
  write_used_element(1, {0, 0, 0, 0, 5, 0, 0, 0});
  write_used_element(2, {1, 0, 0, 0, 6, 0, 0, 0});
  write_used_index({3, 0});
  EXPECT_THAT(reap(driver), ElementsAre(IsUsed(0, 5), IsUsed(1, 6)));
  EXPECT_EQ(driver.counters().bad_ids, 1U);
  EXPECT_FALSE(driver.broken());
}

// 2.7.7 and 2.7.10 at their literal places: used_event behind the available ring (offset 76),
// avail_event behind the used ring (offset 116).
TEST_F(SplitDriverTest, EventIndicesStandBehindTheRings) {
  SplitDriver driver(ring_, {.event_index = true});
  EXPECT_THAT(bytes_at(memory_.data() + 76, 2), ElementsAre(0, 0));
  EXPECT_THAT(bytes_at(memory_.data() + 116, 2), ElementsAre(0, 0));
  driver.suppress_calls(true);
  // More than a queue behind the used index 0; flags stay 0.
  EXPECT_THAT(bytes_at(memory_.data() + 76, 2), ElementsAre(0xfb, 0xff));
  EXPECT_THAT(bytes_at(memory_.data() + 64, 2), ElementsAre(0, 0));
  driver.suppress_calls(false);
  EXPECT_THAT(bytes_at(memory_.data() + 76, 2), ElementsAre(0, 0));
  post(driver, {writable(0x1000, 64)});
  driver.expose();
  EXPECT_TRUE(driver.wants_event());
  write_used_element(0, {0, 0, 0, 0, 1, 0, 0, 0});
  write_used_index({1, 0});
  ASSERT_EQ(reap(driver).size(), 1U);
  EXPECT_THAT(bytes_at(memory_.data() + 76, 2), ElementsAre(1, 0));
  // The lower bit of used.flags is ignored now (2.7.10).
  write(80, {1, 0});
  write(116, {1, 0});
  post(driver, {writable(0x1000, 64)});
  driver.expose();
  EXPECT_TRUE(driver.wants_event());
  post(driver, {writable(0x1000, 64)});
  driver.expose();
  EXPECT_FALSE(driver.wants_event());
}

// A2: index 300 of a queue of 256 on a driver's ring.
TEST(SplitDriverSize, AnIdPastTheQueueIsRefusedAndTheRingCarriesOn) {
  alignas(16) std::array<std::uint8_t, 4096 + 518 + 2 + 2054> memory{};
  SplitRing ring;
  ring.descriptors = reinterpret_cast<Descriptor*>(memory.data());
  ring.avail = reinterpret_cast<RingHeader*>(memory.data() + 4096);
  ring.used = reinterpret_cast<RingHeader*>(memory.data() + 4096 + 520);
  ring.size = 256;
  SplitDriver driver(ring);
  ASSERT_TRUE(driver.post(std::array{writable(0x1000, 64)}).has_value());
  driver.expose();
  ring.used_elements()[0] = {300, 1};
  ring.used_elements()[1] = {0, 2};
  ring.used->index = 2;
  std::array<UsedChain, 4> used;
  ASSERT_EQ(driver.reap(used), 1U);
  EXPECT_THAT(used[0], IsUsed(0, 2));
  EXPECT_EQ(driver.counters().bad_ids, 1U);
  EXPECT_FALSE(driver.broken());
}

}  // namespace
}  // namespace vswitch::virtq
