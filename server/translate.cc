#include "server/translate.h"

#include <cstdio>

#include "control/error.h"
#include "control/validate.h"
#include "dataplane/vhost_user/message.h"
#include "dataplane/virtq/features.h"

namespace vswitch::server {
namespace {

v1::Port::State to_proto(dataplane::PortState state) {
  switch (state) {
    case dataplane::PortState::kListening:
      return v1::Port::LISTENING;
    case dataplane::PortState::kNegotiating:
      return v1::Port::NEGOTIATING;
    case dataplane::PortState::kUp:
      return v1::Port::UP;
    case dataplane::PortState::kQuarantined:
      return v1::Port::QUARANTINED;
    case dataplane::PortState::kFailed:
      return v1::Port::FAILED;
  }
  return v1::Port::STATE_UNSPECIFIED;
}

void fill(const dataplane::DirectionCounters& from, v1::PortCounters& to) {
  to.set_packets(from.packets);
  to.set_bytes(from.bytes);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < kDropReasonCount; ++i) {
    if (from.dropped[i] == 0) continue;
    total += from.dropped[i];
    const auto reason = static_cast<DropReason>(i);
    v1::DropCounter& drop = *to.add_drops();
    drop.set_reason(std::string(drop_reason_label(reason)));
    drop.set_description(std::string(drop_reason_text(reason)));
    drop.set_packets(from.dropped[i]);
  }
  to.set_dropped_packets(total);
}

void fill(const dataplane::QueueStatus& from, v1::Virtqueue& to) {
  to.set_index(from.index);
  to.set_size(from.size);
  to.set_enabled(from.enabled);
  to.set_running(from.running);
  to.set_quarantined(from.quarantined);
  to.set_available_descriptors(from.available);
  to.set_packets(from.packets);
  to.set_notifications_sent(from.notifications_sent);
  to.set_notifications_suppressed(from.notifications_suppressed);
  to.set_notifications_full(from.notifications_full);
  if (from.worker >= 0) to.set_worker(resource_name(kWorkers, std::to_string(from.worker)));
}

void fill(const dataplane::PortStatus& from, v1::VhostUserStatus& to) {
  for (std::string& name : virtq::feature_names(from.offered_features)) {
    to.add_offered_features(std::move(name));
  }
  for (std::string& name : virtq::feature_names(from.negotiated_features)) {
    to.add_negotiated_features(std::move(name));
  }
  for (std::string& name : vhost_user::protocol_feature_names(from.protocol_features)) {
    to.add_protocol_features(std::move(name));
  }
  to.set_memory_regions(from.memory_regions);
  to.set_memory_bytes(from.memory_bytes);
  to.set_connections(from.connections);
  to.set_protocol_violations(from.protocol_violations);
}

}  // namespace

std::string resource_name(std::string_view collection, std::string_view id) {
  return std::string(collection) + "/" + std::string(id);
}

absl::StatusOr<std::string> parse_resource_name(std::string_view collection,
                                                const std::string& name, std::string_view field) {
  const std::string prefix = std::string(collection) + "/";
  std::string id = name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : "";
  if (control::is_valid_id(id)) return id;
  return control::make_error(
      absl::StatusCode::kInvalidArgument, "INVALID_RESOURCE_NAME",
      "bad " + std::string(field) + (name.empty() ? ": it is empty" : ": it is not of the form") +
          (name.empty() ? ", write " : " ") + prefix +
          "{id}, with an id of 1 to 63 lower-case letters, digits and hyphens",
      {{"field", std::string(field)}});
}

control::BridgeSpec bridge_spec(const v1::CreateBridgeRequest& request) {
  return {request.bridge_id()};
}

absl::StatusOr<control::PortSpec> port_spec(const v1::CreatePortRequest& request) {
  control::PortSpec spec;
  spec.id = request.port_id();
  // The id first: with all fields empty it is what the caller forgot first.
  if (absl::Status status = control::validate_id("port", spec.id); !status.ok()) return status;
  absl::StatusOr<std::string> bridge =
      parse_resource_name(kBridges, request.port().bridge(), "port.bridge");
  if (!bridge.ok()) return bridge.status();
  spec.bridge = *std::move(bridge);
  if (request.port().mtu() != 0) spec.mtu = request.port().mtu();
  if (request.port().queue_pairs() != 0) spec.queue_pairs = request.port().queue_pairs();
  if (request.port().has_vhost_user()) {
    spec.kind = control::VhostUserServerSpec{request.port().vhost_user().socket_path()};
  }
  return spec;
}

v1::Bridge to_proto(const control::BridgeView& bridge) {
  v1::Bridge out;
  out.set_name(resource_name(kBridges, bridge.spec.id));
  out.set_port_count(bridge.status.ports);
  out.set_fdb_entry_count(bridge.status.fdb_entries);
  return out;
}

v1::Port to_proto(const control::PortView& port) {
  v1::Port out;
  out.set_name(resource_name(kPorts, port.spec.id));
  out.set_bridge(resource_name(kBridges, port.spec.bridge));
  out.set_mtu(port.spec.mtu);
  out.set_queue_pairs(port.spec.queue_pairs);
  if (const auto* kind = std::get_if<control::VhostUserServerSpec>(&port.spec.kind)) {
    out.mutable_vhost_user()->set_socket_path(kind->socket_path);
  }
  const dataplane::PortStatus& status = port.status;
  if (const auto* kind = std::get_if<dataplane::VhostUserServerConfig>(&status.config.kind)) {
    out.mutable_vhost_user()->set_resolved_socket_path(kind->socket_path);
    fill(status, *out.mutable_vhost_user_status());
  }
  out.set_state(to_proto(status.state));
  out.set_state_reason(status.state_reason);
  *out.mutable_state_since() = to_proto(status.state_since);
  fill(status.receive, *out.mutable_receive());
  fill(status.transmit, *out.mutable_transmit());
  for (const dataplane::QueueStatus& queue : status.queues) fill(queue, *out.add_virtqueues());
  return out;
}

v1::FdbEntry to_proto(const dataplane::FdbEntry& entry) {
  v1::FdbEntry out;
  out.set_bridge(resource_name(kBridges, entry.bridge));
  out.set_vlan(entry.vlan);
  char mac[18];
  std::snprintf(mac, sizeof mac, "%02x:%02x:%02x:%02x:%02x:%02x", entry.mac[0], entry.mac[1],
                entry.mac[2], entry.mac[3], entry.mac[4], entry.mac[5]);
  out.set_mac_address(mac);
  out.set_port(resource_name(kPorts, entry.port));
  const std::int64_t nanoseconds = absl::ToInt64Nanoseconds(entry.age);
  out.mutable_age()->set_seconds(nanoseconds / 1'000'000'000);
  out.mutable_age()->set_nanos(static_cast<std::int32_t>(nanoseconds % 1'000'000'000));
  return out;
}

v1::Worker to_proto(const dataplane::WorkerStatus& worker) {
  v1::Worker out;
  out.set_name(resource_name(kWorkers, std::to_string(worker.index)));
  out.set_cpu(worker.cpu);
  out.set_numa_node(worker.numa_node);
  out.set_queue_count(worker.queues);
  out.set_polls(worker.polls);
  out.set_bursts(worker.bursts);
  out.set_packets(worker.packets);
  out.set_busy_cycles(worker.busy_cycles);
  out.set_total_cycles(worker.total_cycles);
  return out;
}

google::protobuf::Timestamp to_proto(absl::Time time) {
  google::protobuf::Timestamp out;
  const std::int64_t nanoseconds = absl::ToUnixNanos(time);
  out.set_seconds(nanoseconds / 1'000'000'000);
  out.set_nanos(static_cast<std::int32_t>(nanoseconds % 1'000'000'000));
  return out;
}

}  // namespace vswitch::server
