#include "dataplane/os/eventfd.h"

#include <fcntl.h>

#include <cerrno>

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

}  // namespace vswitch
