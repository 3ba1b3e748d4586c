// A hostile guest as a second thread: it changes what it posted between any two of our reads. Each
// chain is delivered as it was classified, or refused, and nothing else happens.
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

// Changes the guest makes in each test, as fast as it can: a second or two. Frame bytes are copied
// with plain loads on purpose: a guest that writes into a posted buffer races with them and harms
// its own frame. ThreadSanitizer would report just that, so there the guest keeps to descriptors,
// tables and rings.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kChanges = 1'000'000;
constexpr bool kChangesFrameBytes = false;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kChanges = 2'000'000;
constexpr bool kChangesFrameBytes = true;
#else
constexpr std::uint64_t kChanges = 10'000'000;
constexpr bool kChangesFrameBytes = true;
#endif

using Clock = std::chrono::steady_clock;

class HostileRaceFixture : public DeviceQueueFixture {
 protected:
  explicit HostileRaceFixture(Layout layout) : DeviceQueueFixture(layout) {
    Bytes frame = pattern(1000, 1);
    frame[6] = 0x02;
    guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
    for (std::uint16_t i = 0; i < 256; ++i) {
      rx_.describe(i, kRxBuffers + 2048ull * i, 2048, kWriteFlag);
      rx_.put_head(i);
    }
    rx_.show();
  }

  // Runs `change` on a thread of its own and `poll` on this one, until the guest has made kChanges
  // changes and `enough` has been seen of what they do (a busy machine may run one thread alone for
  // long).
  template <typename Change, typename Poll, typename Enough>
  void fight(Change change, Poll poll, Enough enough) {
    std::atomic<std::uint64_t> changes{0};
    std::atomic<bool> stop{false};
    std::thread guest([&] {
      std::minstd_rand random(1);
      while (!stop.load(std::memory_order_relaxed)) {
        change(random);
        changes.fetch_add(1, std::memory_order_relaxed);
      }
    });
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    while (!HasFatalFailure() && Clock::now() < deadline &&
           (changes.load(std::memory_order_relaxed) < kChanges || !enough())) {
      for (int i = 0; i < 64 && !HasFatalFailure(); ++i) poll();
    }
    stop = true;
    guest.join();
    EXPECT_TRUE(enough());
  }

  // What the switch does with a frame: it decides on the private header, and delivers just that.
  void judge(const Frame& taken, DeviceUnderTest& to) {
    if (taken.bytes() < 14 || taken.bytes() > 1514) return;
    const auto* header = reinterpret_cast<const std::uint8_t*>(taken.header);
    const Bytes decided_on(header, header + taken.header_bytes);
    if ((decided_on[6] & 1) != 0) {  // a group address is no source
      ++refused_by_switch_;
      return;
    }
    const std::uint16_t slot = rx_.used_index();
    receive(to, taken);
    ASSERT_EQ(rx_.used_index(), static_cast<std::uint16_t>(slot + 1));
    const Used used = rx_.used(slot);
    ASSERT_EQ(used.length, taken.bytes() + 12);
    ASSERT_EQ(guest_.read(kRxBuffers + 2048ull * used.id + 12, decided_on.size()), decided_on);
    rx_.offer(static_cast<std::uint16_t>(used.id));
    ++delivered_;
  }

  std::uint64_t delivered_ = 0;
  std::uint64_t refused_by_switch_ = 0;
};

class HostileRaceTest : public HostileRaceFixture, public ::testing::WithParamInterface<Layout> {
 protected:
  HostileRaceTest() : HostileRaceFixture(GetParam()) {}
};
class SplitHostileRaceTest : public HostileRaceFixture {
 protected:
  SplitHostileRaceTest() : HostileRaceFixture(Layout::kSplit) {}
};
class PackedHostileRaceTest : public HostileRaceFixture {
 protected:
  PackedHostileRaceTest() : HostileRaceFixture(Layout::kPacked) {}
};

// Time of check, time of use: address and length of posted descriptors and of table entries, and
// the source address in the frame.
TEST_P(HostileRaceTest, AddressesAndLengthsThatChange) {
  GuestRing tx = ring(kTxRing, 2);
  DeviceUnderTest from = device(tx, kVersion1);
  DeviceUnderTest to = device(rx_, kVersion1 | kMergeable);
  tx.describe(0, kTxBuffers, 1012);
  tx.describe(1, kTables, 32, kIndirectFlag);
  tx.put_entry(kTables, 0, 2, kTxBuffers, 20);
  tx.put_entry(kTables, 1, 2, kTxBuffers + 20, 800);
  std::uint16_t offered = 0;
  std::uint64_t taken = 0;
  std::uint64_t frames = 0;
  fight(
      [&](std::minstd_rand& random) {
        // Slot 1 alone refers to the table, which is never sent as a frame itself.
        const std::uint64_t addresses[] = {kTxBuffers,     0xdead0000,  kTxBuffers,
                                           kTxBuffers + 7, kEnd - 1012, 0xfffffffffffffff0};
        const std::uint32_t lengths[] = {1012, 0, 12, 13, 32, 48, 1012, 0xffffffff};
        const std::uint64_t place =
            random() % 2 ? kTxRing + 16ull * (random() % 2) : kTables + 16ull * (random() % 2);
        switch (random() % 3) {
          case 0:
            guest_.put64(place, place != kTxRing + 16 ? addresses[random() % 6]
                                : random() % 4 != 0   ? kTables
                                                      : 0xdead0000);
            break;
          case 1:
            guest_.put32(place + 8, lengths[random() % 8]);
            break;
          default:
            if constexpr (kChangesFrameBytes) {
              *guest_.at(kTxBuffers + 12 + 6) = random() % 2 ? 0x02 : 0x03;
            }
        }
      },
      [&] {
        tx.offer(offered % 2);  // in a packed ring, written anew each time
        const std::uint64_t drops_before = drops();
        ASSERT_EQ(from.read(burst_, counters_), 1U);
        ASSERT_EQ(burst_.count + drops() - drops_before, 1U);  // a frame or a counted refusal
        if (burst_.count == 1) judge(burst_.frames[0], to);
        frames += burst_.count;
        from.release();
        ++offered;
        ++taken;
        ASSERT_EQ(tx.used_index(), offered);
        ASSERT_EQ(tx.used(static_cast<std::uint16_t>(offered - 1)).id, (offered - 1u) % 2);
      },
      [&] {
        return delivered_ > 0 && drops() > 0 && (!kChangesFrameBytes || refused_by_switch_ > 0);
      });
  EXPECT_EQ(from.broken(), virtq::BrokenRing::kNone);
  EXPECT_EQ(frames + drops(), taken);
}

VSWITCH_FOR_BOTH_LAYOUTS(HostileRaceTest);

// Every field of two chains and a table.
TEST_F(SplitHostileRaceTest, FieldsThatChangeBetweenReads) {
  DeviceUnderTest from = device(tx_, kVersion1);
  DeviceUnderTest to = device(rx_, kVersion1 | kMergeable);
  tx_.describe(0, kTxBuffers, 1012);
  tx_.describe(1, kTables, 32, kIndirectFlag);
  tx_.put_entry(kTables, 0, 2, kTxBuffers, 20);
  tx_.put_entry(kTables, 1, 2, kTxBuffers + 20, 800);
  std::uint16_t offered = 0;
  fight(
      [&](std::minstd_rand& random) {
        const std::uint64_t addresses[] = {kTxBuffers, 0xdead0000,     kEnd - 100,
                                           kTables,    kTxBuffers + 7, 0xfffffffffffffff0};
        const std::uint32_t lengths[] = {0, 12, 13, 32, 48, 1012, 0xffffffff, 100};
        const std::uint16_t flags[] = {0, 1, 2, 4, 5, 0, 4, 1};
        const std::uint16_t nexts[] = {0, 1, 300, 255};
        const std::uint64_t place =
            random() % 2 ? kTxRing + 16ull * (random() % 2) : kTables + 16ull * (random() % 2);
        std::uint64_t address = addresses[random() % 6];
        unsigned long field = random() % 5;
        if constexpr (!kChangesFrameBytes) {
          // The table, which is written, must not be sent as a frame.
          if (address == kTables) address = kTxBuffers + 3;
          if (place == kTxRing + 16) field |= 1;  // 0 and 2 are its address and flags
        }
        switch (field) {
          case 0:
            guest_.put64(place, address);
            break;
          case 1:
            guest_.put32(place + 8, lengths[random() % 8]);
            break;
          case 2:
            guest_.put16(place + 12, flags[random() % 8]);
            break;
          case 3:
            guest_.put16(place + 14, nexts[random() % 4]);
            break;
          default:
            if constexpr (kChangesFrameBytes) {
              *guest_.at(kTxBuffers + 12 + 6) = random() % 2 ? 0x02 : 0x03;
            }
        }
      },
      [&] {
        const std::uint16_t head = offered % 2;
        tx_.offer(head);
        const std::uint64_t drops_before = drops();
        ASSERT_EQ(from.read(burst_, counters_), 1U);
        ASSERT_EQ(burst_.count + drops() - drops_before, 1U);
        if (burst_.count == 1) judge(burst_.frames[0], to);
        from.release();
        ++offered;
        ASSERT_EQ(tx_.used_index(), offered);
        ASSERT_EQ(tx_.used(static_cast<std::uint16_t>(offered - 1)), (Used{head, 0}));
      },
      [&] { return delivered_ > 0 && drops() > 0; });
  EXPECT_EQ(from.broken(), virtq::BrokenRing::kNone);
}

// Every field of a packed ring, the flags included: chains appear, grow, overlap and vanish. A ring
// whose list does not end is given up and made anew.
TEST_F(PackedHostileRaceTest, FieldsThatChangeBetweenReads) {
  DeviceUnderTest to = device(rx_, kVersion1 | kMergeable);
  for (const std::uint32_t size : {1u, 3u, 4u}) {
    const FakePackedQueue layout(guest_, kTxRing, size);
    std::uint16_t position = layout.device_start();
    const auto made = [&] {
      return DeviceUnderTest(
          PackedQueue(virtq::PackedDevice(layout.ring(), position, {.indirect = true}),
                      guest_.memory(), kVersion1, size));
    };
    DeviceUnderTest from = made();
    guest_.put_descriptor(kTables, kTxBuffers, 20, 0, 0);
    guest_.put_descriptor(kTables + 16, kTxBuffers + 20, 800, 0, 0);
    std::uint64_t chains = 0;
    std::uint64_t frames = 0;
    std::uint64_t rebuilt = 0;
    const std::uint64_t drops_before = drops();
    fight(
        [&](std::minstd_rand& random) {
          const std::uint64_t addresses[] = {kTxBuffers, 0xdead0000,     kTxBuffers,
                                             kEnd - 100, kTxBuffers + 7, 0xfffffffffffffff0};
          const std::uint32_t lengths[] = {0, 12, 13, 32, 48, 1012, 0xffffffff, 100};
          const std::uint16_t flags[] = {0, 0, 0, kNextFlag, kWriteFlag, kIndirectFlag, 0, 5};
          const std::uint64_t slot = kTxRing + 16ull * (random() % size);
          const bool table = random() % 4 == 0;
          const std::uint64_t place = table ? kTables + 16ull * (random() % 2) : slot;
          switch (random() % 8) {
            case 0:
              guest_.put64(place, addresses[random() % 6]);
              break;
            case 1:
              guest_.put32(place + 8, lengths[random() % 8]);
              break;
            case 2:
              guest_.put16(slot + 12, static_cast<std::uint16_t>(random()));
              break;
            case 3:
              if constexpr (kChangesFrameBytes) {
                guest_.put64(slot, kTables);
                *guest_.at(kTxBuffers + 12 + 6) = random() % 2 ? 0x02 : 0x03;
              }
              break;
            default:
              guest_.put16(slot + 14,
                           static_cast<std::uint16_t>(flags[random() % 8] |
                                                      (random() % 4 == 0   ? random() % 2 * 0x8080
                                                       : random() % 2 == 0 ? kAvailBit
                                                                           : kUsedBit)));
          }
        },
        [&] {
          const std::uint64_t dropped = drops();
          const std::uint32_t taken = from.read(burst_, counters_);
          ASSERT_LE(taken, size);
          ASSERT_EQ(burst_.count + drops() - dropped, taken);
          for (std::uint32_t i = 0; i < burst_.count && !HasFatalFailure(); ++i) {
            judge(burst_.frames[i], to);
          }
          if (taken != 0) from.release();
          chains += taken;
          frames += burst_.count;
          ASSERT_LT(from.position() & 0x7fff, static_cast<int>(size));
          if (from.broken() == virtq::BrokenRing::kNone) return;
          ASSERT_EQ(from.broken(), virtq::BrokenRing::kEndlessList);
          position = from.position();
          from = made();
          ++rebuilt;
        },
        [&] { return chains > 1000 && rebuilt > 0 && delivered_ > 0; });
    EXPECT_EQ(frames + drops() - drops_before, chains);
  }
}

// The same against receive buffers and the available ring itself: whatever becomes of the ring,
// nothing outside the guest's memory is touched and every write comes back.
TEST_F(SplitHostileRaceTest, ReceiveRingThatChangesBetweenReads) {
  const OwnFrame own(pattern(1500, 1), {400});
  const std::vector<const Frame*> burst(32, &own.frame());
  GuestRing rx = ring(kTxRing, 4);
  std::uint64_t rebuilt = 0;
  std::uint64_t written = 0;
  DeviceUnderTest queue = device(rx, kVersion1 | kMergeable);
  FakeQueue& raw = rx.split();
  fight(
      [&](std::minstd_rand& random) {
        const std::uint64_t addresses[] = {kRxBuffers, kRxBuffers + 4096, kEnd - 100, 0xdead0000};
        const std::uint32_t lengths[] = {0, 11, 12, 600, 2048, 0xffffffff};
        const std::uint16_t flags[] = {2, 3, 2, 0, 2, 6};
        const std::uint64_t place = raw.table() + 16ull * (random() % 4);
        switch (random() % 6) {
          case 0:
            guest_.put64(place, addresses[random() % 4]);
            break;
          case 1:
            guest_.put32(place + 8, lengths[random() % 6]);
            break;
          case 2:
            guest_.put16(place + 12, flags[random() % 6]);
            break;
          case 3:
            guest_.put16(place + 14, static_cast<std::uint16_t>(random() % 5));
            break;
          case 4:
            guest_.put16(raw.avail() + 4 + 2 * (random() % 4),
                         static_cast<std::uint16_t>(random() % 1000 == 0 ? 4 : random() % 4));
            break;
          default:
            // As far ahead of what was returned as it may look honest, and beyond.
            raw.set_avail_index(static_cast<std::uint16_t>(raw.used_index() + random() % 9));
        }
      },
      [&] {
        queue.write(burst.data(), 32, counters_);
        ++written;
        if (queue.broken() == virtq::BrokenRing::kNone) return;
        ASSERT_NE(queue.broken(), virtq::BrokenRing::kEndlessList);
        queue =
            make_device(guest_, rx, kVersion1 | kMergeable, {.indirect = true}, raw.used_index());
        ++rebuilt;
      },
      [&] { return rebuilt > 0 && drops() > drops(DropReason::kNoRxBuffer); });
  EXPECT_EQ(counters_.packets.value() + drops(DropReason::kNoRxBuffer), written * 32);
}

TEST_F(PackedHostileRaceTest, ReceiveRingThatChangesBetweenReads) {
  const OwnFrame own(pattern(1500, 1), {400});
  const std::vector<const Frame*> burst(32, &own.frame());
  std::uint64_t rebuilt = 0;
  std::uint64_t written = 0;
  for (const std::uint32_t size : {1u, 4u, 7u}) {
    const FakePackedQueue layout(guest_, kTxRing, size);
    std::uint16_t position = layout.device_start();
    const auto made = [&] {
      return DeviceUnderTest(
          PackedQueue(virtq::PackedDevice(layout.ring(), position, {.indirect = true}),
                      guest_.memory(), kVersion1 | kMergeable, size));
    };
    DeviceUnderTest queue = made();
    fight(
        [&](std::minstd_rand& random) {
          const std::uint64_t addresses[] = {kRxBuffers, kRxBuffers + 4096, kEnd - 100, 0xdead0000};
          const std::uint32_t lengths[] = {0, 11, 12, 600, 2048, 0xffffffff};
          const std::uint16_t flags[] = {2, 3, 2, 0, 2, 6};
          const std::uint64_t place = kTxRing + 16ull * (random() % size);
          switch (random() % 5) {
            case 0:
              guest_.put64(place, addresses[random() % 4]);
              break;
            case 1:
              guest_.put32(place + 8, lengths[random() % 6]);
              break;
            case 2:
              guest_.put16(place + 12, static_cast<std::uint16_t>(random()));
              break;
            default:
              guest_.put16(place + 14,
                           static_cast<std::uint16_t>(flags[random() % 6] |
                                                      (random() % 2 == 0 ? kAvailBit : kUsedBit)));
          }
        },
        [&] {
          queue.write(burst.data(), 32, counters_);
          ++written;
          ASSERT_LT(queue.position() & 0x7fff, static_cast<int>(size));
          if (queue.broken() == virtq::BrokenRing::kNone) return;
          ASSERT_EQ(queue.broken(), virtq::BrokenRing::kEndlessList);
          position = queue.position();
          queue = made();
          ++rebuilt;
        },
        [&] { return rebuilt > 0 && counters_.packets.value() > 0; });
  }
  EXPECT_EQ(counters_.packets.value() + drops(DropReason::kNoRxBuffer), written * 32);
}

}  // namespace
}  // namespace vswitch::testing
