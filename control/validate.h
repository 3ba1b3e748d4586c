// What can be said about a request without asking the machine. Every error is INVALID_ARGUMENT with
// a reason (see error.h). Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "control/types.h"

namespace vswitch::control {

// Ids are [a-z]([a-z0-9-]{0,61}[a-z0-9])?: they fit a DNS label, a file name and a metric label.
// `what` is "bridge" or "port". INVALID_ID.
bool is_valid_id(std::string_view id);
absl::Status validate_id(std::string_view what, std::string_view id);

absl::Status validate_bridge(const BridgeSpec& bridge);
// INVALID_ID, INVALID_MTU, INVALID_QUEUE_PAIRS, PORT_KIND_UNSET, INVALID_SOCKET_PATH.
absl::Status validate_port(const PortSpec& port, const std::string& run_dir);

// The absolute, lexically normal path that `socket_path` stands for. INVALID_SOCKET_PATH where it
// is empty, holds control characters, does not name a file, or is longer than a unix socket's
// address can be.
absl::StatusOr<std::string> resolve_socket_path(const std::string& run_dir,
                                                const std::string& socket_path);

}  // namespace vswitch::control
