// What the ring benchmarks do in a window.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/line_distance.h"
#include "tests/bench/own_frames.h"
#include "tests/bench/ring_pair.h"

namespace vswitch::bench {

// One measured stretch of time.
struct Window {
  double seconds = 0;
  std::uint64_t frames = 0;
  std::uint64_t device_cycles = 0;  // spent on the device's side of these frames
  std::uint64_t driver_cycles = 0;  // on the driver's side; polls that find nothing not counted
  std::uint64_t lost = 0;
  double line_cycles = 0;  // a cache line's way from one thread to the other; 0: one thread
  std::vector<std::pair<std::string, double>> more;
};

inline constexpr auto kWarmUp = std::chrono::milliseconds(10);
inline constexpr auto kWindow = std::chrono::milliseconds(60);
// The guest's thread and the switch's.
inline constexpr unsigned kDriverCpu = 0;
inline constexpr unsigned kDeviceCpu = 1;

enum class Load { kFlatOut, kLossless };

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Adds the cycles of `work` to `sum` if it did something.
template <typename Work>
std::uint32_t timed(std::uint64_t& sum, Work work) {
  const std::uint64_t before = cycles();
  const std::uint32_t frames = work();
  if (frames != 0) sum += cycles() - before;
  return frames;
}

template <typename Pair>
std::uint32_t read_and_release(Pair& rings, FrameBurst& burst, QueueCounters& counters) {
  rings.device_transmit().read(burst, counters);
  rings.device_transmit().release();
  rings.device_transmit().wants_event();
  return burst.count;
}

// Repeats `round`, which gives the frames it moved, for a window.
template <typename Round>
Window alone(Round round) {
  pin_to(kDeviceCpu);
  Window window;
  for (const auto start = Clock::now(); Clock::now() - start < kWarmUp;) round(window);
  window = Window{};
  const auto start = Clock::now();
  while (Clock::now() - start < kWindow) {
    for (int i = 0; i < 64; ++i) window.frames += round(window);
  }
  window.seconds = seconds_since(start);
  return window;
}

// The driver sends, the device reads and returns.
template <typename Layout>
Window transmit_alone(virtq::TransmitOptions options, std::uint32_t bytes) {
  RingPair<Layout> rings(options);
  const auto burst = std::make_unique<FrameBurst>();
  QueueCounters counters;
  return alone([&](Window& window) {
    timed(window.driver_cycles, [&] { return rings.send(kBurstFrames, bytes); });
    return timed(window.device_cycles, [&] { return read_and_release(rings, *burst, counters); });
  });
}

// The device writes, the driver takes and posts anew.
template <typename Layout>
Window receive_alone(std::uint32_t bytes, std::uint64_t features = kFeatures) {
  RingPair<Layout> rings({}, features);
  const OwnFrames frames(bytes);
  QueueCounters counters;
  Window window = alone([&](Window& now) {
    timed(now.device_cycles, [&] {
      rings.device_receive().write(frames.data(), kBurstFrames, counters);
      rings.device_receive().wants_event();
      return kBurstFrames;
    });
    return timed(now.driver_cycles, [&] { return rings.receive(); });
  });
  window.lost = counters.dropped[static_cast<std::size_t>(DropReason::kNoRxBuffer)].value();
  return window;
}

// The same, for the device's cycles alone.
template <typename Layout>
Window enqueue_only(std::uint32_t bytes, bool mergeable) {
  return receive_alone<Layout>(bytes, mergeable ? kFeatures : kFeatures & ~virtq::kFeatureMrgRxbuf);
}

// A guest's thread sends and receives; the switch's thread copies from one ring into the other.
template <typename Layout>
Window forward(virtq::TransmitOptions options, std::uint32_t bytes, Load load) {
  RingPair<Layout> rings(options);
  const auto burst = std::make_unique<FrameBurst>();
  QueueCounters counters;
  std::atomic<int> phase{0};  // 0: warm up, 1: measure, 2: over
  Window window;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  const double line_before = line_distance(kDriverCpu, kDeviceCpu);
  std::thread guest([&] {
    pin_to(kDriverCpu);
    std::uint64_t driver_cycles = 0;
    std::uint64_t sent_before = 0;
    std::uint64_t received_before = 0;
    Clock::time_point start;
    bool measuring = false;
    while (true) {
      const int now = phase.load(std::memory_order_relaxed);
      if (now == 2) break;
      if (now == 1 && !measuring) {
        measuring = true;
        driver_cycles = 0;
        sent_before = sent;
        received_before = received;
        start = Clock::now();
      }
      received += timed(driver_cycles, [&] { return rings.receive(); });
      // Lossless: never more on the way than the receive ring holds.
      if (load == Load::kLossless && sent - received > kQueueSize - kBurstFrames) continue;
      sent += timed(driver_cycles, [&] { return rings.send(kBurstFrames, bytes); });
    }
    window.seconds = seconds_since(start);
    window.driver_cycles = driver_cycles;
    window.frames = received - received_before;
    window.lost = sent - sent_before;
  });
  pin_to(kDeviceCpu);
  std::array<const Frame*, kBurstFrames> frames;
  for (std::uint32_t i = 0; i < kBurstFrames; ++i) frames[i] = &burst->frames[i];
  const auto start = Clock::now();
  std::uint64_t moved = 0;
  bool measuring = false;
  while (true) {
    for (int i = 0; i < 256; ++i) {
      const std::uint32_t count = timed(window.device_cycles, [&] {
        if (rings.device_transmit().read(*burst, counters) == 0) return 0u;
        rings.device_receive().write(frames.data(), burst->count, counters);
        rings.device_receive().wants_event();
        rings.device_transmit().release();
        rings.device_transmit().wants_event();
        return burst->count;
      });
      moved += count;
      if (count == 0) {
        for (int pause = 0; pause < 8; ++pause) __builtin_ia32_pause();
      }
    }
    const auto elapsed = Clock::now() - start;
    if (!measuring && elapsed > kWarmUp) {
      measuring = true;
      window.device_cycles = 0;
      moved = 0;
      phase.store(1, std::memory_order_relaxed);
    } else if (elapsed > kWarmUp + kWindow) {
      break;
    }
  }
  phase.store(2, std::memory_order_relaxed);
  guest.join();
  // The device's cycles are of the frames it moved, the rate is of those that arrived.
  if (moved != 0) window.device_cycles = window.device_cycles * window.frames / moved;
  window.lost = window.lost > window.frames ? window.lost - window.frames : 0;
  if (load == Load::kLossless)
    window.lost = counters.dropped[static_cast<std::size_t>(DropReason::kNoRxBuffer)].value();
  const double line_after = line_distance(kDriverCpu, kDeviceCpu);
  window.line_cycles = (line_before + line_after) / 2;
  return window;
}

// When what was read is returned: the product's rule, one element at a time, or held back until a
// poll finds nothing or half the ring is held.
enum class Flush { kEachPoll, kEachFrame, kWhenIdle };

// The device's transmit side with a choice of policy; the product's queue has none.
template <typename Layout>
class FlushingReader {
 public:
  using Device = typename Layout::Device;
  FlushingReader(Device end, const GuestMemory& memory, Flush flush)
      : end_(std::move(end)), translator_(memory), flush_(flush), held_(kQueueSize) {
    end_.suppress_kicks();
  }

  // Hands the frames of a poll to `deliver(frames, count)`, which copies them; how many.
  template <typename Deliver>
  std::uint32_t poll(Deliver deliver) {
    const std::uint32_t batch = flush_ == Flush::kEachFrame ? 1 : kBurstFrames;
    std::uint32_t total = 0;
    while (total < kBurstFrames && held_count_ + batch <= kQueueSize) {
      const std::uint32_t count = take(batch);
      if (count != 0) deliver(frames_.data(), count);
      if (flush_ == Flush::kEachFrame) publish();
      total += count;
      if (count < batch || batch == kBurstFrames) break;
    }
    if (flush_ == Flush::kEachPoll || total == 0 || held_count_ > kQueueSize / 2) publish();
    return total;
  }

 private:
  std::uint32_t take(std::uint32_t most) {
    if (end_.peek(most) == 0) return 0;
    SegmentArena arena{segments_.data(), 0, static_cast<std::uint32_t>(segments_.size())};
    virtq::Chain chain;
    std::uint32_t count = 0;
    while (count < most && end_.template fetch<virtq::Access::kReadable>(
                               translator_, arena, chain) == virtq::Fetch::kReady) {
      const std::uint32_t bytes = chain.bytes - 12;
      Frame& frame = frames_[count];
      frame.header = headers_[count].data();
      frame.header_bytes = std::min(bytes, kHeaderBytes);
      std::memcpy(frame.header, chain.segments[0].data + 12, frame.header_bytes);
      frame.payload = chain.segments;
      frame.payload_offset = 12 + frame.header_bytes;
      frame.payload_bytes = bytes - frame.header_bytes;
      held_[held_count_++] = Device::used(chain, 0);
      ++count;
    }
    return count;
  }
  void publish() {
    if (held_count_ == 0) return;
    end_.publish(held_.data(), held_count_);
    held_count_ = 0;
    end_.wants_event();
  }

  Device end_;
  Translator translator_;
  Flush flush_;
  std::array<Segment, 64> segments_;
  std::array<Frame, kBurstFrames> frames_;
  std::array<std::array<std::byte, kHeaderBytes>, kBurstFrames> headers_;
  std::vector<typename Device::Used> held_;
  std::uint32_t held_count_ = 0;
};

// A guest that asks (one small frame at a time, the next when the answer is there), streams (large
// frames, as many as fit), or both through the same rings; the switch sends everything back.
template <typename Layout>
Window flush_policy(Flush flush, bool asks, bool streams) {
  constexpr std::uint32_t kRequestBytes = 64;
  constexpr std::uint32_t kStreamBytes = 1500;
  constexpr std::uint32_t kStreamWindow = 128;
  RingPair<Layout> rings;
  QueueCounters counters;
  std::atomic<int> phase{0};
  Window window;
  std::uint64_t requests = 0;
  std::uint64_t streamed = 0;
  const double line_before = line_distance(kDriverCpu, kDeviceCpu);
  std::thread guest([&] {
    pin_to(kDriverCpu);
    std::uint64_t sent = 0;
    std::uint64_t arrived = 0;
    bool waiting = false;
    bool measuring = false;
    Clock::time_point start;
    while (true) {
      const int now = phase.load(std::memory_order_relaxed);
      if (now == 2) break;
      if (now == 1 && !measuring) {
        measuring = true;
        requests = streamed = 0;
        start = Clock::now();
      }
      if (asks && !waiting) waiting = rings.send(1, kRequestBytes) == 1;
      if (streams && sent - arrived < kStreamWindow) sent += rings.send(8, kStreamBytes);
      rings.receive([&](std::uint32_t bytes) {
        if (bytes == kRequestBytes) {
          waiting = false;
          ++requests;
        } else {
          ++arrived;
          ++streamed;
        }
      });
    }
    window.seconds = seconds_since(start);
  });
  pin_to(kDeviceCpu);
  FlushingReader<Layout> reader(
      typename Layout::Device(rings.device_transmit().end().ring(), Layout::kStart,
                              virtq::ring_features(kFeatures | Layout::kFeature)),
      rings.memory(), flush);
  const auto start = Clock::now();
  bool measuring = false;
  while (true) {
    for (int i = 0; i < 256; ++i) {
      timed(window.device_cycles, [&] {
        return reader.poll([&](const Frame* frames, std::uint32_t count) {
          std::array<const Frame*, kBurstFrames> list;
          for (std::uint32_t k = 0; k < count; ++k) list[k] = frames + k;
          rings.device_receive().write(list.data(), count, counters);
          rings.device_receive().wants_event();
        });
      });
    }
    const auto elapsed = Clock::now() - start;
    if (!measuring && elapsed > kWarmUp) {
      measuring = true;
      window.device_cycles = 0;
      phase.store(1, std::memory_order_relaxed);
    } else if (elapsed > kWarmUp + kWindow) {
      break;
    }
  }
  phase.store(2, std::memory_order_relaxed);
  guest.join();
  window.frames = requests + streamed;
  window.lost = counters.dropped[static_cast<std::size_t>(DropReason::kNoRxBuffer)].value();
  window.line_cycles = (line_before + line_distance(kDriverCpu, kDeviceCpu)) / 2;
  window.more = {{"requests_per_second", static_cast<double>(requests) / window.seconds},
                 {"streamed_per_second", static_cast<double>(streamed) / window.seconds}};
  return window;
}

// --- The same work without clocks, for an instruction counter. 0: all frames went through.

template <typename Layout>
int fixed_transmit(std::uint32_t bytes, std::uint32_t bursts) {
  RingPair<Layout> rings;
  const auto burst = std::make_unique<FrameBurst>();
  QueueCounters counters;
  std::uint64_t frames = 0;
  for (std::uint32_t i = 0; i < bursts; ++i) {
    rings.send(kBurstFrames, bytes);
    frames += read_and_release(rings, *burst, counters);
  }
  return frames == std::uint64_t{bursts} * kBurstFrames ? 0 : 1;
}

template <typename Layout>
int fixed_receive(std::uint32_t bytes, std::uint32_t bursts) {
  RingPair<Layout> rings;
  const OwnFrames own(bytes);
  QueueCounters counters;
  std::uint64_t frames = 0;
  for (std::uint32_t i = 0; i < bursts; ++i) {
    rings.device_receive().write(own.data(), kBurstFrames, counters);
    rings.device_receive().wants_event();
    frames += rings.receive();
  }
  return frames == std::uint64_t{bursts} * kBurstFrames ? 0 : 1;
}

template <typename Layout>
int fixed_forward(std::uint32_t bytes, std::uint32_t bursts) {
  RingPair<Layout> rings;
  const auto burst = std::make_unique<FrameBurst>();
  std::array<const Frame*, kBurstFrames> list;
  for (std::uint32_t i = 0; i < kBurstFrames; ++i) list[i] = &burst->frames[i];
  QueueCounters counters;
  std::uint64_t frames = 0;
  for (std::uint32_t i = 0; i < bursts; ++i) {
    rings.send(kBurstFrames, bytes);
    rings.device_transmit().read(*burst, counters);
    rings.device_receive().write(list.data(), burst->count, counters);
    rings.device_receive().wants_event();
    rings.device_transmit().release();
    rings.device_transmit().wants_event();
    frames += rings.receive();
  }
  return frames == std::uint64_t{bursts} * kBurstFrames ? 0 : 1;
}

}  // namespace vswitch::bench
