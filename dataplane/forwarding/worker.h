// A worker: one thread, pinned to one CPU, that polls its share of the queues for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "dataplane/forwarding/topology_publisher.h"
#include "dataplane/frame/counters.h"

namespace vswitch::forwarding {

// Written by the worker, read by anybody.
struct alignas(64) WorkerCounters {
  Counter polls;    // rounds over all queues
  Counter packets;  // frames read
  Counter bursts;   // queue polls that found work
  // TSC cycles spent on frames: from just before the poll of a queue that turned out to have work
  // until its burst was delivered and released. Polls that find nothing are not work. This is the
  // one definition of "busy"; cycles per frame are busy_cycles / packets.
  Counter busy_cycles;
  std::atomic<std::uint64_t> started{0};  // TSC at start; 0: not running yet
};

class Worker {
 public:
  // `published` and `now_seconds` must outlive the worker.
  Worker(unsigned index, unsigned cpu, Published& published,
         const std::atomic<std::uint32_t>& now_seconds);
  ~Worker();  // stops and joins

  // Starts the thread and waits until it polls. The EAL must be initialised.
  absl::Status start();
  void stop();

  unsigned index() const { return index_; }
  unsigned cpu() const { return cpu_; }
  int numa_node() const { return numa_node_; }
  const WorkerCounters& counters() const { return *counters_; }

 private:
  absl::Status set_up_thread();
  void run();

  unsigned index_;
  unsigned cpu_;
  int numa_node_ = 0;
  Published& published_;
  const std::atomic<std::uint32_t>& now_seconds_;
  std::unique_ptr<WorkerCounters> counters_ = std::make_unique<WorkerCounters>();
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace vswitch::forwarding
