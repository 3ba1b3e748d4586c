// Where the API is found: the daemon and its clients agree on the default address and on how an
// address is written. Part of the contract like the messages, and free of gRPC.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace vswitch::api {

// The domain of every ErrorInfo of the switch, and the name of its health service.
inline constexpr char kDomain[] = "vswitch.v1";

struct Endpoint {
  enum class Kind { kUnix, kTcp };
  Kind kind = Kind::kUnix;
  std::string path;  // kUnix: absolute
  std::string host;  // kTcp: a name or an address, without brackets
  int port = 0;      // kTcp: 0 to 65535

  // As people write it: "unix:///path" or "HOST:PORT" ("[::1]:PORT" for IPv6).
  std::string to_string() const;
  // As gRPC takes it. The scheme is always given, so that no part is mistaken for another resolver.
  std::string grpc_target() const;
  // 127.0.0.0/8, ::1 or "localhost". Only meaningful for kTcp.
  bool is_loopback() const;
};

// "unix:///path", "unix:path", a path (anything with a slash or without a colon), or "HOST:PORT". A
// relative path is taken from the working directory. INVALID_ARGUMENT, with a sentence, for
// anything else.
absl::StatusOr<Endpoint> parse_endpoint(std::string_view text);

// The run directory of the switch: /run/vswitch for root, else $XDG_RUNTIME_DIR/vswitch, or
// /tmp/vswitch-UID where the variable is unset.
std::string default_run_dir();
// vswitchd.sock in the default run directory, as "unix:///path".
std::string default_server();

}  // namespace vswitch::api
