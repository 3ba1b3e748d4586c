#include "cli/vswitchctl/commands.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/vswitchctl/client.h"
#include "cli/vswitchctl/describe.h"
#include "cli/vswitchctl/structured.h"
#include "cli/vswitchctl/tables.h"

namespace vswitch::ctl {
namespace {

using Messages = std::vector<const google::protobuf::Message*>;

std::string name_of(const v1::Bridge& bridge) { return short_name(bridge.name()); }
std::string name_of(const v1::Port& port) { return short_name(port.name()); }
std::string name_of(const v1::FdbEntry& entry) { return entry.mac_address(); }
std::string name_of(const v1::Worker& worker) { return short_name(worker.name()); }
std::string name_of(const v1::SystemInfo&) { return "system"; }

// What a list looks like in every format but the tables. `is_single` prints the one item itself.
template <typename Item>
std::string render_plain(const std::vector<Item>& items, const std::string& key, bool is_single,
                         Format format) {
  if (format == Format::kName) {
    std::string out;
    for (const Item& item : items) out += name_of(item) + "\n";
    return out;
  }
  Messages messages;
  for (const Item& item : items) messages.push_back(&item);
  const std::string json = is_single ? to_json(*messages.front()) : to_json(key, messages);
  return format == Format::kYaml ? json_to_yaml(json) : json;
}

bool is_table(Format format) {
  return format == Format::kDefault || format == Format::kTable || format == Format::kWide;
}

// A list of one for `get NOUN NAME`, so that both are printed alike.
template <typename Item>
absl::StatusOr<std::vector<Item>> as_list(absl::StatusOr<Item> item) {
  if (!item.ok()) return item.status();
  std::vector<Item> list;
  list.push_back(*std::move(item));
  return list;
}

class Runner {
 public:
  explicit Runner(const CommandLine& command)
      : command_(command), client_(command.server, command.timeout) {}

  absl::StatusOr<std::string> run() {
    switch (command_.verb) {
      case Verb::kCreate:
        return create();
      case Verb::kGet:
        return get();
      case Verb::kDescribe:
        return describe();
      case Verb::kDelete:
        return remove();
    }
    return absl::InternalError("unknown verb");
  }

 private:
  bool has_name() const { return !command_.name.empty(); }
  bool is_wide() const { return command_.format == Format::kWide; }

  absl::StatusOr<std::string> create() {
    if (command_.noun == Noun::kBridge) {
      const auto bridge = client_.create_bridge(command_.name);
      if (!bridge.ok()) return bridge.status();
      return created(*bridge, "bridge");
    }
    v1::Port settings;
    settings.set_bridge(full_name("bridges", command_.bridge));
    settings.set_mtu(command_.mtu);
    settings.set_queue_pairs(command_.queue_pairs);
    settings.mutable_vhost_user()->set_socket_path(command_.vhost_user);
    const auto port = client_.create_port(command_.name, settings);
    if (!port.ok()) return port.status();
    return created(*port, "port");
  }

  template <typename Item>
  std::string created(const Item& item, const std::string& noun) const {
    if (is_table(command_.format)) return noun + " \"" + name_of(item) + "\" created\n";
    return render_plain(std::vector<Item>{item}, noun, true, command_.format);
  }

  absl::StatusOr<std::string> remove() {
    const bool is_bridge = command_.noun == Noun::kBridge;
    const absl::Status status =
        is_bridge ? client_.delete_bridge(command_.name) : client_.delete_port(command_.name);
    if (!status.ok()) return status;
    const std::string name = short_name(command_.name);
    if (command_.format == Format::kName) return name + "\n";
    // The API's answer to a delete is empty.
    if (command_.format == Format::kJson || command_.format == Format::kYaml) return "{}\n";
    return std::string(is_bridge ? "bridge" : "port") + " \"" + name + "\" deleted\n";
  }

  absl::StatusOr<std::string> get() {
    const bool headers = command_.has_headers;
    switch (command_.noun) {
      case Noun::kBridge:
        return show("bridges", has_name(),
                    has_name() ? as_list(client_.bridge(command_.name)) : client_.bridges(),
                    [&](const auto& bridges) { return bridge_table(bridges, headers); });
      case Noun::kPort:
        return show("ports", has_name(),
                    has_name() ? as_list(client_.port(command_.name)) : client_.ports(),
                    [&](const auto& ports) { return port_table(ports, is_wide(), headers); });
      case Noun::kFdb:
        return show("fdbEntries", false, client_.fdb(command_.name),
                    [&](const auto& entries) { return fdb_table(entries, headers); });
      case Noun::kWorker:
        return show("workers", has_name(), workers(),
                    [&](const auto& workers) { return worker_table(workers, is_wide(), headers); });
      case Noun::kSystem:
        return show("system", true, as_list(client_.system()),
                    [&](const auto& systems) { return system_table(systems.front(), headers); });
    }
    return absl::InternalError("unknown noun");
  }

  absl::StatusOr<std::vector<v1::Worker>> workers() {
    absl::StatusOr<std::vector<v1::Worker>> all = client_.workers();
    if (!all.ok() || !has_name()) return all;
    const std::string wanted = full_name("workers", command_.name);
    for (const v1::Worker& worker : *all) {
      if (worker.name() == wanted) return std::vector<v1::Worker>{worker};
    }
    return absl::NotFoundError("no such worker \"" + command_.name + "\"; there are " +
                               std::to_string(all->size()) + ", numbered from 0");
  }

  template <typename Item, typename MakeTable>
  absl::StatusOr<std::string> show(const std::string& key, bool is_single,
                                   const absl::StatusOr<std::vector<Item>>& items,
                                   MakeTable make_table) const {
    if (!items.ok()) return items.status();
    if (is_table(command_.format)) return make_table(*items);
    return render_plain(*items, key, is_single, command_.format);
  }

  absl::StatusOr<std::string> describe() {
    if (!is_table(command_.format)) return get();
    if (command_.noun == Noun::kPort) {
      const auto port = client_.port(command_.name);
      if (!port.ok()) return port.status();
      return describe_port(*port);
    }
    const auto bridge = client_.bridge(command_.name);
    if (!bridge.ok()) return bridge.status();
    const auto ports = client_.ports();
    if (!ports.ok()) return ports.status();
    return describe_bridge(*bridge, *ports);
  }

  const CommandLine& command_;
  Client client_;
};

}  // namespace

int run_command(const CommandLine& command) {
  const absl::StatusOr<std::string> output = Runner(command).run();
  if (!output.ok()) {
    std::fprintf(stderr, "vswitchctl: %s\n", std::string(output.status().message()).c_str());
    return output.status().code() == absl::StatusCode::kNotFound ? kExitNotFound : kExitFailed;
  }
  if (std::fwrite(output->data(), 1, output->size(), stdout) != output->size() ||
      std::fflush(stdout) != 0) {
    std::fprintf(stderr, "vswitchctl: cannot write the output\n");
    return kExitFailed;
  }
  return kExitOk;
}

}  // namespace vswitch::ctl
