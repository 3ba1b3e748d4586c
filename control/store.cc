#include "control/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "control/error.h"
#include "control/state_file.h"
#include "control/validate.h"

namespace vswitch::control {
namespace {

constexpr char kLockName[] = "/lock";
constexpr char kFileName[] = "/state.yaml";

absl::Status write_error(const std::string& what, int error) {
  const std::string message = "the change was not stored: " + what + ": " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT) {
    return make_error(absl::StatusCode::kResourceExhausted, "STORE_FULL", message);
  }
  if (error == EMFILE || error == ENFILE) {
    return make_error(absl::StatusCode::kResourceExhausted, "OUT_OF_FILE_DESCRIPTORS", message);
  }
  return make_error(absl::StatusCode::kInternal, "STORE_WRITE_FAILED", message);
}

bool write_all(int fd, const std::string& content) {
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = ::write(fd, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace

Store::Store(std::string directory, UniqueFd lock)
    : directory_(std::move(directory)), path_(directory_ + kFileName), lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<Store>> Store::open(const std::string& directory) {
  const std::string lock_path = directory + kLockName;
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) {
    return absl::FailedPreconditionError("cannot open " + lock_path + ": " + std::strerror(errno));
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        "the state directory " + directory +
        " is in use by another vswitchd: stop it, or give this one a --state-dir of its own");
  }
  return std::unique_ptr<Store>(new Store(directory, std::move(lock)));
}

absl::StatusOr<DesiredState> Store::load(const std::string& run_dir) const {
  UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno == ENOENT) return DesiredState{};
    return absl::FailedPreconditionError("cannot read the stored state " + path_ + ": " +
                                         std::strerror(errno));
  }
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return absl::FailedPreconditionError("cannot read the stored state " + path_ + ": " +
                                           std::strerror(errno));
    }
    if (count == 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  absl::StatusOr<DesiredState> state = read_state(text);
  if (state.ok()) {
    // A run directory with a longer name than last time: no damage, but no way to listen either.
    for (const auto& [id, port] : state->ports) {
      if (absl::Status status = validate_port(port, run_dir); !status.ok()) {
        return absl::FailedPreconditionError("port " + id + " of the stored state " + path_ +
                                             " cannot be restored with --run-dir " + run_dir +
                                             ": " + message_of(status));
      }
    }
    return state;
  }
  const std::string remedy =
      state.status().code() == absl::StatusCode::kDataLoss
          ? "; restore it from a backup, or move it away to start without bridges and ports"
          : "; start the version that wrote it, or move it away to start without bridges and ports";
  return absl::Status(state.status().code(),
                      "the stored state " + path_ + " " + message_of(state.status()) + remedy);
}

absl::Status Store::save(const DesiredState& state) { return write(write_state(state)); }

absl::Status Store::write(const std::string& content) {
  const std::string temporary = path_ + ".tmp";
  UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return write_error("cannot create " + temporary, errno);
  // Without the fsync before it the rename may reach the disk first, with an empty file.
  if (!write_all(fd.get(), content) || ::fsync(fd.get()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return write_error("cannot write " + temporary, error);
  }
  // The old file under a second name, so that it can come back if the last step fails.
  const std::string previous = path_ + ".old";
  ::unlink(previous.c_str());
  const bool has_previous = ::link(path_.c_str(), previous.c_str()) == 0;
  const bool is_first = !has_previous && errno == ENOENT;
  if (::rename(temporary.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    ::unlink(previous.c_str());
    return write_error("cannot rename " + temporary, error);
  }
  const absl::Status synced = sync_directory();
  if (!synced.ok() && has_previous) {
    ::rename(previous.c_str(), path_.c_str());
  } else if (!synced.ok() && is_first) {
    ::unlink(path_.c_str());
  } else {
    ::unlink(previous.c_str());
  }
  return synced;
}

absl::Status Store::sync_directory() const {
  UniqueFd fd(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return write_error("cannot sync " + directory_, errno);
  return absl::OkStatus();
}

}  // namespace vswitch::control
