// A listening unix stream socket at a path of the file system.
#pragma once

#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/os/unique_fd.h"

namespace vswitch {

class UnixListener {
 public:
  // Binds, sets exactly `mode`, then listens (non-blocking). A stale socket in the place (nobody
  // listens on it) is replaced. ALREADY_EXISTS: somebody listens there. FAILED_PRECONDITION:
  // something that is no socket is there, or the directory is missing (both left as they are).
  // INVALID_ARGUMENT: longer than the 107 bytes that fit in a socket address, or empty.
  // PERMISSION_DENIED: as it says.
  static absl::StatusOr<UnixListener> listen(const std::string& path, mode_t mode);

  UnixListener(UnixListener&&) = default;
  UnixListener& operator=(UnixListener&& other) noexcept;
  // Closes, and removes the path if it is still this socket.
  ~UnixListener() { remove_path(); }

  int fd() const { return socket_.get(); }
  // The next connection (non-blocking, close-on-exec); UNAVAILABLE when there is none.
  absl::StatusOr<UniqueFd> accept() const;

 private:
  UnixListener() = default;
  void remove_path();

  UniqueFd socket_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace vswitch
