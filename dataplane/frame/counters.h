// Per-worker counters of one port and direction.
//
// Exactly one worker writes an instance (relaxed stores, no read-modify-write needed); anyone may
// read it at any time. Readers add the workers' instances up.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "dataplane/frame/drop_reason.h"

namespace vswitch {

class Counter {
 public:
  // Single writer.
  void add(std::uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct alignas(64) QueueCounters {
  Counter packets;
  Counter bytes;
  Counter notifications_sent;
  Counter notifications_suppressed;
  Counter notifications_full;
  std::array<Counter, kDropReasonCount> dropped;

  void drop(DropReason reason, std::uint64_t frames = 1) {
    dropped[static_cast<std::size_t>(reason)].add(frames);
  }
};

}  // namespace vswitch
