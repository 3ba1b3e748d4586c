// Who is told what, and when (virtio 1.2, 2.7.7, 2.7.10, 2.8.10, 2.8.14): no guest sleeps over work
// that is done, in any of the four ways to ask for an event.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using ::testing::ElementsAre;
using Clock = std::chrono::steady_clock;

// How a guest says what it wants: a flag, or (with VIRTIO_F_EVENT_IDX) a place in the ring.
struct Way {
  Layout layout;
  bool event_index;
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << layout_name(way.layout) << (way.event_index ? " event index" : " flags");
}

class NotificationTest : public DeviceQueueFixture, public ::testing::WithParamInterface<Way> {
 protected:
  NotificationTest() : DeviceQueueFixture(GetParam().layout) {}

  DeviceUnderTest asked(GuestRing& ring, std::uint64_t features) const {
    return make_device(guest_, ring, features, {.event_index = GetParam().event_index});
  }
  // Asks for an event at the next chain that is used, of which `seen` were before.
  static void ask(GuestRing& ring, std::uint16_t seen) {
    if (GetParam().event_index) {
      ring.event_at_next_used(seen);
    } else {
      ring.suppress_events(false);
    }
  }
  // With an event index that is a place the ring does not reach soon: the one just passed.
  static void refuse(GuestRing& ring, std::uint16_t seen) {
    if (!GetParam().event_index) {
      ring.suppress_events(true);
    } else if (ring.is_packed()) {
      ring.packed().suppress_events(true);
    } else {
      ring.split().event_at(static_cast<std::uint16_t>(seen - 1));
    }
  }
};

// One frame, then nothing: it is returned by the poll that read it, not with the next burst.
TEST_P(NotificationTest, OneFrameIsReturnedByItsOwnPoll) {
  DeviceUnderTest queue = asked(tx_, kVersion1);
  put_frame(tx_, 0, kTxBuffers, pattern(60, 1));
  std::uint32_t late = 0;
  for (std::uint16_t i = 0; i < 1000; ++i) {
    ask(tx_, tx_.used_index());
    tx_.offer(0);
    const auto shown = Clock::now();
    ASSERT_EQ(transmit(queue).size(), 1U);
    ASSERT_THAT(tx_.used_since(i), ElementsAre(Used{0, 0}));
    late += Clock::now() - shown > std::chrono::milliseconds(1);
    ASSERT_TRUE(queue.wants_event());
    ASSERT_EQ(queue.read(burst_, counters_), 0U);
  }
  EXPECT_LE(late, 20U);  // this thread may be suspended, but not often
}

// The guest fills its ring, asks to be told when the last frame has gone, and sleeps.
TEST_P(NotificationTest, FullTransmitRingWakesTheGuest) {
  DeviceUnderTest queue = asked(tx_, kVersion1);
  for (std::uint16_t i = 0; i < 256; ++i) {
    put_frame(tx_, i, kTxBuffers + 2048ull * i, pattern(100, i));
    tx_.put_head(i);
  }
  tx_.show();
  if (!GetParam().event_index) {
    tx_.suppress_events(false);
  } else if (tx_.is_packed()) {
    tx_.packed().event_at(0x8000 | 255);
  } else {
    tx_.split().event_at(255);
  }
  queue.wants_event();  // the first answer of a queue is always yes
  std::uint32_t bursts = 0;
  std::uint32_t calls = 0;
  bool last = false;
  while (queue.read(burst_, counters_) != 0) {
    queue.release();
    ++bursts;
    last = queue.wants_event();
    calls += last;
  }
  EXPECT_TRUE(last);
  EXPECT_EQ(tx_.used_index(), 256);
  EXPECT_EQ(bursts, 8U);
  EXPECT_EQ(calls, GetParam().event_index ? 1U : 8U);
}

TEST_P(NotificationTest, FullTransmitRingOfAGuestThatDoesNotAsk) {
  DeviceUnderTest queue = asked(tx_, kVersion1);
  for (std::uint16_t i = 0; i < 256; ++i) {
    put_frame(tx_, i, kTxBuffers + 2048ull * i, pattern(100, i));
    tx_.put_head(i);
  }
  tx_.show();
  refuse(tx_, 0);
  queue.wants_event();
  while (queue.read(burst_, counters_) != 0) {
    queue.release();
    EXPECT_FALSE(queue.wants_event());
  }
  EXPECT_EQ(tx_.used_index(), 256);
}

// Chains of 19, a receive buffer each: never more calls than bursts.
TEST_P(NotificationTest, NoMoreCallsThanBursts) {
  GuestRing rx = ring(kRxRing, 1024);
  DeviceUnderTest queue = asked(rx, kVersion1);
  std::uint16_t seen = 0;
  std::uint32_t calls = 0;
  const OwnFrame own(pattern(1514, 3), {333, 1, 2, 65});
  const std::vector<const Frame*> burst(32, &own.frame());
  for (std::uint32_t round = 0; round < 20; ++round) {
    for (std::uint32_t i = 0; i < 32; ++i) {
      for (std::uint32_t d = 0; d < 19; ++d) {
        rx.describe(19 * i + d, kRxBuffers + 4096ull * i + 90 * d, 90,
                    static_cast<std::uint16_t>(d == 18 ? kWriteFlag : kWriteFlag | kNextFlag),
                    static_cast<std::uint16_t>(19 * i + d + 1));
      }
      rx.put_head(static_cast<std::uint16_t>(19 * i));
    }
    rx.show();
    ask(rx, seen);
    queue.write(burst.data(), 32, counters_);
    calls += queue.wants_event();
    if (GetParam().event_index) {
      EXPECT_FALSE(queue.wants_event());  // nothing new since
    }
    seen = rx.used_index();
    ASSERT_EQ(seen, 32 * (round + 1));
  }
  EXPECT_EQ(calls, 20U);
  EXPECT_EQ(counters_.packets.value(), 640U);
  EXPECT_EQ(drops(), 0U);
}

// The guest turns events off around every drain, on again before it sleeps, and looks once more
// (2.7.7.2, 2.8.10); the device publishes and then asks what the guest wants. One of the two always
// sees the other. A guest that still sleeps although the device has long been idle is lost.
TEST_P(NotificationTest, NoSleepingGuestIsForgotten) {
  GuestRing tx = ring(kTxRing, 64);
  DeviceUnderTest queue = asked(tx, kVersion1);
  for (std::uint16_t i = 0; i < 64; ++i) {
    put_frame(tx, i, kTxBuffers + 256ull * i, pattern(60, i));
  }
  std::atomic<std::uint32_t> called{0};
  std::atomic<std::uint64_t> polls{0};  // that found nothing
  std::atomic<bool> done{false};
  std::uint32_t frames = 0;
  std::uint32_t sleeps = 0;
  std::uint32_t lost = 0;
  std::thread guest([&] {
    const auto enough = Clock::now() + std::chrono::milliseconds(2000);
    std::uint16_t seen = 0;
    std::uint32_t random = 1;
    while (Clock::now() < enough && lost == 0) {
      const std::uint32_t batch = frames % 8 == 0 ? 5 : 1;  // mostly no second chance
      refuse(tx, seen);
      for (std::uint32_t i = 0; i < batch; ++i) tx.put_head(static_cast<std::uint16_t>(i));
      tx.show();
      const auto target = static_cast<std::uint16_t>(seen + batch);
      while (seen != target && lost == 0) {
        refuse(tx, seen);
        seen = tx.used_index();  // drains
        if (seen == target) break;
        const std::uint32_t calls = called.load(std::memory_order_acquire);
        // Now sooner, now later, so that some time it falls together with the device's decision.
        random = random * 1664525 + 1013904223;
        for (volatile std::uint32_t spins = random >> 23; spins != 0;) spins = spins - 1;
        ask(tx, seen);
        virtq::full_fence();
        if (tx.used_index() != seen) continue;
        // Asleep: only a call makes it look at the ring again.
        ++sleeps;
        std::uint64_t idle_since = 0;
        bool waiting = false;
        while (called.load(std::memory_order_acquire) == calls) {
          if (!waiting && tx.used_index() != seen) {
            // There is something to see. If the device was to call for it, it has done so before
            // two more idle polls are over.
            waiting = true;
            idle_since = polls.load(std::memory_order_acquire);
          }
          if (waiting && polls.load(std::memory_order_acquire) > idle_since + 2 &&
              called.load(std::memory_order_acquire) == calls) {
            ++lost;
            break;
          }
          std::this_thread::yield();
        }
      }
      frames += batch;
    }
    done = true;
  });
  while (!done.load(std::memory_order_relaxed)) {
    if (queue.read(burst_, counters_) == 0) {
      polls.fetch_add(1, std::memory_order_release);
      continue;
    }
    queue.release();
    if (queue.wants_event()) called.fetch_add(1, std::memory_order_release);
  }
  guest.join();
  EXPECT_EQ(lost, 0U);
  EXPECT_GT(frames, 100U);
  EXPECT_GT(sleeps, 0U);
  EXPECT_EQ(drops(), 0U);
  EXPECT_EQ(tx.wrong_flags(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Ways, NotificationTest,
                         ::testing::Values(Way{Layout::kSplit, false}, Way{Layout::kSplit, true},
                                           Way{Layout::kPacked, false},
                                           Way{Layout::kPacked, true}));

}  // namespace
}  // namespace vswitch::testing
