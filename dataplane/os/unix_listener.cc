#include "dataplane/os/unix_listener.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/os/peer_fd.h"

namespace vswitch {
namespace {

constexpr int kBacklog = 16;

absl::StatusOr<sockaddr_un> socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a socket path has 1 to ", sizeof(address.sun_path) - 1, " bytes, not ", path.size()));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

absl::Status path_error(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::FailedPreconditionError(
          absl::StrCat("the directory of ", path, " does not exist; create it first"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(
          absl::StrCat("cannot create ", path, ": ", std::strerror(error)));
    default:
      return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", path));
  }
}

// Makes room for a new socket: nothing there, or a socket without a listener, which is removed.
absl::Status clear_place(const std::string& path, const sockaddr_un& address) {
  struct stat entry {};
  if (lstat(path.c_str(), &entry) != 0) {
    return errno == ENOENT ? absl::OkStatus() : path_error(path, errno);
  }
  if (!S_ISSOCK(entry.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a socket; remove it or choose another path"));
  }
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return absl::ErrnoToStatus(errno, "cannot create a socket");
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN) {
    return absl::AlreadyExistsError(absl::StrCat("somebody is listening on ", path));
  }
  if (errno != ECONNREFUSED) return path_error(path, errno);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return path_error(path, errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UnixListener> UnixListener::listen(const std::string& path, mode_t mode) {
  const absl::StatusOr<sockaddr_un> address = socket_address(path);
  if (!address.ok()) return address.status();
  if (absl::Status status = clear_place(path, *address); !status.ok()) return status;
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create a socket: ", std::strerror(errno)));
  }
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    return path_error(path, errno);
  }
  UnixListener listener;
  listener.socket_ = std::move(socket);
  listener.path_ = path;
  struct stat entry {};
  if (lstat(path.c_str(), &entry) != 0) return path_error(path, errno);
  listener.device_ = entry.st_dev;
  listener.inode_ = entry.st_ino;
  // Before listening: nobody can connect while the mode is not the wanted one.
  if (chmod(path.c_str(), mode) != 0 || ::listen(listener.fd(), kBacklog) != 0) {
    return path_error(path, errno);
  }
  return listener;
}

UnixListener& UnixListener::operator=(UnixListener&& other) noexcept {
  if (this != &other) {
    remove_path();
    socket_ = std::move(other.socket_);
    path_ = std::move(other.path_);
    device_ = other.device_;
    inode_ = other.inode_;
  }
  return *this;
}

// While the socket is open, so that nothing else can have got its inode number.
void UnixListener::remove_path() {
  if (!socket_.valid()) return;
  struct stat entry {};
  if (lstat(path_.c_str(), &entry) == 0 && entry.st_dev == device_ && entry.st_ino == inode_) {
    unlink(path_.c_str());
  }
  // Connections nobody took would be closed with the listener, and what was sent over them too. Not
  // more than the backlog holds: a path that is not ours any more may still lead here.
  for (int i = 0; i <= kBacklog; ++i) {
    absl::StatusOr<UniqueFd> waiting = accept();
    if (!waiting.ok()) break;
    const PeerSocket unserved(*std::move(waiting));
  }
}

absl::StatusOr<UniqueFd> UnixListener::accept() const {
  UniqueFd connection(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (connection.valid()) return connection;
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) {
    return absl::UnavailableError("no connection is waiting");
  }
  return absl::ErrnoToStatus(errno, "cannot accept a connection");
}

}  // namespace vswitch
