// Errors with a reason that programs can tell apart. They travel as absl::Status payloads, so that
// every function can return an ordinary status; the server turns them into ErrorInfo.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"

namespace vswitch::control {

struct ErrorDetail {
  std::string reason;  // UPPER_SNAKE_CASE; empty where the status names none
  std::map<std::string, std::string> metadata;
};

// `message` is one sentence: what failed, why, and where it helps what to do.
absl::Status make_error(absl::StatusCode code, const std::string& reason,
                        const std::string& message,
                        const std::map<std::string, std::string>& metadata = {});

ErrorDetail error_detail(const absl::Status& status);

// The text of a status as std::string: this Abseil's string_view is a type of its own.
std::string message_of(const absl::Status& status);

}  // namespace vswitch::control
