#include "dataplane/forwarding/worker.h"

#include <pthread.h>
#include <rte_cycles.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_pause.h>
#include <rte_rcu_qsbr.h>

#include <future>
#include <string>

#include "absl/strings/str_cat.h"
#include "dataplane/forwarding/forwarder.h"

namespace vswitch::forwarding {

Worker::Worker(unsigned index, unsigned cpu, Published& published,
               const std::atomic<std::uint32_t>& now_seconds)
    : index_(index), cpu_(cpu), published_(published), now_seconds_(now_seconds) {}

Worker::~Worker() { stop(); }

absl::Status Worker::set_up_thread() {
  pthread_setname_np(pthread_self(), absl::StrCat("worker", index_).c_str());
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(cpu_, &cpus);
  if (const int error = pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus); error != 0) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot pin a worker to CPU ", cpu_));
  }
  if (rte_thread_register() != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot register worker ", index_, ": ", rte_strerror(rte_errno)));
  }
  numa_node_ = static_cast<int>(rte_socket_id());
  rte_rcu_qsbr_thread_register(published_.quiescence(), index_);
  rte_rcu_qsbr_thread_online(published_.quiescence(), index_);
  return absl::OkStatus();
}

absl::Status Worker::start() {
  std::promise<absl::Status> ready;
  std::future<absl::Status> result = ready.get_future();
  thread_ = std::thread([this, &ready] {
    const absl::Status status = set_up_thread();
    if (status.ok()) counters_->started.store(rte_rdtsc(), std::memory_order_relaxed);
    ready.set_value(status);  // `ready` is gone from here on
    if (status.ok()) run();
  });
  absl::Status status = result.get();
  if (!status.ok()) thread_.join();
  return status;
}

void Worker::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void Worker::run() {
  const auto forwarder = std::make_unique<Forwarder>(index_, now_seconds_);
  WorkerCounters& counters = *counters_;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const Topology* topology = published_.topology();
    bool idle = true;
    for (const Topology::Input& input : topology->workers[index_]) {
      const std::uint64_t before = rte_rdtsc();
      bool found_work = false;
      const std::uint32_t frames = forwarder->poll(*topology, input, found_work);
      if (!found_work) continue;
      counters.busy_cycles.add(rte_rdtsc() - before);
      counters.packets.add(frames);
      counters.bursts.add(1);
      idle = false;
    }
    counters.polls.add(1);
    rte_rcu_qsbr_quiescent(published_.quiescence(), index_);
    if (idle) {
      // Leave the guests' cache lines alone for a moment: they are being filled.
      for (int i = 0; i < 8; ++i) rte_pause();
    }
  }
  rte_rcu_qsbr_thread_offline(published_.quiescence(), index_);
  rte_rcu_qsbr_thread_unregister(published_.quiescence(), index_);
  rte_thread_unregister();
}

}  // namespace vswitch::forwarding
