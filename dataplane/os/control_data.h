// The ancillary data of a received message: room for every descriptor that the kernel can deliver.
//
// With less room the kernel would close the rest itself, in the receiver's context, however long
// that takes.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstring>
#include <vector>

#include "dataplane/os/unique_fd.h"

namespace vswitch {

class ControlData {
 public:
  // For one recvmsg() into `place`. The object must outlive the use of the header.
  msghdr header(iovec& place) {
    msghdr header{};
    header.msg_iov = &place;
    header.msg_iovlen = 1;
    header.msg_control = bytes_.data();
    header.msg_controllen = bytes_.size();
    return header;
  }

  // Every descriptor that came with the message, in order.
  static std::vector<UniqueFd> take_fds(msghdr& header) {
    std::vector<UniqueFd> fds;
    for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
         control = CMSG_NXTHDR(&header, control)) {
      if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
        fds.emplace_back(fd);
      }
    }
    return fds;
  }

 private:
  static constexpr std::size_t kKernelMaxFds = 253;  // SCM_MAX_FD of Linux

  alignas(cmsghdr) std::array<char, CMSG_SPACE(kKernelMaxFds * sizeof(int))> bytes_;
};

}  // namespace vswitch
