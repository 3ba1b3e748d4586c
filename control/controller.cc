#include "control/controller.h"

#include <algorithm>
#include <filesystem>
#include <tuple>
#include <utility>

#include "control/dataplane_error.h"
#include "control/error.h"
#include "control/validate.h"
#include "dataplane/os/log.h"

namespace vswitch::control {
namespace {

absl::Status deadline_error() {
  return make_error(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                    "the deadline passed before the change was done; "
                    "if it had begun it is completed, ask for the resource to see");
}

absl::Status stopping_error() {
  return make_error(absl::StatusCode::kUnavailable, "SWITCH_STOPPING", "vswitchd is stopping");
}

// "br0, br1": at most ten, for messages.
template <typename Range, typename Name>
std::string join(const Range& range, Name name) {
  constexpr int kShown = 10;
  std::string out;
  int count = 0;
  for (const auto& item : range) {
    if (count++ == kShown) return out + ", …";
    if (!out.empty()) out += ", ";
    out += name(item);
  }
  return out.empty() ? "none" : out;
}

template <typename Map>
absl::Status not_found(const std::string& what, const std::string& reason, const std::string& id,
                       const Map& existing) {
  return make_error(absl::StatusCode::kNotFound, reason,
                    "no such " + what + " \"" + id + "\"; there are: " +
                        join(existing, [](const auto& entry) { return entry.first; }),
                    {{what, id}});
}

absl::Status check_directory(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) return absl::OkStatus();
  return make_error(absl::StatusCode::kFailedPrecondition, "SOCKET_DIRECTORY_MISSING",
                    "the directory of socket " + path +
                        " does not exist: create it with mkdir -p " + directory.string(),
                    {{"directory", directory.string()}});
}

}  // namespace

struct Controller::Call {
  explicit Call(absl::Time when) : deadline(when) {}

  const absl::Time deadline;
  std::mutex mutex;
  std::condition_variable answered;
  bool has_result = false;  // guarded by mutex
  absl::Status result;      // guarded by mutex
};

Controller::Controller(dataplane::Dataplane& dataplane, Store& store, std::string run_dir)
    : dataplane_(dataplane),
      store_(store),
      run_dir_(std::move(run_dir)),
      desired_(std::make_shared<const DesiredState>()),
      loop_(std::make_shared<ControlLoop>([this] { flush(); })) {}

Controller::~Controller() { stop(); }

void Controller::stop() {
  std::set<Reply> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    phase_ = Phase::kStopping;
    waiting.swap(waiting_);
  }
  for (const Reply& reply : waiting) answer(reply, stopping_error());
  loop_->stop();
}

absl::Status Controller::check_ready() const {
  std::lock_guard<std::mutex> lock(mutex_);
  switch (phase_) {
    case Phase::kReady:
      return absl::OkStatus();
    case Phase::kStarting:
      return make_error(absl::StatusCode::kUnavailable, "SWITCH_STARTING",
                        "vswitchd is starting: its stored ports are not all restored yet, "
                        "try again");
    case Phase::kStopping:
      break;
  }
  return stopping_error();
}

std::shared_ptr<const DesiredState> Controller::desired() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return desired_;
}

void Controller::set_desired(std::shared_ptr<const DesiredState> state) {
  std::lock_guard<std::mutex> lock(mutex_);
  desired_ = std::move(state);
}

// Calls ------------------------------------------------------------------------------------------

void Controller::answer(const Reply& reply, absl::Status status) {
  {
    std::lock_guard<std::mutex> lock(reply->mutex);
    if (reply->has_result) return;
    reply->has_result = true;
    reply->result = std::move(status);
  }
  reply->answered.notify_one();
}

absl::Status Controller::run(absl::Time deadline, std::function<void(Reply)> begin) {
  const auto reply = std::make_shared<Call>(deadline);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ == Phase::kStopping) return stopping_error();
    waiting_.insert(reply);
  }
  loop_->post([reply, begin = std::move(begin)] { begin(reply); });
  absl::Status result;
  {
    const auto until = absl::ToChronoTime(std::min(deadline, absl::Now() + absl::Hours(24)));
    std::unique_lock<std::mutex> lock(reply->mutex);
    const bool in_time = reply->answered.wait_until(lock, until, [&] { return reply->has_result; });
    result = in_time ? reply->result : deadline_error();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(reply);
  return result;
}

bool Controller::expired(const Reply& reply) const {
  if (absl::Now() < reply->deadline) return false;
  answer(reply, deadline_error());
  return true;
}

dataplane::Dataplane::Done Controller::on_loop(Done done) {
  return [loop = loop_, done = std::move(done)](absl::Status status) {
    loop->post([done, status] { done(status); });
  };
}

void Controller::park(ControlLoop::Task task) { parked_.push_back(std::move(task)); }

void Controller::unpark() {
  for (ControlLoop::Task& task : std::exchange(parked_, {})) loop_->post(std::move(task));
}

// Writing to disk --------------------------------------------------------------------------------

void Controller::commit(std::function<void(DesiredState&)> apply, Done done) {
  commits_.push_back({std::move(apply), std::move(done)});
}

void Controller::flush() {
  if (commits_.empty()) return;
  const std::vector<Commit> commits = std::exchange(commits_, {});
  auto next = std::make_shared<DesiredState>(*desired());
  for (const Commit& commit : commits) commit.apply(*next);
  const absl::Status status = store_.save(*next);
  if (status.ok()) {
    set_desired(std::move(next));
  } else {
    log_error("control", message_of(status));
  }
  for (const Commit& commit : commits) commit.done(status);
}

// Bridges ----------------------------------------------------------------------------------------

absl::Status Controller::create_bridge(const BridgeSpec& bridge, absl::Time deadline) {
  if (absl::Status status = check_ready(); !status.ok()) return status;
  if (absl::Status status = validate_bridge(bridge); !status.ok()) return status;
  return run(deadline, [=, this](Reply reply) { begin_create_bridge(bridge, reply); });
}

void Controller::begin_create_bridge(const BridgeSpec& bridge, const Reply& reply) {
  if (expired(reply)) return;
  if (busy_.bridges.count(bridge.id) != 0) {
    return park([=, this] { begin_create_bridge(bridge, reply); });
  }
  const auto state = desired();
  if (state->bridges.count(bridge.id) != 0) {
    return answer(
        reply, make_error(absl::StatusCode::kAlreadyExists, "BRIDGE_ALREADY_EXISTS",
                          "bridge \"" + bridge.id + "\" already exists", {{"bridge", bridge.id}}));
  }
  if (state->bridges.size() + busy_.bridges.size() >= dataplane::kMaxBridges) {
    return answer(reply, make_error(absl::StatusCode::kResourceExhausted, "TOO_MANY_BRIDGES",
                                    "there are already " + std::to_string(dataplane::kMaxBridges) +
                                        " bridges, the most this switch can have"));
  }
  busy_.bridges.insert(bridge.id);
  dataplane_.create_bridge(
      {bridge.id}, on_loop([=, this](const absl::Status& created) {
        if (!created.ok()) {
          release_bridge(bridge.id);
          return answer(reply, dataplane_error(created, Operation::kCreateBridge, bridge.id));
        }
        commit([bridge](DesiredState& next) { next.bridges.emplace(bridge.id, bridge); },
               [=, this](const absl::Status& stored) {
                 if (stored.ok()) {
                   log_info("control", "bridge created bridge=", bridge.id);
                   release_bridge(bridge.id);
                   return answer(reply, stored);
                 }
                 dataplane_.delete_bridge(bridge.id, on_loop([=, this](const absl::Status&) {
                                            release_bridge(bridge.id);
                                            answer(reply, stored);
                                          }));
               });
      }));
}

absl::Status Controller::delete_bridge(const std::string& id, absl::Time deadline) {
  if (absl::Status status = check_ready(); !status.ok()) return status;
  return run(deadline, [=, this](Reply reply) { begin_delete_bridge(id, reply); });
}

void Controller::begin_delete_bridge(const std::string& id, const Reply& reply) {
  if (expired(reply)) return;
  if (busy_.bridges.count(id) != 0 || busy_.bridge_users.count(id) != 0) {
    return park([=, this] { begin_delete_bridge(id, reply); });
  }
  const auto state = desired();
  if (state->bridges.count(id) == 0) {
    return answer(reply, not_found("bridge", "BRIDGE_NOT_FOUND", id, state->bridges));
  }
  std::vector<std::string> ports;
  for (const auto& [port_id, port] : state->ports) {
    if (port.bridge == id) ports.push_back(port_id);
  }
  if (!ports.empty()) {
    const std::string names = join(ports, [](const std::string& name) { return name; });
    return answer(reply, make_error(absl::StatusCode::kFailedPrecondition, "BRIDGE_NOT_EMPTY",
                                    "bridge \"" + id + "\" has ports, delete them first: " + names,
                                    {{"bridge", id}, {"ports", names}}));
  }
  busy_.bridges.insert(id);
  commit([id](DesiredState& next) { next.bridges.erase(id); },
         [=, this](const absl::Status& stored) {
           if (!stored.ok()) {
             release_bridge(id);
             return answer(reply, stored);
           }
           dataplane_.delete_bridge(
               id, on_loop([=, this](const absl::Status& deleted) {
                 release_bridge(id);
                 if (deleted.ok()) log_info("control", "bridge deleted bridge=", id);
                 answer(reply, dataplane_error(deleted, Operation::kDeleteBridge, id));
               }));
         });
}

void Controller::release_bridge(const std::string& id) {
  busy_.bridges.erase(id);
  unpark();
}

// Ports ------------------------------------------------------------------------------------------

dataplane::PortConfig Controller::port_config(const PortSpec& port) const {
  dataplane::PortConfig config;
  config.id = port.id;
  config.bridge = port.bridge;
  config.mtu = port.mtu;
  config.queue_pairs = port.queue_pairs;
  const auto& vhost_user = std::get<VhostUserServerSpec>(port.kind);
  config.kind = dataplane::VhostUserServerConfig{
      resolve_socket_path(run_dir_, vhost_user.socket_path).value_or(vhost_user.socket_path)};
  return config;
}

absl::Status Controller::create_port(const PortSpec& port, absl::Time deadline) {
  if (absl::Status status = check_ready(); !status.ok()) return status;
  if (absl::Status status = validate_port(port, run_dir_); !status.ok()) return status;
  const std::string path =
      std::get<dataplane::VhostUserServerConfig>(port_config(port).kind).socket_path;
  return run(deadline, [=, this](Reply reply) { begin_create_port(port, path, reply); });
}

void Controller::begin_create_port(const PortSpec& port, const std::string& path,
                                   const Reply& reply) {
  if (expired(reply)) return;
  if (busy_.ports.count(port.id) != 0 || busy_.paths.count(path) != 0 ||
      busy_.bridges.count(port.bridge) != 0) {
    return park([=, this] { begin_create_port(port, path, reply); });
  }
  const auto state = desired();
  if (state->ports.count(port.id) != 0) {
    return answer(reply,
                  make_error(absl::StatusCode::kAlreadyExists, "PORT_ALREADY_EXISTS",
                             "port \"" + port.id + "\" already exists", {{"port", port.id}}));
  }
  if (state->bridges.count(port.bridge) == 0) {
    return answer(reply, not_found("bridge", "BRIDGE_NOT_FOUND", port.bridge, state->bridges));
  }
  if (const auto owner = path_owners_.find(path); owner != path_owners_.end()) {
    return answer(reply, make_error(absl::StatusCode::kAlreadyExists, "SOCKET_PATH_IN_USE",
                                    "port \"" + owner->second + "\" already uses socket " + path,
                                    {{"port", owner->second}, {"socket_path", path}}));
  }
  if (state->ports.size() + busy_.ports.size() >= dataplane::kMaxPorts) {
    return answer(reply, make_error(absl::StatusCode::kResourceExhausted, "TOO_MANY_PORTS",
                                    "there are already " + std::to_string(dataplane::kMaxPorts) +
                                        " ports, the most this switch can have"));
  }
  if (absl::Status status = check_directory(path); !status.ok()) return answer(reply, status);
  hold_port(port.id, path, port.bridge);
  dataplane_.create_port(port_config(port), on_loop([=, this](const absl::Status& created) {
                           if (created.ok()) return port_created(port, path, reply);
                           release_port(port.id, path, port.bridge);
                           answer(reply, dataplane_error(created, Operation::kCreatePort, path));
                         }));
}

void Controller::port_created(const PortSpec& port, const std::string& path, const Reply& reply) {
  commit([port](DesiredState& next) { next.ports.emplace(port.id, port); },
         [=, this](const absl::Status& stored) {
           if (stored.ok()) {
             log_info("control", "port created port=", port.id, " bridge=", port.bridge,
                      " mtu=", port.mtu, " queue_pairs=", port.queue_pairs, " socket=", path);
             path_owners_[path] = port.id;
             release_port(port.id, path, port.bridge);
             return answer(reply, stored);
           }
           dataplane_.delete_port(port.id, on_loop([=, this](const absl::Status&) {
                                    release_port(port.id, path, port.bridge);
                                    answer(reply, stored);
                                  }));
         });
}

absl::Status Controller::delete_port(const std::string& id, absl::Time deadline) {
  if (absl::Status status = check_ready(); !status.ok()) return status;
  return run(deadline, [=, this](Reply reply) { begin_delete_port(id, reply); });
}

void Controller::begin_delete_port(const std::string& id, const Reply& reply) {
  if (expired(reply)) return;
  if (busy_.ports.count(id) != 0) return park([=, this] { begin_delete_port(id, reply); });
  const auto state = desired();
  const auto found = state->ports.find(id);
  if (found == state->ports.end()) {
    return answer(reply, not_found("port", "PORT_NOT_FOUND", id, state->ports));
  }
  const std::string bridge = found->second.bridge;
  const std::string path =
      std::get<dataplane::VhostUserServerConfig>(port_config(found->second).kind).socket_path;
  hold_port(id, path, bridge);
  commit([id](DesiredState& next) { next.ports.erase(id); },
         [=, this](const absl::Status& stored) {
           if (!stored.ok()) {
             release_port(id, path, bridge);
             return answer(reply, stored);
           }
           path_owners_.erase(path);
           dataplane_.delete_port(id, on_loop([=, this](const absl::Status& deleted) {
                                    release_port(id, path, bridge);
                                    if (deleted.ok()) log_info("control", "port deleted port=", id);
                                    answer(reply,
                                           dataplane_error(deleted, Operation::kDeletePort, id));
                                  }));
         });
}

void Controller::hold_port(const std::string& id, const std::string& path,
                           const std::string& bridge) {
  busy_.ports.insert(id);
  busy_.paths.insert(path);
  busy_.bridge_users.insert(bridge);
}

void Controller::release_port(const std::string& id, const std::string& path,
                              const std::string& bridge) {
  busy_.ports.erase(id);
  busy_.paths.erase(path);
  busy_.bridge_users.erase(busy_.bridge_users.find(bridge));
  unpark();
}

// Restoring --------------------------------------------------------------------------------------

void Controller::restore(DesiredState state, Done done) {
  loop_->post([this, state = std::make_shared<const DesiredState>(std::move(state)),
               done = std::make_shared<Done>(std::move(done))] {
    set_desired(state);
    const auto left = std::make_shared<std::size_t>(state->bridges.size());
    const auto result = std::make_shared<absl::Status>();
    if (*left == 0) return restore_ports(done);
    for (const auto& [id, bridge] : state->bridges) {
      dataplane_.create_bridge({id}, on_loop([=, this](const absl::Status& created) {
                                 result->Update(created);
                                 if (--*left != 0) return;
                                 if (result->ok()) return restore_ports(done);
                                 finish_restore(*result, *done);
                               }));
    }
  });
}

void Controller::restore_ports(std::shared_ptr<Done> done) {
  const auto state = desired();
  const auto left = std::make_shared<std::size_t>(state->ports.size());
  const auto result = std::make_shared<absl::Status>();
  if (*left == 0) return finish_restore(absl::OkStatus(), *done);
  for (const auto& [id, port] : state->ports) {
    dataplane::PortConfig config = port_config(port);
    path_owners_[std::get<dataplane::VhostUserServerConfig>(config.kind).socket_path] = id;
    dataplane_.restore_port(std::move(config), on_loop([=, this](const absl::Status& restored) {
                              result->Update(restored);
                              if (--*left == 0) finish_restore(*result, *done);
                            }));
  }
}

void Controller::finish_restore(const absl::Status& status, const Done& done) {
  if (status.ok()) {
    const auto state = desired();
    log_info("control", "ready bridges=", state->bridges.size(), " ports=", state->ports.size());
    std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ == Phase::kStarting) phase_ = Phase::kReady;
  }
  done(status);
}

// Reading ----------------------------------------------------------------------------------------

// Desired state is read before the data plane: what is in both was there, acknowledged, all the
// time between. The other order would show a port that is being created as one without state.
absl::StatusOr<std::vector<BridgeView>> Controller::bridges(absl::Time deadline) {
  if (absl::Status status = check_ready(); !status.ok()) return status;
  const auto state = desired();
  absl::StatusOr<std::vector<dataplane::BridgeStatus>> all = dataplane_.bridges(deadline);
  if (!all.ok()) return dataplane_error(all.status(), Operation::kRead, "bridges");
  std::vector<BridgeView> views;
  for (dataplane::BridgeStatus& status : *all) {
    const auto spec = state->bridges.find(status.config.id);
    if (spec != state->bridges.end()) views.push_back({spec->second, std::move(status)});
  }
  std::sort(views.begin(), views.end(), [](const BridgeView& left, const BridgeView& right) {
    return left.spec.id < right.spec.id;
  });
  return views;
}

absl::StatusOr<std::vector<PortView>> Controller::ports(absl::Time deadline) {
  if (absl::Status status = check_ready(); !status.ok()) return status;
  const auto state = desired();
  absl::StatusOr<std::vector<dataplane::PortStatus>> all = dataplane_.ports(deadline);
  if (!all.ok()) return dataplane_error(all.status(), Operation::kRead, "ports");
  std::vector<PortView> views;
  for (dataplane::PortStatus& status : *all) {
    const auto spec = state->ports.find(status.config.id);
    if (spec != state->ports.end()) views.push_back({spec->second, std::move(status)});
  }
  std::sort(views.begin(), views.end(), [](const PortView& left, const PortView& right) {
    return left.spec.id < right.spec.id;
  });
  return views;
}

absl::StatusOr<BridgeView> Controller::bridge(const std::string& id, absl::Time deadline) {
  absl::StatusOr<std::vector<BridgeView>> all = bridges(deadline);
  if (!all.ok()) return all.status();
  for (BridgeView& view : *all) {
    if (view.spec.id == id) return std::move(view);
  }
  return not_found("bridge", "BRIDGE_NOT_FOUND", id, desired()->bridges);
}

absl::StatusOr<PortView> Controller::port(const std::string& id, absl::Time deadline) {
  absl::StatusOr<std::vector<PortView>> all = ports(deadline);
  if (!all.ok()) return all.status();
  for (PortView& view : *all) {
    if (view.spec.id == id) return std::move(view);
  }
  return not_found("port", "PORT_NOT_FOUND", id, desired()->ports);
}

absl::StatusOr<std::vector<dataplane::FdbEntry>> Controller::fdb(const std::string& bridge,
                                                                 absl::Time deadline) {
  if (absl::Status status = check_ready(); !status.ok()) return status;
  const auto state = desired();
  if (!bridge.empty() && state->bridges.count(bridge) == 0) {
    return not_found("bridge", "BRIDGE_NOT_FOUND", bridge, state->bridges);
  }
  absl::StatusOr<std::vector<dataplane::FdbEntry>> all = dataplane_.fdb(deadline);
  if (!all.ok()) return dataplane_error(all.status(), Operation::kRead, "the MAC table");
  std::vector<dataplane::FdbEntry> entries;
  for (dataplane::FdbEntry& entry : *all) {
    if (bridge.empty() || entry.bridge == bridge) entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const dataplane::FdbEntry& left, const dataplane::FdbEntry& right) {
              return std::tie(left.bridge, left.vlan, left.mac) <
                     std::tie(right.bridge, right.vlan, right.mac);
            });
  return entries;
}

absl::StatusOr<std::vector<dataplane::WorkerStatus>> Controller::workers(absl::Time deadline) {
  if (absl::Status status = check_ready(); !status.ok()) return status;
  absl::StatusOr<std::vector<dataplane::WorkerStatus>> all = dataplane_.workers(deadline);
  if (!all.ok()) return dataplane_error(all.status(), Operation::kRead, "workers");
  std::sort(all->begin(), all->end(),
            [](const auto& left, const auto& right) { return left.index < right.index; });
  return all;
}

}  // namespace vswitch::control
