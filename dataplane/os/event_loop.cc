#include "dataplane/os/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include "dataplane/os/eventfd.h"

namespace vswitch {
namespace {

constexpr std::int64_t kMicrosecondsPerSecond = 1'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::create() {
  std::unique_ptr<EventLoop> loop(new EventLoop);
  loop->epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  loop->wake_.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!loop->epoll_.valid() || !loop->wake_.valid()) {
    return absl::ErrnoToStatus(errno, "cannot create an event loop");
  }
  const absl::Status status = loop->add(
      loop->wake_.get(), EPOLLIN, [fd = loop->wake_.get()](std::uint32_t) { drain_eventfd(fd); });
  if (!status.ok()) return status;
  return loop;
}

int EventLoop::control(int operation, int fd, std::uint32_t events, std::uint32_t generation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = std::uint64_t{generation} << 32 | static_cast<std::uint32_t>(fd);
  return epoll_ctl(epoll_.get(), operation, fd, &event);
}

absl::Status EventLoop::add(int fd, std::uint32_t events, OnEvents on_events) {
  if (control(EPOLL_CTL_ADD, fd, events, last_generation_ + 1) != 0) {
    return absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  watches_[fd] = std::make_shared<Watch>(Watch{std::move(on_events), ++last_generation_});
  return absl::OkStatus();
}

absl::Status EventLoop::modify(int fd, std::uint32_t events) {
  const auto watch = watches_.find(fd);
  if (watch == watches_.end()) return absl::NotFoundError("the descriptor is not watched");
  if (control(EPOLL_CTL_MOD, fd, events, watch->second->generation) != 0) {
    return absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  return absl::OkStatus();
}

void EventLoop::remove(int fd) {
  const auto watch = watches_.find(fd);
  if (watch == watches_.end()) return;
  watches_.erase(watch);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

bool EventLoop::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    posted_.push_back(std::move(work));
  }
  signal_eventfd(wake_.get());
  return true;
}

void EventLoop::every_second(std::function<void()> tick) {
  timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  itimerspec interval{};
  interval.it_interval.tv_sec = interval.it_value.tv_sec = 1;
  timerfd_settime(timer_.get(), 0, &interval, nullptr);
  const absl::Status status =
      add(timer_.get(), EPOLLIN, [fd = timer_.get(), tick = std::move(tick)](std::uint32_t) {
        drain_eventfd(fd);
        tick();
      });
  (void)status;  // adding our own timer fails only where create() would have failed
}

void EventLoop::run_posted() {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& item : work) item();
}

void EventLoop::run() {
  std::array<epoll_event, 64> events;
  std::int64_t sleep_microseconds = -1;
  while (!stopping_.load(std::memory_order_acquire)) {
    timespec timeout{};
    if (sleep_microseconds > 0) {
      timeout.tv_sec = sleep_microseconds / kMicrosecondsPerSecond;
      timeout.tv_nsec = sleep_microseconds % kMicrosecondsPerSecond * 1000;
    }
    const int ready = epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   sleep_microseconds < 0 ? nullptr : &timeout, nullptr);
    for (int i = 0; i < ready; ++i) {
      // Looked up anew: an earlier callback of this round may have removed it, and closed it, and
      // watched another descriptor that got its number.
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const auto watch = watches_.find(static_cast<int>(event.data.u64 & 0xffffffff));
      if (watch == watches_.end() || watch->second->generation != event.data.u64 >> 32) continue;
      const std::shared_ptr<Watch> keep = watch->second;
      keep->on_events(event.events);
    }
    run_posted();
    sleep_microseconds = after_round_ ? after_round_() : -1;
  }
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  run_posted();
}

void EventLoop::stop() {
  stopping_.store(true, std::memory_order_release);
  signal_eventfd(wake_.get());
}

}  // namespace vswitch
