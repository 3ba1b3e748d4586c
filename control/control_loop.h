// One thread that runs posted tasks in order. It owns what it works on, so that needs no locks.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace vswitch::control {

class ControlLoop {
 public:
  using Task = std::function<void()>;

  // `after_batch` runs after every batch of tasks that were waiting together: the place for work
  // that is cheaper once for many, such as a write to disk.
  explicit ControlLoop(Task after_batch);
  ~ControlLoop();
  ControlLoop(const ControlLoop&) = delete;
  ControlLoop& operator=(const ControlLoop&) = delete;

  // Any thread, the loop's own included. After stop() the task is dropped.
  void post(Task task);

  // Lets the running task end, drops the waiting ones and joins. Not from the loop's own thread.
  void stop();

 private:
  void run();

  Task after_batch_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;  // guarded by mutex_
  bool stopping_ = false;   // guarded by mutex_
  std::thread thread_;      // last: starts when all else is there
};

}  // namespace vswitch::control
