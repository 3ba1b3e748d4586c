#include "cli/vswitchctl/describe.h"

#include <google/protobuf/repeated_field.h>

#include "cli/vswitchctl/attach.h"
#include "cli/vswitchctl/client.h"
#include "cli/vswitchctl/table.h"
#include "cli/vswitchctl/tables.h"

namespace vswitch::ctl {
namespace {

constexpr std::size_t kLabelWidth = 21;

std::string line(const std::string& label, const std::string& value) {
  std::string out = label + ":";
  out.append(out.size() < kLabelWidth ? kLabelWidth - out.size() : 1, ' ');
  return out + value + "\n";
}

std::string plural(std::uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// One name a line: a list of features is read by going down it.
std::string name_lines(const std::string& label,
                       const google::protobuf::RepeatedPtrField<std::string>& names) {
  if (names.empty()) return line(label, "none");
  std::string out;
  for (int i = 0; i < names.size(); ++i) {
    out += i == 0 ? line(label, names[i]) : std::string(kLabelWidth, ' ') + names[i] + "\n";
  }
  return out;
}

std::string queue_table(const v1::Port& port) {
  Table table({"QUEUE", "GUEST", "SIZE", "STATE", "AVAILABLE", "WORKER", "PACKETS", "NOTIFIED",
               "SUPPRESSED", "FULL"});
  for (const v1::Virtqueue& queue : port.virtqueues()) {
    const char* state = queue.quarantined() ? "quarantined"
                        : queue.running()   ? "running"
                        : queue.enabled()   ? "enabled"
                                            : "stopped";
    table.add({std::to_string(queue.index()), queue.index() % 2 == 0 ? "receive" : "transmit",
               std::to_string(queue.size()), state, std::to_string(queue.available_descriptors()),
               short_name(queue.worker()), std::to_string(queue.packets()),
               std::to_string(queue.notifications_sent()),
               std::to_string(queue.notifications_suppressed()),
               std::to_string(queue.notifications_full())});
  }
  return table.is_empty() ? "  none yet: the guest sets them\n" : table.to_string(true, "  ");
}

std::string counter_table(const v1::Port& port) {
  Table table({"DIRECTION", "PACKETS", "BYTES", "DROPS"});
  const auto add = [&](const char* direction, const v1::PortCounters& counters) {
    table.add({direction, std::to_string(counters.packets()), std::to_string(counters.bytes()),
               std::to_string(counters.dropped_packets())});
  };
  add("receive (into the switch)", port.receive());
  add("transmit (to the guest)", port.transmit());
  return table.to_string(true, "  ");
}

std::string drop_table(const v1::Port& port) {
  Table table({"DIRECTION", "REASON", "PACKETS", "MEANING"});
  const auto add = [&](const char* direction, const v1::PortCounters& counters) {
    for (const v1::DropCounter& drop : counters.drops()) {
      table.add({direction, drop.reason(), std::to_string(drop.packets()), drop.description()});
    }
  };
  add("receive", port.receive());
  add("transmit", port.transmit());
  return table.is_empty() ? "  none\n" : table.to_string(true, "  ");
}

std::string attach_text(const v1::Port& port) {
  std::string out = "Attach a guest:\n";
  out += "  QEMU (add to your command line; set the memory size in both places):\n    ";
  out += qemu_arguments(port, "1G") + "\n";
  out += "  testpmd (DPDK's virtio-user driver):\n    ";
  out += testpmd_command(port) + "\n";
  if (port.mtu() != 1500) {
    out += "  The guest's interface needs the port's MTU: ip link set dev DEVICE mtu " +
           std::to_string(port.mtu()) + "\n";
  }
  return out;
}

}  // namespace

std::string describe_port(const v1::Port& port) {
  const v1::VhostUserStatus& session = port.vhost_user_status();
  std::string out = line("Name", short_name(port.name()));
  out += line("Bridge", short_name(port.bridge()));
  out += line("Kind", kind_name(port) + " (the switch listens, the guest's VMM connects)");
  out += line("Socket", port.vhost_user().resolved_socket_path());
  out += line("State", state_name(port.state()) + " since " + time_text(port.state_since()));
  if (!port.state_reason().empty()) out += line("Reason", port.state_reason());
  out += line("MTU", std::to_string(port.mtu()));
  out += line("Queue pairs", std::to_string(port.queue_pairs()));
  out += name_lines("Features negotiated", session.negotiated_features());
  out += name_lines("Features offered", session.offered_features());
  out += name_lines("Protocol features", session.protocol_features());
  out += line("Guest memory", session.memory_regions() == 0
                                  ? "none mapped"
                                  : size_text(session.memory_bytes()) + " in " +
                                        plural(session.memory_regions(), "region"));
  out += line("Connections", std::to_string(session.connections()) + ", of which " +
                                 std::to_string(session.protocol_violations()) +
                                 " ended for breaking the protocol");
  out += "Queues:\n" + queue_table(port);
  out += "Counters:\n" + counter_table(port);
  out += "Drops:\n" + drop_table(port);
  return out + attach_text(port);
}

std::string describe_bridge(const v1::Bridge& bridge, const std::vector<v1::Port>& ports) {
  std::vector<v1::Port> attached;
  for (const v1::Port& port : ports) {
    if (port.bridge() == bridge.name()) attached.push_back(port);
  }
  std::string out = line("Name", short_name(bridge.name()));
  out += line("Ports", std::to_string(bridge.port_count()));
  out += line("MAC addresses", std::to_string(bridge.fdb_entry_count()));
  if (!attached.empty()) out.append("\n").append(port_table(attached, false, true));
  return out;
}

}  // namespace vswitch::ctl
