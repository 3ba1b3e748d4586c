// An honest guest as a second thread, which shows the publication order of both sides to
// ThreadSanitizer: whatever becomes visible is complete.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kFrames = 20'000;
#else
constexpr std::uint32_t kFrames = 200'000;
#endif

using Clock = std::chrono::steady_clock;
constexpr auto kStall = std::chrono::seconds(30);

class RaceTest : public DeviceQueueTest {};

// 2.7.8.2, 2.8.22: length and frame bytes are visible before the index, or the flags, that show
// them. The guest reads with plain loads behind one acquire.
TEST_P(RaceTest, ReceivedFramesAreWholeWhenTheyShow) {
  GuestRing rx = ring(kRxRing, 64);
  DeviceUnderTest queue = device(rx, kVersion1 | kMergeable);
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
  EXPECT_EQ(rx.wrong_flags(), 0U);
  EXPECT_EQ(drops(), drops(DropReason::kNoRxBuffer));
}

// The other way: what the guest wrote before it showed a chain is read whole, and our reads are
// over before the buffer is given back. Every third chain is a list of two, in a packed ring shown
// by the first one's flags.
TEST_P(RaceTest, SentFramesAreReadWholeBeforeTheyAreReturned) {
  GuestRing tx = ring(kTxRing, 64);
  GuestRing rx = ring(kRxRing, 1);
  DeviceUnderTest from = device(tx, kVersion1);
  DeviceUnderTest to = device(rx, kVersion1);
  rx.describe(0, kRxBuffers, 400, kWriteFlag);
  std::thread guest([&] {
    std::uint16_t free = 32;
    std::uint16_t seen = 0;
    const auto deadline = Clock::now() + kStall;
    for (std::uint32_t sequence = 0; sequence < kFrames;) {
      if (Clock::now() > deadline) return;
      for (; seen != tx.used_index(); ++seen) ++free;
      if (free == 0) {
        std::this_thread::yield();
        continue;
      }
      const auto head = static_cast<std::uint16_t>(sequence % 32 * 2);
      const std::uint64_t address = kTxBuffers + 2048ull * head;
      std::uint8_t* buffer = guest_.at(address);
      std::memset(buffer, static_cast<std::uint8_t>(sequence), 300);
      std::memcpy(buffer + 200, &sequence, 4);
      if (sequence % 3 == 0) {
        tx.describe(head, address, 100, kNextFlag, static_cast<std::uint16_t>(head + 1));
        tx.describe(head + 1u, address + 100, 200);
      } else {
        tx.describe(head, address, 300);
      }
      tx.offer(head);
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

VSWITCH_FOR_BOTH_LAYOUTS(RaceTest);

// The used descriptors of a batch are written last to first. A guest that sees the first,
// by one acquire of its flags, finds all others used and complete with loads of no order.
TEST(PackedRaceTest, FirstUsedDescriptorShowsTheWholeBatch) {
  constexpr std::uint64_t kRing = 0x10000000;
  constexpr std::uint32_t kSize = 48;  // no power of two: batches lie over the end
  constexpr std::uint32_t kBatch = 32;
  const FakeGuest guest({{kRing, 0x10000}});
  FakePackedQueue queue(guest, kRing, kSize);
  virtq::PackedDevice end(queue.ring(), queue.device_start(), {});
  std::atomic<std::uint32_t> allowed{0};
  std::atomic<std::uint32_t> wrong{0};
  std::thread reader([&] {
    std::uint32_t first = 0;
    bool wrap = true;
    const auto deadline = Clock::now() + kStall;
    for (std::uint32_t batch = 0; batch < kFrames / 8; ++batch) {
      std::uint16_t used = wrap ? kAvailBit | kUsedBit : 0;
      for (std::uint32_t spins = 1; queue.slot_flags(first) != (used | kWriteFlag); ++spins) {
        if (spins % 1024 != 0) continue;  // to be there while the batch is written
        if (Clock::now() > deadline) {
          wrong = ~0u;
          return;
        }
        std::this_thread::yield();
      }
      for (std::uint32_t i = 0; i < kBatch; ++i) {
        const std::uint64_t place = queue.place(first);
        wrong += guest.get32(place + 8) != batch + 1 || guest.get16(place + 12) != i ||
                 guest.get16(place + 14) != (used | kWriteFlag);
        if (++first == kSize) {
          first = 0;
          wrap = !wrap;
          used = wrap ? kAvailBit | kUsedBit : 0;
        }
      }
      allowed.store(batch + 1, std::memory_order_release);
    }
  });
  std::vector<virtq::PackedDevice::Used> elements(kBatch);
  const auto deadline = Clock::now() + kStall;
  for (std::uint32_t batch = 0; batch < kFrames / 8 && wrong == 0; ++batch) {
    while (allowed.load(std::memory_order_acquire) != batch && Clock::now() < deadline) {
      std::this_thread::yield();
    }
    for (std::uint16_t i = 0; i < kBatch; ++i) elements[i] = {i, 1, batch + 1};
    end.publish(elements.data(), kBatch);
  }
  reader.join();
  EXPECT_EQ(wrong.load(), 0U);
}

}  // namespace
}  // namespace vswitch::testing
