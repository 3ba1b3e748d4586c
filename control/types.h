// What users ask for, as plain values. Knows nothing of the API's messages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "dataplane/dataplane.h"

namespace vswitch::control {

struct BridgeSpec {
  std::string id;

  bool operator==(const BridgeSpec&) const = default;
};

// The switch listens on the socket, a VMM connects.
struct VhostUserServerSpec {
  std::string socket_path;  // as the user wrote it; a relative one is taken from the run directory

  bool operator==(const VhostUserServerSpec&) const = default;
};

struct PortSpec {
  std::string id;
  std::string bridge;  // id
  std::uint32_t mtu = dataplane::kDefaultMtu;
  std::variant<std::monostate, VhostUserServerSpec> kind;  // monostate: unset, never valid
  std::uint32_t queue_pairs = 1;                           // the most that a guest may use

  bool operator==(const PortSpec&) const = default;
};

// Everything that was asked for and acknowledged, by id. std::map: lists are in the order of ids.
struct DesiredState {
  std::map<std::string, BridgeSpec> bridges;
  std::map<std::string, PortSpec> ports;

  bool operator==(const DesiredState&) const = default;
};

}  // namespace vswitch::control
