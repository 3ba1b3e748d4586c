#include "server/directories.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace vswitch::server {
namespace {

absl::Status create_directory(const std::string& path, mode_t mode) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return absl::OkStatus();
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(parent, error);
  if (!error && ::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error && !std::filesystem::is_directory(path)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError("cannot create the directory " + path + ": " +
                                       error.message());
}

absl::Status prepare_run_dir(const std::string& path, bool is_default) {
  const bool is_shared_parent = is_default && path.rfind("/tmp/", 0) == 0;
  if (absl::Status status = create_directory(path, is_shared_parent ? 0700 : 0755); !status.ok()) {
    return status;
  }
  return is_shared_parent ? check_private_directory(path) : absl::OkStatus();
}

}  // namespace

absl::Status check_private_directory(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return absl::FailedPreconditionError("cannot use " + path + ": " + std::strerror(errno));
  }
  const bool is_private = S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
                          (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (is_private) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "cannot use " + path +
      ": it is not a directory of this user alone, remove it or set XDG_RUNTIME_DIR");
}

absl::Status prepare_directories(const Flags& flags) {
  if (absl::Status status = prepare_run_dir(flags.run_dir, flags.is_default_run_dir);
      !status.ok()) {
    return status;
  }
  if (flags.is_default_listen) {
    if (absl::Status status = prepare_run_dir(api::default_run_dir(), true); !status.ok()) {
      return status;
    }
  }
  return create_directory(flags.state_dir, 0700);
}

}  // namespace vswitch::server
