#include "dataplane/os/eventfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "dataplane/os/unique_fd.h"

namespace vswitch {
namespace {

TEST(AcceptDoorbell, MakesAnEventfdNonBlocking) {
  const UniqueFd doorbell(eventfd(0, EFD_CLOEXEC));
  ASSERT_EQ(fcntl(doorbell.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_TRUE(accept_doorbell(doorbell.get()).ok());
  EXPECT_NE(fcntl(doorbell.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_TRUE(accept_doorbell(doorbell.get()).ok());
}

// A peer that fills its counter must not stop us: the write fails at once.
TEST(AcceptDoorbell, FullCounterDoesNotBlock) {
  const UniqueFd doorbell(eventfd(0, EFD_CLOEXEC));
  ASSERT_TRUE(accept_doorbell(doorbell.get()).ok());
  const std::uint64_t full = 0xfffffffffffffffe;
  ASSERT_EQ(write(doorbell.get(), &full, sizeof(full)), 8);
  const std::uint64_t one = 1;
  EXPECT_EQ(write(doorbell.get(), &one, sizeof(one)), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(AcceptDoorbell, SemaphoreEventfdIsOne) {
  const UniqueFd doorbell(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
  EXPECT_TRUE(accept_doorbell(doorbell.get()).ok());
}

void expect_refused(int fd) {
  EXPECT_EQ(accept_doorbell(fd).code(), absl::StatusCode::kInvalidArgument);
}

TEST(AcceptDoorbell, EverythingElseIsRefused) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd pipe_read(ends[0]);
  const UniqueFd pipe_write(ends[1]);
  expect_refused(pipe_read.get());
  expect_refused(pipe_write.get());
  EXPECT_EQ(fcntl(pipe_write.get(), F_GETFL) & O_NONBLOCK, 0);  // and left as it was
  const UniqueFd socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  expect_refused(socket_fd.get());
  const UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
  expect_refused(timer.get());
  const UniqueFd poller(epoll_create1(EPOLL_CLOEXEC));
  expect_refused(poller.get());
  // Its link reads "/memfd:[eventfd] (deleted)".
  const UniqueFd pretender(memfd_create("[eventfd]", MFD_CLOEXEC));
  expect_refused(pretender.get());
  const UniqueFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  expect_refused(file.get());
}

// A file may be given any name: the kind's name must be all of the link.
TEST(AcceptDoorbell, FileNamedLikeAnEventfd) {
  const std::string directory = testing::TempDir();
  const std::string path = directory + "anon_inode:[eventfd]";
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  expect_refused(file.get());
  unlink(path.c_str());
}

TEST(AcceptDoorbell, ClosedDescriptor) { EXPECT_FALSE(accept_doorbell(-1).ok()); }

TEST(UniqueFd, ClosesWhatItOwnsOnce) {
  const int number = eventfd(0, EFD_CLOEXEC);
  {
    UniqueFd first(number);
    UniqueFd second(std::move(first));
    EXPECT_EQ(second.get(), number);
    EXPECT_NE(fcntl(number, F_GETFD), -1);
    UniqueFd third(eventfd(0, EFD_CLOEXEC));
    const int replaced = third.get();
    third = std::move(second);
    EXPECT_EQ(fcntl(replaced, F_GETFD), -1);
    EXPECT_EQ(third.get(), number);
    EXPECT_EQ(third.release(), number);
    EXPECT_FALSE(third.valid());
    third.reset(number);
  }
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

}  // namespace
}  // namespace vswitch
