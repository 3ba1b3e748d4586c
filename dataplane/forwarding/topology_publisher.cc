#include "dataplane/forwarding/topology_publisher.h"

#include <rte_errno.h>
#include <rte_rcu_qsbr.h>

#include <cstdlib>
#include <utility>

namespace vswitch::forwarding {

absl::StatusOr<std::unique_ptr<Published>> Published::create() {
  std::unique_ptr<Published> published(new Published);
  const std::size_t bytes = rte_rcu_qsbr_get_memsize(kMaxWorkers);
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, bytes) != 0) {
    return absl::ResourceExhaustedError("no memory for the workers' quiescence state");
  }
  published->quiescence_ = static_cast<rte_rcu_qsbr*>(memory);
  if (rte_rcu_qsbr_init(published->quiescence_, kMaxWorkers) != 0) {
    return absl::InternalError(rte_strerror(rte_errno));
  }
  return published;
}

Published::~Published() { std::free(quiescence_); }

TopologyPublisher::TopologyPublisher(Published& published, Build build)
    : published_(published), build_(std::move(build)) {
  current_ = build_();
  published_.topology_.store(current_.get(), std::memory_order_release);
}

// The workers have stopped by now.
TopologyPublisher::~TopologyPublisher() { published_.topology_.store(nullptr); }

void TopologyPublisher::request(Released released) {
  requested_ = true;
  if (released) requests_.push_back(std::move(released));
}

void TopologyPublisher::publish() {
  requested_ = false;
  std::unique_ptr<const Topology> next = build_();
  // Release: a worker that loads the pointer sees the snapshot behind it.
  published_.topology_.store(next.get(), std::memory_order_release);
  pending_.push_back({rte_rcu_qsbr_start(published_.quiescence_),
                      std::exchange(current_, std::move(next)), std::exchange(requests_, {})});
}

std::int64_t TopologyPublisher::advance() {
  // A continuation often asks for the next snapshot; a few turns of both save the loop a round.
  for (int turn = 0; turn < 4; ++turn) {
    if (requested_) publish();
    if (pending_.empty()) break;
    // Grace periods end in order.
    if (rte_rcu_qsbr_check(published_.quiescence_, pending_.front().token, false) != 1) break;
    const Pending done = std::move(pending_.front());
    pending_.pop_front();
    idle_rounds_ = 0;
    for (const Released& released : done.released) released();
  }
  if (requested_) return 0;
  if (pending_.empty()) return -1;
  // A worker that is running passes within microseconds: look again at once a few times. One that
  // has lost its CPU takes as long as its scheduler does.
  constexpr std::uint32_t kEagerRounds = 64;
  constexpr std::int64_t kPatientMicroseconds = 50;
  return ++idle_rounds_ < kEagerRounds ? 0 : kPatientMicroseconds;
}

}  // namespace vswitch::forwarding
