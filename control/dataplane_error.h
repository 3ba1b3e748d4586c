// What an error of the data plane means to the user who asked.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace vswitch::control {

enum class Operation { kCreateBridge, kDeleteBridge, kCreatePort, kDeletePort, kRead };

// Keeps the message, adds the reason that fits the operation, and makes codes that the API does not
// promise for it INTERNAL. OK stays OK. `subject` is the id or path for the metadata.
absl::Status dataplane_error(const absl::Status& status, Operation operation,
                             const std::string& subject);

}  // namespace vswitch::control
