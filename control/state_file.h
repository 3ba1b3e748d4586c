// The text of the state file. YAML, so that people can read it, with a format version and a
// checksum, so that a damaged file is noticed and never taken for an empty one:
//
//   checksum: crc32-1a2b3c4d          CRC-32 (zlib's) of every byte after this line
//   # Desired state of vswitchd, …
//   version: 1
//   bridges:
//     - id: br0
//   ports:
//     - id: web
//       bridge: br0
//       mtu: 1500
//       queue_pairs: 4                only if it is not 1
//       vhost_user:
//         socket_path: web.sock
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "control/types.h"

namespace vswitch::control {

std::string write_state(const DesiredState& state);

// DATA_LOSS for a damaged text, FAILED_PRECONDITION for one of another format version. The message
// says what is wrong, without the file's name.
absl::StatusOr<DesiredState> read_state(const std::string& text);

}  // namespace vswitch::control
