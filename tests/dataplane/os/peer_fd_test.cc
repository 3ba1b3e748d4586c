// Closing what a hostile peer sent never takes time.
#include "dataplane/os/peer_fd.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <vector>

namespace vswitch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kAtOnce = std::chrono::seconds(2);  // the sockets below linger for twelve

// A TCP socket whose close waits twelve seconds for a peer that does not read.
class Lingering {
 public:
  Lingering() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), generic, sizeof(address)), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), generic, &length), 0);
    socket_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket_.get(), generic, sizeof(address)), 0);
    reader_.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(fcntl(socket_.get(), F_SETFL, O_NONBLOCK), 0);
    const std::vector<char> data(1 << 16);
    while (write(socket_.get(), data.data(), data.size()) > 0) {
    }
    EXPECT_EQ(fcntl(socket_.get(), F_SETFL, 0), 0);
    const linger on{.l_onoff = 1, .l_linger = 12};
    EXPECT_EQ(setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &on, sizeof(on)), 0);
  }
  UniqueFd take() { return std::move(socket_); }

 private:
  UniqueFd socket_;
  UniqueFd reader_;
};

void send_fd(int connection, int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  ASSERT_EQ(sendmsg(connection, &header, 0), 1);
}

TEST(PeerFd, KnowsWhatTheProtocolUses) {
  const UniqueFd event(eventfd(0, EFD_CLOEXEC));
  const UniqueFd memory(memfd_create("memory", MFD_CLOEXEC));
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(is_eventfd(event.get()));
  EXPECT_FALSE(is_memory_file(event.get()));
  EXPECT_TRUE(is_memory_file(memory.get()));
  EXPECT_FALSE(is_eventfd(memory.get()));
  for (const int other : {null.get(), -1}) {
    EXPECT_FALSE(is_eventfd(other));
    EXPECT_FALSE(is_memory_file(other));
  }
}

TEST(PeerFd, ALingeringSocketIsClosedAtOnce) {
  Lingering lingering;
  const auto start = Clock::now();
  close_peer_fd(lingering.take());
  EXPECT_LT(Clock::now() - start, kAtOnce);
}

TEST(PeerFd, WhatIsStillQueuedInAConnectionDoesNotHoldItsClose) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd peer(ends[1]);
  Lingering lingering;
  {
    const UniqueFd sent = lingering.take();
    for (int i = 0; i < 3; ++i) send_fd(peer.get(), sent.get());
  }
  const auto start = Clock::now();
  { const PeerSocket connection{UniqueFd(ends[0])}; }
  EXPECT_LT(Clock::now() - start, kAtOnce);
  char byte = 0;
  EXPECT_LE(read(peer.get(), &byte, 1), 0) << "the connection is closed";
}

}  // namespace
}  // namespace vswitch
