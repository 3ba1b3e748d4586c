#include "tests/bench/line_distance.h"

#include <atomic>
#include <cstdint>
#include <thread>

#include "tests/bench/ring_pair.h"

namespace vswitch::bench {

double line_distance(unsigned cpu, unsigned other_cpu) {
  constexpr std::uint32_t kRounds = 1000;
  constexpr std::uint32_t kWarmUpRounds = 200;
  alignas(64) std::atomic<std::uint32_t> ball{0};
  // Whoever is to move waits for its parity and counts on.
  const auto play = [&ball](std::uint32_t parity, std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t i = from; i < to; ++i) {
      const std::uint32_t mine = 2 * i + parity;
      while (ball.load(std::memory_order_acquire) != mine) {
      }
      ball.store(mine + 1, std::memory_order_release);
    }
  };
  std::uint64_t elapsed = 0;
  std::thread other([&] {
    pin_to(other_cpu);
    play(1, 0, kWarmUpRounds + kRounds);
  });
  std::thread one([&] {
    pin_to(cpu);
    play(0, 0, kWarmUpRounds);
    const std::uint64_t start = cycles();
    play(0, kWarmUpRounds, kWarmUpRounds + kRounds);
    elapsed = cycles() - start;
  });
  one.join();
  other.join();
  return static_cast<double>(elapsed) / (2.0 * kRounds);
}

}  // namespace vswitch::bench
