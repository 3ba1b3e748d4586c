// Both sides of the ring engine against each other on two threads: a guest's driver queues send
// frames that device queues send straight back. Every byte arrives in order, buffers go round, and
// a guest that sleeps until it is called always is (under ThreadSanitizer: nothing is seen before
// it is complete).
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "dataplane/virtq/device_queue.h"
#include "dataplane/virtq/driver_queue.h"
#include "tests/dataplane/virtq/fake_guest.h"

namespace vswitch::virtq {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kFrames = 10'000;
#else
constexpr std::uint32_t kFrames = 100'000;
#endif
// Nothing ever takes as long, on however busy a machine, unless it has come to a standstill.
constexpr int kStallMilliseconds = 20'000;

constexpr std::uint64_t kBase = 0x1000'0000;
constexpr std::uint64_t kReceiveRing = kBase, kTransmitRing = kBase + 0x10000;
constexpr std::uint64_t kReceiveBuffers = kBase + 0x100000, kTransmitBuffers = kBase + 0x200000;
constexpr std::uint64_t kTables = kBase + 0x300000;
// Small, so that most received frames lie in several.
constexpr std::uint32_t kReceiveBytes = 128, kTransmitBytes = 512;

struct SplitPeers {
  using Driver = SplitDriver;
  using Device = SplitDevice;
  static SplitRing ring(std::byte* place, std::uint32_t size) {
    SplitRing ring;
    ring.descriptors = reinterpret_cast<Descriptor*>(place);
    ring.avail = reinterpret_cast<RingHeader*>(place + 0x4000);
    ring.used = reinterpret_cast<RingHeader*>(place + 0x8000);
    ring.size = size;
    return ring;
  }
};
struct PackedPeers {
  using Driver = PackedDriver;
  using Device = PackedDevice;
  static PackedRing ring(std::byte* place, std::uint32_t size) {
    PackedRing ring;
    ring.descriptors = reinterpret_cast<PackedDescriptor*>(place);
    ring.driver_events = reinterpret_cast<EventSuppression*>(place + 0x4000);
    ring.device_events = reinterpret_cast<EventSuppression*>(place + 0x8000);
    ring.size = size;
    return ring;
  }
};

class Event {
 public:
  Event() : fd_(::eventfd(0, EFD_NONBLOCK)) {}
  ~Event() { ::close(fd_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void signal() const {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(fd_, &one, 8), 8);
  }
  // Whether it came.
  bool wait() const {
    pollfd ready{fd_, POLLIN, 0};
    const bool came = ::poll(&ready, 1, kStallMilliseconds) == 1;
    std::uint64_t count = 0;
    (void)!::read(fd_, &count, 8);
    return came;
  }

 private:
  int fd_;
};

struct Case {
  const char* name;
  bool packed;
  std::uint64_t features;
  TxLayout layout;
  std::uint32_t size;
  bool sleep;  // until called, instead of polling
};

std::uint32_t length_of(std::uint32_t sequence) { return 60 + sequence * 7 % 240; }
void fill(std::byte* frame, std::uint32_t sequence) {
  const std::uint32_t length = length_of(sequence);
  std::memset(frame, static_cast<int>(sequence & 0xff), length);
  std::memcpy(frame, &sequence, 4);
}

class RingPeers : public ::testing::TestWithParam<Case> {
 protected:
  template <typename Peers>
  void run() {
    const Case& test = GetParam();
    using Driver = typename Peers::Driver;
    using Device = typename Peers::Device;
    const auto receive_ring = Peers::ring(host(kReceiveRing), test.size);
    const auto transmit_ring = Peers::ring(host(kTransmitRing), test.size);
    const RingFeatures ring = ring_features(test.features);
    DriverReceiveQueue<Driver> receive(
        std::make_unique<Driver>(receive_ring, ring),
        {host(kReceiveBuffers), kReceiveBuffers, kReceiveBytes, test.size, {}}, test.features);
    DriverTransmitQueue<Driver> transmit(std::make_unique<Driver>(transmit_ring, ring),
                                         {host(kTransmitBuffers),
                                          kTransmitBuffers,
                                          kTransmitBytes,
                                          test.size,
                                          {host(kTables), kTables}},
                                         test.features, {.layout = test.layout});
    const auto device_queue = [&](const auto& place) {
      return BasicDeviceQueue<Device>(Device(place, Driver::kFreshBase, ring), guest_.memory(),
                                      test.features, test.size);
    };
    auto from = device_queue(transmit_ring);
    auto to = device_queue(receive_ring);
    Event call;

    std::thread device([&] {
      QueueCounters counters, unused;
      auto burst = std::make_unique<FrameBurst>();
      std::vector<const Frame*> frames;
      while (!done_) {
        if (from.read(*burst, unused) == 0) {
          std::this_thread::yield();
          continue;
        }
        frames.clear();
        for (std::uint32_t i = 0; i < burst->count; ++i) frames.push_back(&burst->frames[i]);
        to.write(frames.data(), burst->count, counters);
        from.release();
        from.wants_event();
        if (to.wants_event()) call.signal();
      }
      EXPECT_EQ(from.broken(), BrokenRing::kNone);
      EXPECT_EQ(to.broken(), BrokenRing::kNone);
      // Every frame was delivered once, and none dropped.
      EXPECT_EQ(counters.packets.value(), kFrames);
    });
    guest(receive, transmit, call);
    done_ = true;
    device.join();
    EXPECT_EQ(receive.ring().counters().bad_ids, 0U);
    EXPECT_EQ(receive.ring().counters().capped_lengths, 0U);
    EXPECT_EQ(transmit.ring().counters().bad_ids, 0U);
    EXPECT_EQ(transmit.ring().counters().capped_lengths, 0U);
    transmit.reclaim();
    EXPECT_EQ(transmit.in_flight(), 0U);
  }

  template <typename Receive, typename Transmit>
  void guest(Receive& receive, Transmit& transmit, const Event& call) {
    // All on their way find buffers: at most three each.
    const std::uint32_t window = std::max(1U, GetParam().size / 4);
    std::uint32_t sent = 0, received = 0, wrong = 0;
    receive.ring().suppress_calls(true);
    transmit.ring().suppress_calls(true);
    std::vector<TransmitSlot> slots(32);
    std::vector<ReceivedFrame> frames(32);
    const auto take = [&] {
      const std::uint32_t count = receive.read(frames);
      for (std::uint32_t i = 0; i < count; ++i) {
        std::vector<std::byte> bytes, expected(512);
        for (const auto& piece : receive.pieces(frames[i])) {
          bytes.insert(bytes.end(), piece.data, piece.data + piece.length);
        }
        fill(expected.data(), received);
        expected.resize(length_of(received));
        if (bytes != expected) ++wrong;
        ++received;
      }
      receive.release();
      return count;
    };
    auto deadline =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(kStallMilliseconds);
    while (received < kFrames) {
      // Bursts of 1 to 32.
      const std::uint32_t room =
          std::min({window - (sent - received), kFrames - sent, sent * 13 % 32 + 1});
      const std::uint32_t count = room == 0 ? 0 : transmit.reserve(std::span(slots).first(room));
      for (std::uint32_t i = 0; i < count; ++i) {
        fill(slots[i].data, sent);
        slots[i].length = length_of(sent++);
      }
      if (count > 0) transmit.commit(std::span(slots).first(count));
      if (take() > 0 || count > 0) {
        deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kStallMilliseconds);
        continue;
      }
      if (!GetParam().sleep) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "after " << received;
        std::this_thread::yield();
        continue;
      }
      receive.ring().suppress_calls(false);
      if (take() == 0) {
        ASSERT_TRUE(call.wait()) << "not called after " << received << " of " << sent;
      }
      receive.ring().suppress_calls(true);
    }
    EXPECT_EQ(wrong, 0U);
  }

  std::byte* host(std::uint64_t address) {
    return reinterpret_cast<std::byte*>(guest_.at(address));
  }

  ::vswitch::testing::FakeGuest guest_{{{kBase, 0x400000}}};
  std::atomic<bool> done_{false};
};

TEST_P(RingPeers, EveryFrameComesBack) {
  if (GetParam().packed) {
    run<PackedPeers>();
  } else {
    run<SplitPeers>();
  }
}

constexpr std::uint64_t kNet = kFeatureVersion1 | kFeatureMrgRxbuf;
constexpr std::uint64_t kPackedNet = kNet | kFeatureRingPacked;
constexpr auto kIndirect = kFeatureIndirectDesc;
constexpr auto kEvent = kFeatureEventIdx;
constexpr auto kOrder = kFeatureInOrder;
INSTANTIATE_TEST_SUITE_P(
    Rings, RingPeers,
    ::testing::Values(
        Case{"SplitPush", false, kNet, TxLayout::kPush, 256, false},
        Case{"SplitIndirect", false, kNet | kIndirect, TxLayout::kIndirect, 64, true},
        Case{"SplitChain", false, kNet | kOrder, TxLayout::kChain, 128, true},
        Case{"SplitEventIdx", false, kNet | kEvent, TxLayout::kPush, 16, true},
        Case{"SplitEventIdxInOrder", false, kNet | kEvent | kOrder, TxLayout::kPush, 256, true},
        Case{"PackedPush", true, kPackedNet, TxLayout::kPush, 256, false},
        Case{"PackedIndirect", true, kPackedNet | kIndirect, TxLayout::kIndirect, 63, true},
        Case{"PackedChain", true, kPackedNet | kOrder, TxLayout::kChain, 129, true},
        Case{"PackedEventIdx", true, kPackedNet | kEvent, TxLayout::kPush, 17, true},
        Case{"PackedOfThree", true, kPackedNet | kEvent, TxLayout::kPush, 3, true},
        Case{"PackedEventIdxInOrder", true, kPackedNet | kEvent | kOrder, TxLayout::kPush, 256,
             true}),
    [](const ::testing::TestParamInfo<Case>& instance) { return instance.param.name; });

}  // namespace
}  // namespace vswitch::virtq
