// The order in which the switch starts and stops.
#pragma once

#include "absl/status/status.h"
#include "server/flags.h"

namespace vswitch::server {

// Starts everything, runs until SIGTERM or SIGINT, stops everything. OK for a clean stop; an error
// is a start that could not work, as one sentence. A signal over a second after the first ends the
// process at once. Call from the main thread before there is another.
absl::Status run_daemon(const Flags& flags);

}  // namespace vswitch::server
