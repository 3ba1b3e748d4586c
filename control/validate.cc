#include "control/validate.h"

#include <algorithm>
#include <filesystem>

#include "control/error.h"

namespace vswitch::control {
namespace {

constexpr std::size_t kMaxIdLength = 63;
constexpr std::size_t kShownLength = 80;

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Requests can hold megabytes; an error message must not.
std::string shown(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kShownLength)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return out + (text.size() > kShownLength ? "…\"" : "\"");
}

absl::Status bad_path(std::string_view path, const std::string& why) {
  return make_error(absl::StatusCode::kInvalidArgument, "INVALID_SOCKET_PATH",
                    "bad socket path " + shown(path) + ": " + why);
}

}  // namespace

bool is_valid_id(std::string_view id) {
  if (id.empty() || id.size() > kMaxIdLength || !is_lower(id.front()) || id.back() == '-') {
    return false;
  }
  return std::all_of(id.begin(), id.end(),
                     [](char c) { return is_lower(c) || is_digit(c) || c == '-'; });
}

absl::Status validate_id(std::string_view what, std::string_view id) {
  if (is_valid_id(id)) return absl::OkStatus();
  return make_error(absl::StatusCode::kInvalidArgument, "INVALID_ID",
                    "bad " + std::string(what) + " id " + shown(id) +
                        ": use 1 to 63 lower-case letters, digits and hyphens, "
                        "a letter first and no hyphen last",
                    {{"field", std::string(what) + "_id"}});
}

absl::Status validate_bridge(const BridgeSpec& bridge) { return validate_id("bridge", bridge.id); }

absl::Status validate_port(const PortSpec& port, const std::string& run_dir) {
  if (absl::Status status = validate_id("port", port.id); !status.ok()) return status;
  if (absl::Status status = validate_id("bridge", port.bridge); !status.ok()) return status;
  if (port.mtu < dataplane::kMinMtu || port.mtu > dataplane::kMaxMtu) {
    return make_error(absl::StatusCode::kInvalidArgument, "INVALID_MTU",
                      "bad MTU " + std::to_string(port.mtu) + ": use " +
                          std::to_string(dataplane::kMinMtu) + " to " +
                          std::to_string(dataplane::kMaxMtu) + " bytes",
                      {{"field", "mtu"},
                       {"minimum", std::to_string(dataplane::kMinMtu)},
                       {"maximum", std::to_string(dataplane::kMaxMtu)}});
  }
  if (port.queue_pairs < 1 || port.queue_pairs > dataplane::kMaxQueuePairs) {
    return make_error(absl::StatusCode::kInvalidArgument, "INVALID_QUEUE_PAIRS",
                      "bad number of queue pairs " + std::to_string(port.queue_pairs) +
                          ": use 1 to " + std::to_string(dataplane::kMaxQueuePairs),
                      {{"field", "queue_pairs"},
                       {"minimum", "1"},
                       {"maximum", std::to_string(dataplane::kMaxQueuePairs)}});
  }
  const auto* vhost_user = std::get_if<VhostUserServerSpec>(&port.kind);
  if (vhost_user == nullptr) {
    return make_error(absl::StatusCode::kInvalidArgument, "PORT_KIND_UNSET",
                      "the port has no kind: set vhost_user with a socket path",
                      {{"field", "kind"}});
  }
  return resolve_socket_path(run_dir, vhost_user->socket_path).status();
}

absl::StatusOr<std::string> resolve_socket_path(const std::string& run_dir,
                                                const std::string& socket_path) {
  if (socket_path.empty()) return bad_path(socket_path, "it is empty");
  const bool has_control = std::any_of(socket_path.begin(), socket_path.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
  if (has_control) return bad_path(socket_path, "it holds control characters");

  std::filesystem::path path(socket_path);
  if (path.is_relative()) path = std::filesystem::path(run_dir) / path;
  path = path.lexically_normal();
  if (!path.has_filename() || path.filename() == "..") {
    return bad_path(socket_path, "it names a directory, not a socket");
  }
  const std::string resolved = path.string();
  if (resolved.size() > dataplane::kMaxSocketPathLength) {
    return bad_path(socket_path, "resolved it has " + std::to_string(resolved.size()) +
                                     " bytes, and a unix socket's path at most " +
                                     std::to_string(dataplane::kMaxSocketPathLength));
  }
  return resolved;
}

}  // namespace vswitch::control
