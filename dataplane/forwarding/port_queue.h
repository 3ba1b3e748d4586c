// A virtqueue in service: the ring engine, its doorbell, and what other threads may know of it.
//
// Made by a port when a ring can run, put into a topology snapshot, used by workers, and destroyed
// by the port once no snapshot with it is in use. Configuration never changes in between: a new
// kick or call descriptor, address or feature makes a new PortQueue.
#pragma once

#include <rte_pause.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <variant>

#include "dataplane/frame/counters.h"
#include "dataplane/frame/frame.h"
#include "dataplane/virtq/device_queue.h"

namespace vswitch::forwarding {

class PortQueue {
 public:
  // One alternative per ring layout; chosen once a burst, never once a frame.
  using Engine = std::variant<virtq::BasicDeviceQueue<virtq::SplitDevice>,
                              virtq::BasicDeviceQueue<virtq::PackedDevice>>;

  // `call_fd`: eventfd to notify the guest, -1: none; it must stay open for the life of the queue.
  // `broken_event`: eventfd that is signalled once when the ring breaks.
  PortQueue(Engine engine, int call_fd, int broken_event)
      : engine_(std::move(engine)), call_fd_(call_fd), broken_event_(broken_event) {
    update_position();
  }

  // --- Workers.
  // As in virtq::BasicDeviceQueue, in the same order of calls. A guest transmit queue is polled by
  // one worker only.
  std::uint32_t read(FrameBurst& burst, QueueCounters& counters);
  // True: the guest asks to be notified of what was returned.
  [[nodiscard]] bool release();
  // A guest receive queue may be written by several workers: hold the lock for the whole burst.
  // True: the guest asks to be notified of what was delivered.
  [[nodiscard]] bool write(const Frame* const* frames, std::uint32_t count,
                           QueueCounters& counters);
  // After release() or write(), with their answer: notifies the guest, or counts that it does not
  // ask for it. Outside the lock: a system call must not hold up other workers.
  void notify(bool wanted, QueueCounters& counters);
  void lock() {
    while (locked_.test_and_set(std::memory_order_acquire)) {
      while (locked_.test(std::memory_order_relaxed)) rte_pause();
    }
  }
  void unlock() { locked_.clear(std::memory_order_release); }

  // A queue whose guest makes a poll or a write walk far more descriptors than frames need then
  // rests for about eight times as long as that took: a poll finds nothing, a write no buffers.
  // However long its chains, it gets a ninth of its worker at the most.
  bool resting();

  // --- Any thread.
  // Available index of the next chain to be taken, as of the last completed burst.
  std::uint16_t position() const { return position_.load(std::memory_order_relaxed); }
  virtq::BrokenRing broken() const { return broken_.load(std::memory_order_acquire); }
  // Chains that the guest has made available and that are not taken yet. The caller keeps the
  // queue, and so the memory, alive.
  std::uint32_t available() const;

 private:
  // More than a full burst of long chains takes; a single chain may have 32768 descriptors.
  static constexpr std::uint32_t kRestAfterWalked = 2048;
  // Refused chains bring no frame, so fewer of them are enough.
  static constexpr std::uint32_t kRestAfterRefused = 512;
  // TSC cycles: eight times what a descriptor costs that is in no cache.
  static constexpr std::uint64_t kRestCyclesPerDescriptor = 160;

  void rest_for(std::uint32_t descriptors);
  void update_position();
  bool wants_event();

  Engine engine_;
  int call_fd_;
  int broken_event_;
  std::uint64_t resting_until_ = 0;  // TSC; 0: not resting
  std::atomic_flag locked_ = ATOMIC_FLAG_INIT;
  std::atomic<std::uint16_t> position_{0};
  std::atomic<virtq::BrokenRing> broken_{virtq::BrokenRing::kNone};
};

}  // namespace vswitch::forwarding
