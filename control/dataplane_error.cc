#include "control/dataplane_error.h"

#include "control/error.h"

namespace vswitch::control {

absl::Status dataplane_error(const absl::Status& status, Operation operation,
                             const std::string& subject) {
  if (status.ok()) return status;
  const std::string message = message_of(status);
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return make_error(status.code(), "DATAPLANE_EXHAUSTED", message, {{"subject", subject}});
    case absl::StatusCode::kDeadlineExceeded:
      return make_error(status.code(), "DEADLINE_EXCEEDED",
                        "the data plane did not answer in time: " + message);
    case absl::StatusCode::kUnavailable:
      return make_error(status.code(), "SWITCH_STOPPING", message);
    default:
      break;
  }
  if (operation == Operation::kCreatePort) {
    switch (status.code()) {
      case absl::StatusCode::kAlreadyExists:
        return make_error(status.code(), "SOCKET_PATH_IN_USE", message, {{"socket_path", subject}});
      case absl::StatusCode::kFailedPrecondition:
        return make_error(status.code(), "SOCKET_PATH_OCCUPIED", message,
                          {{"socket_path", subject}});
      case absl::StatusCode::kPermissionDenied:
      case absl::StatusCode::kNotFound:
        return make_error(absl::StatusCode::kFailedPrecondition, "SOCKET_DIRECTORY_UNUSABLE",
                          message, {{"socket_path", subject}});
      default:
        break;
    }
  }
  return make_error(absl::StatusCode::kInternal, "INTERNAL", message, {{"subject", subject}});
}

}  // namespace vswitch::control
