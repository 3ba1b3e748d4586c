#include "control/control_loop.h"

#include <utility>

namespace vswitch::control {

ControlLoop::ControlLoop(Task after_batch)
    : after_batch_(std::move(after_batch)), thread_([this] { run(); }) {}

ControlLoop::~ControlLoop() { stop(); }

void ControlLoop::post(Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void ControlLoop::stop() {
  std::deque<Task> dropped;  // destroyed without the lock: a task may hold the last of anything
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ControlLoop::run() {
  for (;;) {
    std::deque<Task> batch;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      batch.swap(tasks_);
    }
    for (Task& task : batch) task();
    after_batch_();
  }
}

}  // namespace vswitch::control
