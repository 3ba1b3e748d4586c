#include "server/metrics.h"

#include <array>
#include <string>
#include <utility>

#include "server/metric_family.h"
#include "server/version.h"

namespace vswitch::server {
namespace {

using dataplane::PortState;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Families = std::vector<MetricFamily>;

// A scrape times out after ten seconds by default; half of that leaves room for all reads.
constexpr absl::Duration kReadLimit = absl::Seconds(5);

constexpr std::array<std::pair<PortState, const char*>, 5> kStates = {{
    {PortState::kListening, "listening"},
    {PortState::kNegotiating, "negotiating"},
    {PortState::kUp, "up"},
    {PortState::kQuarantined, "quarantined"},
    {PortState::kFailed, "failed"},
}};

const char* kind_name(const dataplane::PortKind& kind) {
  return std::holds_alternative<dataplane::VhostUserServerConfig>(kind) ? "vhost-user" : "unknown";
}

MetricFamilyBuilder counter(const char* name, const char* help) {
  return MetricFamilyBuilder(name, help, MetricType::Counter);
}

MetricFamilyBuilder gauge(const char* name, const char* help) {
  return MetricFamilyBuilder(name, help, MetricType::Gauge);
}

void add_traffic(const std::vector<dataplane::PortStatus>& ports, Families& out) {
  auto receive_packets = counter("vswitch_port_receive_packets_total",
                                 "Frames received into the switch from the port's guest.");
  auto receive_bytes =
      counter("vswitch_port_receive_bytes_total",
              "Bytes of frames received into the switch from the port's guest, without FCS.");
  auto transmit_packets = counter("vswitch_port_transmit_packets_total",
                                  "Frames transmitted out of the switch to the port's guest.");
  auto transmit_bytes =
      counter("vswitch_port_transmit_bytes_total",
              "Bytes of frames transmitted out of the switch to the port's guest, without FCS.");
  auto drops = counter("vswitch_dropped_packets_total",
                       "Frames and guest buffers dropped on the port by reason; receive is into "
                       "the switch, transmit out of it.");
  for (const dataplane::PortStatus& port : ports) {
    const std::string& id = port.config.id;
    receive_packets.add({{"port", id}}, port.receive.packets);
    receive_bytes.add({{"port", id}}, port.receive.bytes);
    transmit_packets.add({{"port", id}}, port.transmit.packets);
    transmit_bytes.add({{"port", id}}, port.transmit.bytes);
    // Zeros too: a rate over a series that appears with its first drop would miss that drop.
    for (std::size_t i = 0; i < kDropReasonCount; ++i) {
      const std::string reason(drop_reason_label(static_cast<DropReason>(i)));
      drops.add({{"port", id}, {"direction", "receive"}, {"reason", reason}},
                port.receive.dropped[i]);
      drops.add({{"port", id}, {"direction", "transmit"}, {"reason", reason}},
                port.transmit.dropped[i]);
    }
  }
  for (auto* family :
       {&receive_packets, &receive_bytes, &transmit_packets, &transmit_bytes, &drops}) {
    out.push_back(family->take());
  }
}

void add_port_states(const std::vector<dataplane::PortStatus>& ports, Families& out) {
  auto info = gauge("vswitch_port_info", "What the port is; always 1.");
  auto state = gauge("vswitch_port_state", "1 for the state the port is in, 0 for the others.");
  auto connections = counter("vswitch_port_connections_total",
                             "Connections of a front-end accepted on the port's socket.");
  auto violations = counter("vswitch_port_protocol_violations_total",
                            "Connections the switch ended because the front-end broke the "
                            "vhost-user protocol.");
  for (const dataplane::PortStatus& port : ports) {
    const std::string& id = port.config.id;
    info.add({{"port", id}, {"bridge", port.config.bridge}, {"kind", kind_name(port.config.kind)}},
             1.0);
    for (const auto& [value, name] : kStates) {
      state.add({{"port", id}, {"state", name}}, port.state == value ? 1.0 : 0.0);
    }
    connections.add({{"port", id}}, port.connections);
    violations.add({{"port", id}}, port.protocol_violations);
  }
  for (auto* family : {&info, &state, &connections, &violations}) out.push_back(family->take());
}

void add_queues(const std::vector<dataplane::PortStatus>& ports, Families& out) {
  auto available = gauge("vswitch_virtqueue_available_descriptors",
                         "Descriptor chains the guest has offered and the switch has not taken.");
  auto notifications =
      counter("vswitch_guest_notifications_total",
              "Notifications from the switch to the guest: sent, suppressed because the guest "
              "wants none, or full because the last ones are unread.");
  for (const dataplane::PortStatus& port : ports) {
    for (const dataplane::QueueStatus& queue : port.queues) {
      const MetricFamilyBuilder::Labels labels = {{"port", port.config.id},
                                                  {"queue", std::to_string(queue.index)}};
      available.add(labels, static_cast<double>(queue.available));
      const auto add = [&](const char* result, std::uint64_t value) {
        MetricFamilyBuilder::Labels with_result = labels;
        with_result.push_back({"result", result});
        notifications.add(std::move(with_result), value);
      };
      add("sent", queue.notifications_sent);
      add("suppressed", queue.notifications_suppressed);
      add("full", queue.notifications_full);
    }
  }
  out.push_back(available.take());
  out.push_back(notifications.take());
}

void add_workers(const std::vector<dataplane::WorkerStatus>& workers, std::uint64_t tsc_hz,
                 Families& out) {
  auto cpu = counter("vswitch_worker_cpu_seconds_total",
                     "Time of the worker's CPU: busy on polls that found frames, idle on others.");
  auto packets =
      counter("vswitch_worker_packets_total", "Frames the worker read from guests' rings.");
  auto polls =
      counter("vswitch_worker_polls_total", "Rounds of the worker over all queues it polls.");
  const double hz = tsc_hz == 0 ? 1.0 : static_cast<double>(tsc_hz);
  for (const dataplane::WorkerStatus& worker : workers) {
    const std::string index = std::to_string(worker.index);
    // The two counts are read one after the other; idle must not come out below zero.
    const std::uint64_t idle =
        worker.total_cycles > worker.busy_cycles ? worker.total_cycles - worker.busy_cycles : 0;
    cpu.add({{"worker", index}, {"state", "busy"}}, static_cast<double>(worker.busy_cycles) / hz);
    cpu.add({{"worker", index}, {"state", "idle"}}, static_cast<double>(idle) / hz);
    packets.add({{"worker", index}}, worker.packets);
    polls.add({{"worker", index}}, worker.polls);
  }
  for (auto* family : {&cpu, &packets, &polls}) out.push_back(family->take());
}

void add_system(const dataplane::SystemStatus& system, Families& out) {
  auto build = gauge("vswitch_build_info", "The running version; always 1.");
  build.add({{"version", kVersion}}, 1.0);
  out.push_back(build.take());
  auto memory = gauge("vswitch_memory_bytes",
                      "Memory reserved for the switch's own tables and buffers, by what backs it.");
  memory.add({{"mode", system.memory_mode == "hugepages" ? "hugepages" : "ordinary"}},
             system.memory_bytes);
  out.push_back(memory.take());
}

}  // namespace

std::vector<MetricFamily> SwitchMetrics::Collect() const {
  const absl::Time deadline = absl::Now() + kReadLimit;
  Families families;
  const dataplane::SystemStatus system = dataplane_.system();
  add_system(system, families);
  if (const auto ports = dataplane_.ports(deadline); ports.ok()) {
    add_traffic(*ports, families);
    add_port_states(*ports, families);
    add_queues(*ports, families);
  }
  if (const auto bridges = dataplane_.bridges(deadline); bridges.ok()) {
    auto entries = gauge("vswitch_fdb_entries", "Entries of the bridge's MAC table.");
    for (const auto& bridge : *bridges) {
      entries.add({{"bridge", bridge.config.id}}, bridge.fdb_entries);
    }
    families.push_back(entries.take());
  }
  if (const auto workers = dataplane_.workers(deadline); workers.ok()) {
    add_workers(*workers, system.tsc_hz, families);
  }
  return families;
}

}  // namespace vswitch::server
