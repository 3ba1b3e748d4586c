#include "dataplane/os/eventfd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "dataplane/os/peer_fd.h"

namespace vswitch {

absl::Status accept_doorbell(int fd) {
  if (!is_eventfd(fd)) {
    return absl::InvalidArgumentError("the file descriptor is not an eventfd");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make an eventfd non-blocking");
  }
  return absl::OkStatus();
}

void signal_eventfd(int fd) {
  const std::uint64_t one = 1;
  const ssize_t bytes = write(fd, &one, sizeof(one));
  (void)bytes;
}

void drain_eventfd(int fd) {
  std::uint64_t count = 0;
  const ssize_t bytes = read(fd, &count, sizeof(count));
  (void)bytes;
}

}  // namespace vswitch
