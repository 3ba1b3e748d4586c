#include "dataplane/os/eventfd.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace vswitch {

absl::Status accept_doorbell(int fd) {
  // The kernel has no call for it; the link of the descriptor names its kind.
  std::array<char, 64> target{};
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  if (length < 0) return absl::ErrnoToStatus(errno, "cannot examine a file descriptor");
  if (std::string_view(target.data(), static_cast<std::size_t>(length)) != "anon_inode:[eventfd]") {
    return absl::InvalidArgumentError("the file descriptor is not an eventfd");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make an eventfd non-blocking");
  }
  return absl::OkStatus();
}

}  // namespace vswitch
