#include "dataplane/os/peer_fd.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "dataplane/os/control_data.h"

namespace vswitch {
namespace {

// Threads that close. One is enough unless a close hangs; with several hanging for ever the rest of
// such descriptors wait, which is as far as a peer gets.
constexpr unsigned kMaxThreads = 8;

class Closer {
 public:
  static Closer& instance() {
    static Closer* const closer = new Closer;  // its threads may outlive static destruction
    return *closer;
  }

  void close(UniqueFd fd) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(fd));
    if (idle_ < waiting_.size() && threads_ < kMaxThreads) {
      ++threads_;
      std::thread([this] { run(); }).detach();
    }
    wake_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      // The threads that a burst of closes needed go away again.
      const bool work =
          wake_.wait_for(lock, std::chrono::seconds(1), [this] { return !waiting_.empty(); });
      --idle_;
      if (!work) break;
      UniqueFd fd = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      fd.reset();  // here it may take its time
      lock.lock();
    }
    --threads_;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<UniqueFd> waiting_;
  std::size_t idle_ = 0;
  unsigned threads_ = 0;
};

}  // namespace

bool is_eventfd(int fd) {
  if (fd < 0) return false;
  // The kernel has no call for it; the link of the descriptor names its kind.
  std::array<char, 64> target{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length > 0 && std::string_view(target.data(), static_cast<std::size_t>(length)) ==
                           "anon_inode:[eventfd]";
}

bool is_memory_file(int fd) { return fd >= 0 && fcntl(fd, F_GET_SEALS) >= 0; }

void close_peer_fd(UniqueFd fd) {
  if (!fd.valid() || is_eventfd(fd.get()) || is_memory_file(fd.get())) return;
  // Lingering is for the sender's sake, and the sender does not wait for us.
  const linger off{};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &off, sizeof(off));
  Closer::instance().close(std::move(fd));
}

void PeerSocket::close() {
  if (!socket_.valid()) return;
  // Nothing more comes in from here on, so this ends.
  shutdown(socket_.get(), SHUT_RDWR);
  std::array<std::byte, 4096> data;
  iovec place{data.data(), data.size()};
  ControlData control;
  while (true) {
    msghdr header = control.header(place);
    if (recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) break;
    for (UniqueFd& fd : ControlData::take_fds(header)) close_peer_fd(std::move(fd));
  }
  socket_.reset();
}

}  // namespace vswitch
