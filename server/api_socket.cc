#include "server/api_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "dataplane/os/unique_fd.h"

namespace vswitch::server {
namespace {

absl::Status refused(const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError("cannot listen on " + path + ": " + why);
}

// 0: somebody listens; else the errno of connect.
int try_connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  // Non-blocking: a listener with a full backlog answers EAGAIN, and is alive.
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return 0;
  return errno;
}

// gRPC does not say why it could not bind, so this is found out before.
absl::Status check_writable(const std::string& path, const std::string& directory) {
  if (::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0) {
    return absl::OkStatus();
  }
  return refused(path,
                 "the directory " + directory + " cannot be written: " + std::strerror(errno));
}

}  // namespace

absl::Status check_socket_path(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    const int error = errno;
    struct stat parent {};
    if (error == ENOTDIR || (::stat(directory.c_str(), &parent) != 0 && errno == ENOENT)) {
      return refused(path, "the directory does not exist, create it with mkdir -p " + directory);
    }
    if (error == ENOENT) return check_writable(path, directory);
    return refused(path, std::strerror(error));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return refused(path, "something that is no socket is there, move it away");
  }
  const int error = try_connect(path);
  if (error == ECONNREFUSED || error == ENOENT) return check_writable(path, directory);
  if (error == 0 || error == EAGAIN) {
    return refused(path, "another process listens there, stop it or choose another --listen");
  }
  return refused(path, std::strerror(error));
}

std::string unpublished_path(const std::string& path) {
  return (std::filesystem::path(path).parent_path() / (".v" + std::to_string(::getpid()))).string();
}

absl::Status publish_socket(const std::string& from, const std::string& path, mode_t mode) {
  if (::chmod(from.c_str(), mode) != 0) return refused(path, std::strerror(errno));
  if (absl::Status status = check_socket_path(path); !status.ok()) return status;
  ::unlink(path.c_str());
  // Not rename: a socket that another process has put there meanwhile must not be replaced.
  if (::link(from.c_str(), path.c_str()) != 0) return refused(path, std::strerror(errno));
  ::unlink(from.c_str());
  return absl::OkStatus();
}

}  // namespace vswitch::server
