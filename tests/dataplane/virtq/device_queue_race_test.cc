// The guest as a second thread: honest, to show the publication order of both sides to
// ThreadSanitizer, and hostile, changing what it posted between any two of our reads.
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kFrames = 20'000;
constexpr std::uint32_t kAttacks = 60'000;
#else
constexpr std::uint32_t kFrames = 200'000;
constexpr std::uint32_t kAttacks = 400'000;
#endif
// Frame bytes are copied with plain loads on purpose: a guest that writes into a posted buffer
// races with them and harms its own frame. ThreadSanitizer would report just that, so there the
// hostile guest keeps to descriptors, tables and rings.
#if defined(__SANITIZE_THREAD__)
constexpr bool kFlipFrameBytes = false;
#else
constexpr bool kFlipFrameBytes = true;
#endif

using Clock = std::chrono::steady_clock;
constexpr auto kStall = std::chrono::seconds(30);

class RaceTest : public DeviceQueueTest {};

// 2.7.13.3, 2.7.8.2: elements and frame bytes are visible before the used index that shows them.
// The guest reads both with plain loads behind one acquire.
TEST_F(RaceTest, ReceivedFramesAreWholeWhenTheyShow) {
  FakeQueue rx(guest_, kRxRing, 64);
  SplitQueue queue = device(rx, kVersion1 | kMergeable);
  std::atomic<std::uint32_t> wrong{0};
  std::atomic<std::uint32_t> received{0};
  for (std::uint16_t i = 0; i < 64; ++i) {
    rx.describe(i, kRxBuffers + 2048ull * i, 200, kWriteFlag);
    rx.put_head(i);
  }
  rx.show();
  std::thread guest([&] {
    std::uint16_t seen = 0;
    std::uint32_t expected = 0;
    const auto deadline = Clock::now() + kStall;
    while (expected < kFrames && Clock::now() < deadline) {
      if (seen == rx.used_index()) {
        std::this_thread::yield();
        continue;
      }
      const Used used = rx.used(seen++);
      std::uint32_t sequence = 0;
      const std::uint8_t* frame = guest_.at(kRxBuffers + 2048ull * used.id + 12);
      std::memcpy(&sequence, frame + 60, 4);
      const auto fill = static_cast<std::uint8_t>(sequence);
      if (sequence != expected || used.length != 12 + 180 || frame[64] != fill ||
          frame[179] != fill) {
        wrong.fetch_add(1);
      }
      ++expected;
      // Plain stores into what is ours again, before it is offered again.
      std::memset(guest_.at(kRxBuffers + 2048ull * used.id), 0xaa, 200);
      rx.offer(static_cast<std::uint16_t>(used.id));
      received.store(expected, std::memory_order_relaxed);
    }
  });
  Bytes bytes = pattern(180, 1);
  std::uint32_t sent = 0;
  const auto deadline = Clock::now() + kStall;
  while (sent < kFrames && Clock::now() < deadline) {
    std::memcpy(bytes.data() + 60, &sent, 4);
    std::memset(bytes.data() + 64, static_cast<std::uint8_t>(sent), 116);
    const OwnFrame own(bytes);
    const std::uint64_t before = counters_.packets.value();
    receive(queue, own.frame());
    if (counters_.packets.value() == before) {
      std::this_thread::yield();
    } else {
      ++sent;
    }
  }
  guest.join();
  EXPECT_EQ(sent, kFrames);
  EXPECT_EQ(received.load(), kFrames);
  EXPECT_EQ(wrong.load(), 0U);
  EXPECT_EQ(drops(), drops(DropReason::kNoRxBuffer));
}

// The other way: what the guest wrote before it showed the index is read whole, and our reads are
// over before the used index gives the buffer back.
TEST_F(RaceTest, SentFramesAreReadWholeBeforeTheyAreReturned) {
  FakeQueue tx(guest_, kTxRing, 64);
  FakeQueue rx(guest_, kRxRing, 1);
  SplitQueue from = device(tx, kVersion1);
  SplitQueue to = device(rx, kVersion1);
  rx.describe(0, kRxBuffers, 400, kWriteFlag);
  std::thread guest([&] {
    std::uint16_t free = 64;
    std::uint16_t seen = 0;
    const auto deadline = Clock::now() + kStall;
    for (std::uint32_t sequence = 0; sequence < kFrames;) {
      if (Clock::now() > deadline) return;
      for (; seen != tx.used_index(); ++seen) ++free;
      if (free == 0) {
        std::this_thread::yield();
        continue;
      }
      const auto slot = static_cast<std::uint16_t>(sequence % 64);
      std::uint8_t* buffer = guest_.at(kTxBuffers + 2048ull * slot);
      std::memset(buffer, static_cast<std::uint8_t>(sequence), 300);
      std::memcpy(buffer + 200, &sequence, 4);
      tx.describe(slot, kTxBuffers + 2048ull * slot, 300);
      tx.offer(slot);
      --free;
      ++sequence;
    }
  });
  std::uint32_t expected = 0;
  std::uint32_t wrong = 0;
  const auto deadline = Clock::now() + kStall;
  while (expected < kFrames && Clock::now() < deadline) {
    if (from.read(burst_, counters_) == 0) {
      std::this_thread::yield();
      continue;
    }
    for (std::uint32_t i = 0; i < burst_.count; ++i) {
      rx.offer(0);
      receive(to, burst_.frames[i]);
      std::uint32_t sequence = 0;
      std::memcpy(&sequence, guest_.at(kRxBuffers + 200), 4);
      const auto fill = static_cast<std::uint8_t>(expected);
      wrong += sequence != expected || *guest_.at(kRxBuffers + 12) != fill ||
               *guest_.at(kRxBuffers + 299) != fill;
      ++expected;
    }
    from.release();
  }
  guest.join();
  EXPECT_EQ(expected, kFrames);
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(drops(), 0U);
}

// 2.7.7.2: the guest asks for events, looks once more, and sleeps; the device publishes and asks
// whether the guest wants an event. One of the two always sees the other.
TEST_F(RaceTest, NoSleepingGuestIsForgotten) {
  FakeQueue tx(guest_, kTxRing, 64);
  SplitQueue queue = device(tx, kVersion1);
  put_frame(tx, 0, kTxBuffers, pattern(60, 1));
  std::atomic<std::uint32_t> called{0};
  std::atomic<bool> stalled{false};
  std::atomic<bool> done{false};
  std::thread guest([&] {
    // On a busy machine each round costs a time slice.
    const auto enough = Clock::now() + std::chrono::seconds(2);
    for (std::uint32_t round = 0; round < kFrames && Clock::now() < enough && !stalled.load();
         ++round) {
      tx.set_avail_flags(1);
      tx.offer(0);
      tx.set_avail_flags(0);
      virtq::full_fence();
      const auto deadline = Clock::now() + kStall;
      while (!stalled.load()) {
        const std::uint32_t calls = called.load(std::memory_order_acquire);
        if (tx.used_index() == tx.offered()) break;
        // Asleep: only a call makes it look at the ring again.
        while (called.load(std::memory_order_acquire) == calls && !stalled.load()) {
          if (Clock::now() > deadline) stalled = true;
          std::this_thread::yield();
        }
      }
    }
    done = true;
  });
  while (!done.load()) {
    if (queue.read(burst_, counters_) == 0) {
      std::this_thread::yield();
      continue;
    }
    queue.release();
    if (queue.wants_event()) called.fetch_add(1, std::memory_order_release);
  }
  guest.join();
  EXPECT_FALSE(stalled.load());
  EXPECT_EQ(drops(), 0U);
}

// A guest that rewrites every field of a posted chain, its table and (see above) the frame's
// addresses, while we work on it. Each chain is delivered as it was classified, or refused.
TEST_F(RaceTest, FieldsThatChangeBetweenReads) {
  SplitQueue from = device(tx_, kVersion1);
  SplitQueue to = device(rx_, kVersion1 | kMergeable);
  const Bytes good_mac{0x02, 0, 0, 0, 0, 0x01};
  const Bytes group_mac{0x03, 0, 0, 0, 0, 0x01};
  Bytes frame = pattern(1000, 1);
  std::copy(good_mac.begin(), good_mac.end(), frame.begin() + 6);
  guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
  tx_.describe(0, kTxBuffers, 1012);
  tx_.describe(1, kTables, 32, kIndirectFlag);
  guest_.put_descriptor(kTables, kTxBuffers, 20, kNextFlag, 1);
  guest_.put_descriptor(kTables + 16, kTxBuffers + 20, 800, 0, 0);
  for (std::uint16_t i = 0; i < 256; ++i) {
    rx_.describe(i, kRxBuffers + 2048ull * i, 2048, kWriteFlag);
    rx_.put_head(i);
  }
  rx_.show();

  std::atomic<bool> stop{false};
  std::thread guest([&] {
    std::minstd_rand random(1);
    const std::uint64_t addresses[] = {kTxBuffers, 0xdead0000,     kEnd - 100,
                                       kTables,    kTxBuffers + 7, 0xfffffffffffffff0};
    const std::uint32_t lengths[] = {0, 12, 13, 32, 48, 1012, 0xffffffff, 100};
    const std::uint16_t flags[] = {0, 1, 2, 4, 5, 0, 4, 1};
    const std::uint16_t nexts[] = {0, 1, 300, 255};
    while (!stop.load(std::memory_order_relaxed)) {
      const std::uint64_t place =
          random() % 2 ? tx_.table() + 16ull * (random() % 2) : kTables + 16ull * (random() % 2);
      std::uint64_t address = addresses[random() % 6];
      unsigned long field = random() % 5;
      if constexpr (!kFlipFrameBytes) {
        // The table, which is written, must not be sent as a frame.
        if (address == kTables) address = kTxBuffers + 3;
        if (place == tx_.table() + 16) field |= 1;  // 0 and 2 are its address and flags
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
          if constexpr (kFlipFrameBytes) {
            *guest_.at(kTxBuffers + 12 + 6) = random() % 2 ? 0x02 : 0x03;
          }
      }
    }
  });

  std::uint64_t delivered = 0;
  std::uint64_t refused_by_switch = 0;
  for (std::uint32_t i = 0; i < kAttacks; ++i) {
    tx_.offer(static_cast<std::uint16_t>(i % 2));
    const std::uint64_t drops_before = drops();
    ASSERT_EQ(from.read(burst_, counters_), 1U);
    ASSERT_EQ(burst_.count + drops() - drops_before, 1U);  // a frame or a counted refusal
    if (burst_.count == 1 && burst_.frames[0].bytes() >= 14 && burst_.frames[0].bytes() <= 1514) {
      const Frame& taken = burst_.frames[0];
      const auto* header = reinterpret_cast<const std::uint8_t*>(taken.header);
      const Bytes decided_on(header, header + taken.header_bytes);
      if ((decided_on[6] & 1) != 0) {
        ++refused_by_switch;
      } else {
        const std::uint16_t slot = rx_.used_index();
        receive(to, taken);
        const Used used = rx_.used(slot);
        ASSERT_EQ(used.length, taken.bytes() + 12);
        ASSERT_EQ(guest_.read(kRxBuffers + 2048ull * used.id + 12, decided_on.size()), decided_on);
        rx_.offer(static_cast<std::uint16_t>(used.id));
        ++delivered;
      }
    }
    from.release();
    ASSERT_EQ(tx_.used_index(), static_cast<std::uint16_t>(i + 1));
    ASSERT_EQ(tx_.used(static_cast<std::uint16_t>(i)), (Used{i % 2, 0}));
  }
  stop = true;
  guest.join();
  EXPECT_EQ(from.broken(), virtq::BrokenRing::kNone);
  EXPECT_GT(delivered + refused_by_switch, 0U);
  EXPECT_GT(drops(), 0U);
}

// The same against receive buffers and the available ring itself: whatever becomes of the ring,
// nothing outside the guest's memory is touched and every write comes back.
TEST_F(RaceTest, ReceiveRingThatChangesBetweenReads) {
  const OwnFrame own(pattern(1500, 1), {400});
  const std::vector<const Frame*> burst(32, &own.frame());
  std::atomic<bool> stop{false};
  FakeQueue rx(guest_, kRxRing, 4);
  std::thread guest([&] {
    std::minstd_rand random(2);
    const std::uint64_t addresses[] = {kRxBuffers, kRxBuffers + 4096, kEnd - 100, 0xdead0000};
    const std::uint32_t lengths[] = {0, 11, 12, 600, 2048, 0xffffffff};
    const std::uint16_t flags[] = {2, 3, 2, 0, 2, 6};
    while (!stop.load(std::memory_order_relaxed)) {
      const std::uint64_t place = rx.table() + 16ull * (random() % 4);
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
          guest_.put16(rx.avail() + 4 + 2 * (random() % 4),
                       static_cast<std::uint16_t>(random() % 1000 == 0 ? 4 : random() % 4));
          break;
        default:
          // As far ahead of what was returned as it may look honest, and beyond.
          rx.set_avail_index(static_cast<std::uint16_t>(rx.used_index() + random() % 9));
      }
    }
  });
  std::uint64_t rebuilt = 0;
  SplitQueue queue = device(rx, kVersion1 | kMergeable);
  for (std::uint32_t i = 0; i < kAttacks / 10; ++i) {
    queue.write(burst.data(), 32, counters_);
    if (queue.broken() != virtq::BrokenRing::kNone) {
      queue = device(rx, kVersion1 | kMergeable, rx.used_index());
      ++rebuilt;
    }
  }
  stop = true;
  guest.join();
  EXPECT_GT(rebuilt, 0U);
  EXPECT_GT(drops(), 0U);
}

}  // namespace
}  // namespace vswitch::testing
