#include "cli/vswitchctl/tables.h"

#include <array>
#include <cstdio>

#include "absl/time/time.h"
#include "cli/vswitchctl/client.h"
#include "cli/vswitchctl/table.h"

namespace vswitch::ctl {
namespace {

std::string ratio(std::uint64_t part, std::uint64_t whole, double scale, const char* format) {
  if (whole == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format,
                scale * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

std::string socket_path(const v1::Port& port) {
  return port.vhost_user().resolved_socket_path().empty()
             ? port.vhost_user().socket_path()
             : port.vhost_user().resolved_socket_path();
}

}  // namespace

std::string state_name(v1::Port::State state) {
  switch (state) {
    case v1::Port::LISTENING:
      return "Listening";
    case v1::Port::NEGOTIATING:
      return "Negotiating";
    case v1::Port::UP:
      return "Up";
    case v1::Port::QUARANTINED:
      return "Quarantined";
    case v1::Port::FAILED:
      return "Failed";
    default:
      return "Unknown";
  }
}

std::string kind_name(const v1::Port& port) {
  return port.has_vhost_user() ? "vhost-user" : "unknown";
}

std::string time_text(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + " " + kUnits[unit];
}

std::string bridge_table(const std::vector<v1::Bridge>& bridges, bool has_headers) {
  Table table({"NAME", "PORTS", "FDB-ENTRIES"});
  for (const v1::Bridge& bridge : bridges) {
    table.add({short_name(bridge.name()), std::to_string(bridge.port_count()),
               std::to_string(bridge.fdb_entry_count())});
  }
  return table.to_string(has_headers);
}

std::string port_table(const std::vector<v1::Port>& ports, bool is_wide, bool has_headers) {
  if (!is_wide) {
    Table table({"NAME", "BRIDGE", "KIND", "STATE", "MTU", "RX-PACKETS", "RX-DROPS", "TX-PACKETS",
                 "TX-DROPS", "SOCKET"});
    for (const v1::Port& port : ports) {
      table.add({short_name(port.name()), short_name(port.bridge()), kind_name(port),
                 state_name(port.state()), std::to_string(port.mtu()),
                 std::to_string(port.receive().packets()),
                 std::to_string(port.receive().dropped_packets()),
                 std::to_string(port.transmit().packets()),
                 std::to_string(port.transmit().dropped_packets()), socket_path(port)});
    }
    return table.to_string(has_headers);
  }
  Table table({"NAME", "BRIDGE", "KIND", "STATE", "SINCE", "MTU", "QUEUE-PAIRS", "RX-PACKETS",
               "RX-BYTES", "RX-DROPS", "TX-PACKETS", "TX-BYTES", "TX-DROPS", "CONNECTIONS",
               "VIOLATIONS", "SOCKET", "REASON"});
  for (const v1::Port& port : ports) {
    table.add({short_name(port.name()), short_name(port.bridge()), kind_name(port),
               state_name(port.state()), time_text(port.state_since()), std::to_string(port.mtu()),
               std::to_string(port.queue_pairs()), std::to_string(port.receive().packets()),
               std::to_string(port.receive().bytes()),
               std::to_string(port.receive().dropped_packets()),
               std::to_string(port.transmit().packets()), std::to_string(port.transmit().bytes()),
               std::to_string(port.transmit().dropped_packets()),
               std::to_string(port.vhost_user_status().connections()),
               std::to_string(port.vhost_user_status().protocol_violations()), socket_path(port),
               port.state_reason()});
  }
  return table.to_string(has_headers);
}

std::string fdb_table(const std::vector<v1::FdbEntry>& entries, bool has_headers) {
  Table table({"BRIDGE", "VLAN", "MAC", "PORT", "AGE"});
  for (const v1::FdbEntry& entry : entries) {
    table.add({short_name(entry.bridge()), std::to_string(entry.vlan()), entry.mac_address(),
               short_name(entry.port()), std::to_string(entry.age().seconds()) + "s"});
  }
  return table.to_string(has_headers);
}

std::string worker_table(const std::vector<v1::Worker>& workers, bool is_wide, bool has_headers) {
  std::vector<std::string> headers = {"NAME", "CPU", "QUEUES", "PACKETS", "CYCLES/FRAME", "BUSY"};
  if (is_wide) {
    headers.insert(headers.end(),
                   {"NUMA", "POLLS", "BURSTS", "FRAMES/BURST", "BUSY-CYCLES", "TOTAL-CYCLES"});
  }
  Table table(headers);
  for (const v1::Worker& worker : workers) {
    std::vector<std::string> cells = {
        short_name(worker.name()),
        std::to_string(worker.cpu()),
        std::to_string(worker.queue_count()),
        std::to_string(worker.packets()),
        ratio(worker.busy_cycles(), worker.packets(), 1, "%.1f"),
        ratio(worker.busy_cycles(), worker.total_cycles(), 100, "%.1f%%")};
    if (is_wide) {
      cells.insert(
          cells.end(),
          {std::to_string(worker.numa_node()), std::to_string(worker.polls()),
           std::to_string(worker.bursts()), ratio(worker.packets(), worker.bursts(), 1, "%.1f"),
           std::to_string(worker.busy_cycles()), std::to_string(worker.total_cycles())});
    }
    table.add(std::move(cells));
  }
  return table.to_string(has_headers);
}

std::string system_table(const v1::SystemInfo& system, bool has_headers) {
  Table table({"VERSION", "WORKERS", "MEMORY", "BACKED-BY", "STARTED", "RUN-DIR", "STATE-DIR"});
  table.add({system.version(), std::to_string(system.worker_count()),
             size_text(system.memory_bytes()),
             system.memory_mode() == v1::SystemInfo::HUGEPAGES ? "hugepages" : "ordinary-pages",
             time_text(system.start_time()), system.run_dir(), system.state_dir()});
  return table.to_string(has_headers);
}

}  // namespace vswitch::ctl
