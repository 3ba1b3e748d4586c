// The place of a unix socket in the file system: who may take it, and how.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace vswitch::server {

// OK if nothing is at `path`, or a socket that nobody listens on (which is left for publish to
// replace). Otherwise FAILED_PRECONDITION, with a sentence: a live socket, something that is no
// socket, or no directory. Changes nothing.
absl::Status check_socket_path(const std::string& path);

// A short name in the directory of `path` for a socket that is to be published there.
std::string unpublished_path(const std::string& path);

// Gives the socket at `from` its mode and moves it to `path` in one step, replacing a stale
// socket. Clients never see one that is not ready or has the wrong mode.
absl::Status publish_socket(const std::string& from, const std::string& path, mode_t mode);

}  // namespace vswitch::server
