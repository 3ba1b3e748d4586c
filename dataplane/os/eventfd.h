// Eventfds: our own, to wake a loop, and doorbells, which a peer hands us.
#pragma once

#include "absl/status/status.h"

namespace vswitch {

// OK if `fd` is an eventfd, which is then non-blocking: its counter may be full, and that must
// never stop us. INVALID_ARGUMENT for any other kind of file. (A peer that shares the file
// description can make it blocking again; see the room's README for what remains of that risk.)
absl::Status accept_doorbell(int fd);

// Adds one to a non-blocking eventfd. A full counter is no error: its reader has been woken and has
// not looked yet. Safe in a signal handler.
void signal_eventfd(int fd);

// Sets a non-blocking counter (eventfd, timerfd) back to zero; one that is zero already is fine.
void drain_eventfd(int fd);

}  // namespace vswitch
