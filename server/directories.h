// The directories the switch lives in.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/flags.h"

namespace vswitch::server {

// Creates what is missing: the run directory (0755) and the state directory (0700), with their
// parents, and the directory of the default API socket. FAILED_PRECONDITION, with a sentence, where
// that cannot be done or a directory in /tmp is not safe to use.
absl::Status prepare_directories(const Flags& flags);

// A private directory below a world-writable one: it must be ours and nobody else's to write.
absl::Status check_private_directory(const std::string& path);

}  // namespace vswitch::server
