// A back-end session on one end of a socket pair, a raw front-end on the other, and a delegate that
// does what a port does: lets go of rings, at once or when the test says so.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/vhost_user/backend_session.h"
#include "tests/dataplane/vhost_user/raw_frontend.h"

namespace vswitch::test {

inline int open_fds() {
  int count = 0;
  DIR* const directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

inline UniqueFd make_event(int flags = EFD_CLOEXEC) { return UniqueFd(::eventfd(0, flags)); }
inline UniqueFd make_memory(std::uint64_t bytes) {
  UniqueFd memory(::memfd_create("guest", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(memory.get(), static_cast<off_t>(bytes)), 0);
  return memory;
}
inline std::pair<UniqueFd, UniqueFd> make_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Virtio bits offered in these tests: mergeable, any layout, indirect, protocol features,
// version 1.
inline constexpr std::uint64_t kOffered = 0x158008000ull;

class FakeDelegate : public vhost_user::BackendSession::Delegate {
 public:
  bool deferred = false;  // quiesce() waits for release()
  std::vector<std::uint64_t> masks;
  int changes = 0;
  bool readable = true;
  bool writable = false;
  std::vector<absl::Status> endings;
  std::function<void()> on_quiesced;  // a port brings positions up to date here
  std::weak_ptr<vhost_user::BackendSession> session;

  void quiesce(std::uint64_t vring_mask, std::function<void()> then) override {
    masks.push_back(vring_mask);
    if (!deferred) {
      if (on_quiesced) on_quiesced();
      then();
      return;
    }
    waiting_.push_back(std::move(then));
  }
  void rings_changed() override { ++changes; }
  void watch(bool is_readable, bool is_writable) override {
    readable = is_readable;
    writable = is_writable;
  }
  void ended(const absl::Status& why) override {
    endings.push_back(why);
    if (const auto alive = session.lock()) alive->close();
  }

  std::size_t waiting() const { return waiting_.size(); }
  void release() {
    std::function<void()> then = std::move(waiting_.front());
    waiting_.pop_front();
    if (on_quiesced) on_quiesced();
    then();
  }

 private:
  std::deque<std::function<void()>> waiting_;
};

class BackendSessionFixture : public testing::Test {
 protected:
  BackendSessionFixture() { connect(); }

  void connect(unsigned queue_pairs = 1, std::uint64_t offered = kOffered) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    delegate = std::make_unique<FakeDelegate>();
    session = std::make_shared<vhost_user::BackendSession>(
        UniqueFd(ends[0]),
        vhost_user::Device{.queue_pairs = queue_pairs, .features = offered, .mtu = 9000},
        *delegate);
    delegate->session = session;
    front = RawFrontend(UniqueFd(ends[1]));
  }

  // What an event loop does: level-triggered, only what is watched for (a hang-up always).
  // Returns the number of times the session was woken.
  int run(int most = 1000) {
    int wakeups = 0;
    while (wakeups < most && !session->closed() && (delegate->readable || delegate->writable)) {
      pollfd events{session->fd(),
                    static_cast<short>((delegate->readable ? POLLIN : 0) |
                                       (delegate->writable ? POLLOUT : 0)),
                    0};
      if (::poll(&events, 1, 0) <= 0) break;
      session->on_events(static_cast<std::uint32_t>(events.revents));  // EPOLLx == POLLx
      ++wakeups;
    }
    return wakeups;
  }
  static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLHUP == POLLHUP);

  void tell(const std::string& bytes, const std::vector<int>& fds = {}) {
    ASSERT_TRUE(front.send(bytes, fds));
    run();
  }
  std::optional<RawAnswer> ask(const std::string& bytes, const std::vector<int>& fds = {}) {
    EXPECT_TRUE(front.send(bytes, fds));
    run();
    return front.receive();
  }
  const vhost_user::Vring& vring(std::size_t index) const { return session->state().vrings[index]; }

  // Nothing but success so far, and the session listens to its socket.
  void expect_alive() const {
    EXPECT_TRUE(delegate->endings.empty()) << delegate->endings.front();
    EXPECT_FALSE(session->closed());
    EXPECT_TRUE(delegate->readable || delegate->waiting() > 0);
  }
  // Exactly one ending, and the peer is to blame; then what a port does: the session goes.
  void expect_violation() {
    ASSERT_EQ(delegate->endings.size(), 1u);
    EXPECT_TRUE(absl::IsInvalidArgument(delegate->endings[0])) << delegate->endings[0];
    EXPECT_FALSE(delegate->endings[0].message().empty());
    session.reset();
  }
  void negotiate_reply_ack() {
    tell(message(kSetFeatures, u64(kVersion1Bit | kProtocolFeaturesBit)));
    tell(message(kSetProtocolFeatures, u64(kMqProtocol | kReplyAckProtocol)));
    expect_alive();
  }

  std::unique_ptr<FakeDelegate> delegate;
  std::shared_ptr<vhost_user::BackendSession> session;
  RawFrontend front;
};

}  // namespace vswitch::test
