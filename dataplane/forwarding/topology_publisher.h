// Puts topology snapshots in front of the workers and knows when the old ones are no longer used.
//
// Belongs to the vhost-user loop, the only thread that calls it; workers only touch `Published`. A
// change is requested with a continuation; all requests of one loop round share one snapshot.
// Nobody ever waits: continuations run from advance() once every worker has passed a quiescent
// point.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/forwarding/topology.h"

struct rte_rcu_qsbr;

namespace vswitch::forwarding {

inline constexpr unsigned kMaxWorkers = 64;

// What workers read.
class Published {
 public:
  static absl::StatusOr<std::unique_ptr<Published>> create();
  ~Published();

  // Workers: the current snapshot, valid until the caller's next quiescent point.
  const Topology* topology() const { return topology_.load(std::memory_order_acquire); }
  rte_rcu_qsbr* quiescence() const { return quiescence_; }

 private:
  friend class TopologyPublisher;
  Published() = default;

  std::atomic<const Topology*> topology_{nullptr};
  rte_rcu_qsbr* quiescence_ = nullptr;
};

class TopologyPublisher {
 public:
  using Build = std::function<std::unique_ptr<const Topology>()>;
  using Released = std::function<void()>;

  TopologyPublisher(Published& published, Build build);
  ~TopologyPublisher();

  // Asks for a new snapshot. `released` runs when no worker uses any older one.
  void request(Released released = nullptr);

  // Publishes what was requested now, without waiting for the end of the round: for a change that
  // is about to be acknowledged. Runs no continuation.
  void publish_now() {
    if (requested_) publish();
  }

  // At the end of each loop round: publishes what was requested, runs continuations that are due.
  // Returns how long the loop may sleep, in microseconds; negative: nothing is under way.
  std::int64_t advance();

 private:
  struct Pending {
    std::uint64_t token;
    std::unique_ptr<const Topology> old;
    std::vector<Released> released;
  };

  void publish();

  Published& published_;
  Build build_;
  std::unique_ptr<const Topology> current_;
  bool requested_ = false;
  std::vector<Released> requests_;
  std::deque<Pending> pending_;
  std::uint32_t idle_rounds_ = 0;  // rounds since the oldest pending grace period began
};

}  // namespace vswitch::forwarding
