// One thread's epoll loop: file descriptors, posted work, and a hook after every round.
//
// Callbacks run on the thread inside run(). They must not block. post() and stop() may be called
// from any thread; everything else belongs to the loop's thread (or to the owner before run()).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/os/unique_fd.h"

namespace vswitch {

class EventLoop {
 public:
  using OnEvents = std::function<void(std::uint32_t epoll_events)>;

  static absl::StatusOr<std::unique_ptr<EventLoop>> create();

  // `events` are EPOLLIN, EPOLLOUT, ... (level-triggered). The loop does not own the descriptor;
  // remove it before closing. A callback may remove itself or others.
  absl::Status add(int fd, std::uint32_t events, OnEvents on_events);
  absl::Status modify(int fd, std::uint32_t events);
  void remove(int fd);

  // Runs `work` on the loop's thread, in the order of posting. False once the loop has stopped:
  // `work` is then dropped.
  bool post(std::function<void()> work);

  // Calls `tick` every second, starting one second after run().
  void every_second(std::function<void()> tick);

  // Called at the end of each round. Returns how long the loop may sleep, in microseconds;
  // negative: until something happens.
  void after_round(std::function<std::int64_t()> hook) { after_round_ = std::move(hook); }

  // Until stop(). Work that was posted before stop() is still done.
  void run();
  void stop();

 private:
  EventLoop() = default;
  void run_posted();

  struct Watch {
    OnEvents on_events;
    // Tells the events of this watch from those of an earlier one with the same descriptor number.
    std::uint32_t generation;
  };
  int control(int operation, int fd, std::uint32_t events, std::uint32_t generation);

  UniqueFd epoll_;
  UniqueFd wake_;
  UniqueFd timer_;
  std::unordered_map<int, std::shared_ptr<Watch>> watches_;
  std::uint32_t last_generation_ = 0;
  std::function<std::int64_t()> after_round_;

  std::mutex mutex_;  // guards posted_ and closed_
  std::vector<std::function<void()>> posted_;
  bool closed_ = false;
  std::atomic<bool> stopping_{false};
};

}  // namespace vswitch
