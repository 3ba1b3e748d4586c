#include "dataplane/forwarding/port_queue.h"

#include <rte_cycles.h>
#include <unistd.h>

#include <cerrno>

#include "dataplane/os/eventfd.h"

namespace vswitch::forwarding {

void PortQueue::update_position() {
  std::visit(
      [this](const auto& queue) {
        position_.store(queue.position(), std::memory_order_relaxed);
        if (queue.broken() == virtq::BrokenRing::kNone || broken() != virtq::BrokenRing::kNone) {
          return;
        }
        broken_.store(queue.broken(), std::memory_order_release);
        signal_eventfd(broken_event_);
      },
      engine_);
}

bool PortQueue::resting() {
  if (resting_until_ == 0) return false;
  if (rte_rdtsc() < resting_until_) return true;
  resting_until_ = 0;
  return false;
}

void PortQueue::rest_for(std::uint32_t descriptors) {
  resting_until_ = rte_rdtsc() + descriptors * kRestCyclesPerDescriptor;
}

std::uint32_t PortQueue::read(FrameBurst& burst, QueueCounters& counters) {
  if (resting()) return 0;
  return std::visit(
      [&](auto& queue) {
        const std::uint32_t walked = queue.descriptors_walked();
        const std::uint32_t chains = queue.read(burst, counters);
        if (queue.descriptors_walked() - walked > kRestAfterWalked) [[unlikely]] {
          rest_for(queue.descriptors_walked() - walked);
        }
        if (chains == 0 && queue.broken() != virtq::BrokenRing::kNone) [[unlikely]] {
          update_position();
        }
        return chains;
      },
      engine_);
}

// The decision remembers how far the guest has been told, so it belongs to the burst.
bool PortQueue::wants_event() {
  return call_fd_ >= 0 && std::visit([](auto& queue) { return queue.wants_event(); }, engine_);
}

bool PortQueue::release() {
  std::visit([](auto& queue) { queue.release(); }, engine_);
  update_position();
  return wants_event();
}

bool PortQueue::write(const Frame* const* frames, std::uint32_t count, QueueCounters& counters) {
  if (resting()) [[unlikely]] {
    counters.drop(DropReason::kNoRxBuffer, count);
    return false;
  }
  std::visit(
      [&](auto& queue) {
        const std::uint32_t refused = queue.descriptors_refused();
        queue.write(frames, count, counters);
        if (queue.descriptors_refused() - refused > kRestAfterRefused) [[unlikely]] {
          rest_for(queue.descriptors_refused() - refused);
        }
      },
      engine_);
  update_position();
  return wants_event();
}

void PortQueue::notify(bool wanted, QueueCounters& counters) {
  if (!wanted) {
    counters.notifications_suppressed.add(1);
    return;
  }
  const std::uint64_t one = 1;
  if (::write(call_fd_, &one, sizeof(one)) == sizeof(one)) {
    counters.notifications_sent.add(1);
  } else if (errno == EAGAIN) {
    // The counter is full, so the guest has notifications to collect: nothing is lost.
    counters.notifications_full.add(1);
  }
}

std::uint32_t PortQueue::available() const {
  return std::visit(
      [this](const auto& queue) -> std::uint32_t {
        const std::uint32_t backlog =
            std::decay_t<decltype(queue.end())>::backlog(queue.end().ring(), position());
        return backlog <= queue.end().ring().size ? backlog : 0;
      },
      engine_);
}

}  // namespace vswitch::forwarding
