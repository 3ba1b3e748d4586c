#include "control/state_file.h"

#include <yaml-cpp/yaml.h>
#include <zlib.h>

#include <cstdio>
#include <set>

#include "control/error.h"
#include "control/validate.h"

namespace vswitch::control {
namespace {

constexpr int kFormatVersion = 1;
constexpr std::string_view kChecksumKey = "checksum: crc32-";

std::string checksum_line(std::string_view content) {
  const auto crc = ::crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size());
  char digits[16];
  std::snprintf(digits, sizeof digits, "%08lx", static_cast<unsigned long>(crc));
  return std::string(kChecksumKey) + digits + "\n";
}

absl::Status damaged(const std::string& why) {
  return absl::DataLossError("is damaged (" + why + ")");
}

// A mapping with exactly these keys, and maybe the optional ones: an unknown key is a setting that
// would be lost.
absl::Status check_keys(const YAML::Node& node, const std::set<std::string>& keys,
                        const std::string& where, const std::set<std::string>& optional = {}) {
  if (!node.IsMap()) return damaged(where + " is not a mapping");
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    if (keys.count(key) + optional.count(key) == 0)
      return damaged("unknown key \"" + key + "\" in " + where);
  }
  for (const std::string& key : keys) {
    if (!node[key]) return damaged("no \"" + key + "\" in " + where);
  }
  return absl::OkStatus();
}

absl::Status read_bridge(const YAML::Node& node, DesiredState& state) {
  if (absl::Status status = check_keys(node, {"id"}, "a bridge"); !status.ok()) return status;
  BridgeSpec bridge;
  bridge.id = node["id"].as<std::string>();
  if (absl::Status status = validate_bridge(bridge); !status.ok()) {
    return damaged(message_of(status));
  }
  if (!state.bridges.emplace(bridge.id, bridge).second) {
    return damaged("bridge " + bridge.id + " is there twice");
  }
  return absl::OkStatus();
}

absl::Status read_port(const YAML::Node& node, DesiredState& state) {
  if (absl::Status status =
          check_keys(node, {"id", "bridge", "mtu", "vhost_user"}, "a port", {"queue_pairs"});
      !status.ok()) {
    return status;
  }
  if (absl::Status status = check_keys(node["vhost_user"], {"socket_path"}, "a vhost_user");
      !status.ok()) {
    return status;
  }
  PortSpec port;
  port.id = node["id"].as<std::string>();
  port.bridge = node["bridge"].as<std::string>();
  port.mtu = node["mtu"].as<std::uint32_t>();
  // Files of before there were several have none.
  if (node["queue_pairs"]) port.queue_pairs = node["queue_pairs"].as<std::uint32_t>();
  port.kind = VhostUserServerSpec{node["vhost_user"]["socket_path"].as<std::string>()};
  if (absl::Status status = validate_port(port, "/"); !status.ok()) {
    return damaged(message_of(status));
  }
  if (state.bridges.count(port.bridge) == 0) {
    return damaged("port " + port.id + " is on bridge " + port.bridge + ", which is not there");
  }
  if (!state.ports.emplace(port.id, port).second) {
    return damaged("port " + port.id + " is there twice");
  }
  return absl::OkStatus();
}

absl::StatusOr<DesiredState> read_document(const std::string& text, bool has_checksum) {
  const YAML::Node root = YAML::Load(text);
  if (!root.IsMap() || !root["version"]) return damaged("no format version");
  const int version = root["version"].as<int>();
  if (version != kFormatVersion) {
    return absl::FailedPreconditionError("has format version " + std::to_string(version) +
                                         ", and this vswitchd reads version " +
                                         std::to_string(kFormatVersion));
  }
  if (!has_checksum) return damaged("no checksum");
  if (absl::Status status =
          check_keys(root, {"checksum", "version", "bridges", "ports"}, "the file");
      !status.ok()) {
    return status;
  }
  DesiredState state;
  for (const YAML::Node& node : root["bridges"]) {
    if (absl::Status status = read_bridge(node, state); !status.ok()) return status;
  }
  for (const YAML::Node& node : root["ports"]) {
    if (absl::Status status = read_port(node, state); !status.ok()) return status;
  }
  return state;
}

}  // namespace

std::string write_state(const DesiredState& state) {
  YAML::Emitter out;
  out << YAML::Comment("Desired state of vswitchd, managed through its API; not to be edited.");
  out << YAML::BeginMap << YAML::Key << "version" << YAML::Value << kFormatVersion;
  out << YAML::Key << "bridges" << YAML::Value << YAML::BeginSeq;
  for (const auto& [id, bridge] : state.bridges) {
    out << YAML::BeginMap << YAML::Key << "id" << YAML::Value << id << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::Key << "ports" << YAML::Value << YAML::BeginSeq;
  for (const auto& [id, port] : state.ports) {
    out << YAML::BeginMap;
    out << YAML::Key << "id" << YAML::Value << id;
    out << YAML::Key << "bridge" << YAML::Value << port.bridge;
    out << YAML::Key << "mtu" << YAML::Value << port.mtu;
    if (port.queue_pairs != 1) {
      out << YAML::Key << "queue_pairs" << YAML::Value << port.queue_pairs;
    }
    if (const auto* vhost_user = std::get_if<VhostUserServerSpec>(&port.kind)) {
      out << YAML::Key << "vhost_user" << YAML::Value << YAML::BeginMap << YAML::Key
          << "socket_path" << YAML::Value << YAML::DoubleQuoted << vhost_user->socket_path
          << YAML::EndMap;
    }
    out << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::EndMap << YAML::Newline;
  const std::string content(out.c_str(), out.size());
  return checksum_line(content) + content;
}

absl::StatusOr<DesiredState> read_state(const std::string& text) {
  const std::size_t line_end = text.find('\n');
  const bool has_checksum =
      line_end != std::string::npos && text.compare(0, kChecksumKey.size(), kChecksumKey) == 0;
  if (has_checksum &&
      checksum_line(std::string_view(text).substr(line_end + 1)) != text.substr(0, line_end + 1)) {
    return damaged("its checksum does not match its content");
  }
  // yaml-cpp reports by exceptions; they end here.
  try {
    return read_document(text, has_checksum);
  } catch (const YAML::Exception& error) {
    return damaged(error.what());
  }
}

}  // namespace vswitch::control
