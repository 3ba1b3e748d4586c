// Doorbells: eventfds that a peer hands us.
#pragma once

#include "absl/status/status.h"

namespace vswitch {

// OK if `fd` is an eventfd, which is then non-blocking: its counter may be full, and that must
// never stop us. INVALID_ARGUMENT for any other kind of file. (A peer that shares the file
// description can make it blocking again; see the room's README for what remains of that risk.)
absl::Status accept_doorbell(int fd);

}  // namespace vswitch
