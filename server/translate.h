// API messages to plain values and back. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "control/controller.h"
#include "control/types.h"
#include "vswitch/v1/bridge.pb.h"
#include "vswitch/v1/fdb.pb.h"
#include "vswitch/v1/port.pb.h"
#include "vswitch/v1/system.pb.h"

namespace vswitch::server {

inline constexpr std::string_view kBridges = "bridges";
inline constexpr std::string_view kPorts = "ports";
inline constexpr std::string_view kWorkers = "workers";

// "bridges", "br0" -> "bridges/br0", and back. INVALID_RESOURCE_NAME when the name is of another
// form; `field` says in which field of the request it stood.
std::string resource_name(std::string_view collection, std::string_view id);
absl::StatusOr<std::string> parse_resource_name(std::string_view collection,
                                                const std::string& name, std::string_view field);

control::BridgeSpec bridge_spec(const v1::CreateBridgeRequest& request);
// Only what the messages themselves can say: the rest is the control plane's to check.
absl::StatusOr<control::PortSpec> port_spec(const v1::CreatePortRequest& request);

v1::Bridge to_proto(const control::BridgeView& bridge);
v1::Port to_proto(const control::PortView& port);
v1::FdbEntry to_proto(const dataplane::FdbEntry& entry);
v1::Worker to_proto(const dataplane::WorkerStatus& worker);

google::protobuf::Timestamp to_proto(absl::Time time);

}  // namespace vswitch::server
