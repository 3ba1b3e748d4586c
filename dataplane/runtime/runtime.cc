#include "dataplane/runtime/runtime.h"

#include <pthread.h>
#include <rte_cycles.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "dataplane/guest_memory/memory_fault.h"
#include "dataplane/os/eventfd.h"
#include "dataplane/port/vhost_user_port.h"

namespace vswitch::dataplane {
namespace {

constexpr std::uint32_t kMacAgingSeconds = 300;  // IEEE 802.1Q-2018, table 8-6: default
constexpr std::uint32_t kExpirySweepSeconds = 5;

}  // namespace

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::create(const Options& options) {
  const std::vector<unsigned> usable = usable_cpus();
  const absl::StatusOr<std::vector<unsigned>> cpus =
      choose_worker_cpus(usable, options.worker_cpus, options.worker_count);
  if (!cpus.ok()) return cpus.status();
  std::unique_ptr<Runtime> runtime(new Runtime);
  std::copy_if(
      usable.begin(), usable.end(), std::back_inserter(runtime->control_cpus_),
      [&](unsigned cpu) { return std::find(cpus->begin(), cpus->end(), cpu) == cpus->end(); });
  if (runtime->control_cpus_.empty()) runtime->control_cpus_ = usable;

  const absl::StatusOr<EalInfo> eal =
      start_eal(options.memory_bytes, options.hugepages, runtime->control_cpus_.front());
  if (!eal.ok()) return eal.status();
  if (absl::Status status = set_affinity(runtime->control_cpus_); !status.ok()) return status;
  // After the EAL, which has a SIGBUS handler of its own.
  if (absl::Status status = install_memory_fault_handler(); !status.ok()) return status;
  runtime->system_ = {.memory_mode = eal->hugepages ? "hugepages" : "ordinary pages",
                      .memory_bytes = eal->memory_bytes,
                      .tsc_hz = rte_get_tsc_hz(),
                      .workers = static_cast<unsigned>(cpus->size())};
  if (absl::Status status = runtime->start_loop(); !status.ok()) return status;
  if (absl::Status status = runtime->start_workers(*cpus); !status.ok()) return status;
  return runtime;
}

absl::Status Runtime::start_loop() {
  absl::StatusOr<std::unique_ptr<forwarding::Published>> published =
      forwarding::Published::create();
  if (!published.ok()) return published.status();
  published_ = *std::move(published);
  absl::StatusOr<std::unique_ptr<EventLoop>> loop = EventLoop::create();
  if (!loop.ok()) return loop.status();
  loop_ = *std::move(loop);
  broken_event_.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!broken_event_.valid()) return absl::ErrnoToStatus(errno, "cannot create an event");
  publisher_ = std::make_unique<forwarding::TopologyPublisher>(*published_,
                                                               [this] { return build_topology(); });

  for (const int event : {broken_event_.get(), memory_fault_event()}) {
    const absl::Status status = loop_->add(event, EPOLLIN, [this, event](std::uint32_t) {
      drain_eventfd(event);
      for (const auto& [id, port] : ports_) port->check_health();
    });
    if (!status.ok()) return status;
  }
  loop_->every_second([this] { tick(); });
  loop_->after_round([this] { return publisher_->advance(); });
  loop_thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "vhost-user");
    loop_->run();
  });
  return absl::OkStatus();
}

absl::Status Runtime::start_workers(const std::vector<unsigned>& cpus) {
  for (const unsigned cpu : cpus) {
    workers_.push_back(std::make_unique<forwarding::Worker>(static_cast<unsigned>(workers_.size()),
                                                            cpu, *published_, now_seconds_));
    if (absl::Status status = workers_.back()->start(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

Runtime::~Runtime() {
  if (loop_thread_.joinable()) {
    loop_->stop();
    loop_thread_.join();
  }
  workers_.clear();
  // Nobody uses a queue any more: ports may go without a grace period.
  ports_.clear();
  publisher_.reset();
  if (loop_ && memory_fault_event() >= 0) loop_->remove(memory_fault_event());
}

void Runtime::tick() {
  const std::uint32_t now = now_seconds_.load(std::memory_order_relaxed) + 1;
  now_seconds_.store(now, std::memory_order_relaxed);
  for (const auto& [id, port] : ports_) port->tick();
  if (now % kExpirySweepSeconds != 0) return;
  for (const auto& [id, bridge] : bridges_) {
    if (bridge.fdb->entries() != 0) bridge.fdb->expire(now, kMacAgingSeconds);
  }
}

std::unique_ptr<const forwarding::Topology> Runtime::build_topology() const {
  auto topology = std::make_unique<forwarding::Topology>();
  topology->outputs.resize(outputs_.size());
  topology->bridges.resize(bridge_numbers_.size());
  topology->workers.resize(system_.workers);
  for (const auto& [id, bridge] : bridges_) {
    topology->bridges[bridge.number].fdb = bridge.fdb.get();
  }
  for (const OutputSlot& slot : outputs_) {
    if (slot.port != nullptr) slot.port->contribute(*topology);
  }
  return topology;
}

absl::Status Runtime::add_bridge(BridgeConfig config) {
  if (bridges_.contains(config.id)) {
    return absl::AlreadyExistsError(absl::StrCat("bridge ", config.id, " exists"));
  }
  auto number = std::find(bridge_numbers_.begin(), bridge_numbers_.end(), "");
  if (number == bridge_numbers_.end()) {
    if (bridge_numbers_.size() == kMaxBridges) {
      return absl::ResourceExhaustedError(absl::StrCat("there are ", kMaxBridges, " bridges"));
    }
    number = bridge_numbers_.insert(number, "");
  }
  constexpr std::size_t kBytes = forwarding::Fdb::storage_bytes(forwarding::Fdb::kDefaultBuckets);
  forwarding::Fdb::Storage storage(eal_allocate(kBytes, workers_.front()->numa_node()), eal_free);
  if (!storage) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for the MAC table of bridge ",
                                                     config.id, " (", kBytes / 1024,
                                                     " KiB); start vswitchd with more --memory"));
  }
  *number = config.id;
  Bridge bridge;
  bridge.config = config;
  bridge.number = static_cast<std::uint16_t>(number - bridge_numbers_.begin());
  bridge.fdb = std::make_unique<forwarding::Fdb>(
      std::move(storage), forwarding::Fdb::kDefaultBuckets, forwarding::Fdb::kDefaultCapacity);
  bridges_.emplace(config.id, std::move(bridge));
  publisher_->request();
  return absl::OkStatus();
}

void Runtime::remove_bridge(const std::string& id, const Done& done) {
  const auto bridge = bridges_.find(id);
  if (bridge == bridges_.end()) {
    done(absl::NotFoundError(absl::StrCat("no such bridge ", id)));
    return;
  }
  if (bridge->second.ports != 0) {
    done(absl::FailedPreconditionError(
        absl::StrCat("bridge ", id, " has ", bridge->second.ports, " ports")));
    return;
  }
  // The table lives until no snapshot points to it; the number may be reused at once, as a new
  // bridge only appears in newer snapshots.
  auto last = std::make_shared<Bridge>(std::move(bridge->second));
  bridge_numbers_[last->number].clear();
  bridges_.erase(bridge);
  publisher_->request([last, done]() mutable {
    last.reset();
    done(absl::OkStatus());
  });
}

absl::StatusOr<std::uint16_t> Runtime::allocate_output() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i].in_use) return static_cast<std::uint16_t>(i);
  }
  if (outputs_.size() == kMaxPorts) {
    return absl::ResourceExhaustedError(absl::StrCat("there are ", kMaxPorts, " ports"));
  }
  outputs_.emplace_back();
  return static_cast<std::uint16_t>(outputs_.size() - 1);
}

unsigned Runtime::least_loaded_worker() const {
  std::vector<unsigned> load(system_.workers, 0);
  for (const auto& [id, port] : ports_) {
    for (std::uint32_t pair = 0; pair < port->config().queue_pairs; ++pair) {
      ++load[(port->place().worker + pair) % load.size()];
    }
  }
  return static_cast<unsigned>(std::min_element(load.begin(), load.end()) - load.begin());
}

absl::Status Runtime::add_port(PortConfig config, bool keep_trying) {
  const auto bridge = bridges_.find(config.bridge);
  if (bridge == bridges_.end()) {
    return absl::NotFoundError(absl::StrCat("no such bridge ", config.bridge));
  }
  if (ports_.contains(config.id)) {
    return absl::AlreadyExistsError(absl::StrCat("port ", config.id, " exists"));
  }
  const absl::StatusOr<std::uint16_t> output = allocate_output();
  if (!output.ok()) return output.status();
  OutputSlot& slot = outputs_[*output];
  const PortPlace place{.output = *output,
                        .generation = static_cast<std::uint16_t>(slot.generation + 1),
                        .bridge = bridge->second.number,
                        .worker = least_loaded_worker()};
  const std::string id = config.id;
  auto port = std::make_unique<VhostUserPort>(
      std::move(config), place,
      PortServices{*loop_, *publisher_, broken_event_.get(), system_.workers});
  const absl::Status status = port->listen(keep_trying);
  if (!status.ok() && !keep_trying) return status;
  slot = {.port = port.get(), .in_use = true, .generation = place.generation};
  ++bridge->second.ports;
  ports_.emplace(id, std::move(port));
  publisher_->request();
  return absl::OkStatus();
}

void Runtime::remove_port(const std::string& id, const Done& done) {
  const auto found = ports_.find(id);
  if (found == ports_.end()) {
    done(absl::NotFoundError(absl::StrCat("no such port ", id)));
    return;
  }
  std::shared_ptr<Port> port = std::move(found->second);
  ports_.erase(found);
  port->shut_down([this, port, done]() mutable {
    // Its rings are gone from all snapshots; now the port itself (its counters) leaves.
    outputs_[port->place().output].port = nullptr;
    publisher_->request([this, port, done]() mutable {
      const PortPlace place = port->place();
      const auto bridge = bridges_.find(port->config().bridge);
      if (bridge != bridges_.end()) {
        bridge->second.fdb->forget_output(place.output);
        --bridge->second.ports;
      }
      outputs_[place.output].in_use = false;
      port.reset();
      done(absl::OkStatus());
    });
  });
}

void Runtime::create_bridge(BridgeConfig config, Done done) {
  loop_->post(
      [this, config = std::move(config), done = std::move(done)] { done(add_bridge(config)); });
}

void Runtime::delete_bridge(std::string id, Done done) {
  loop_->post([this, id = std::move(id), done = std::move(done)] { remove_bridge(id, done); });
}

void Runtime::create_port(PortConfig config, Done done) {
  loop_->post([this, config = std::move(config), done = std::move(done)] {
    done(add_port(config, false));
  });
}

void Runtime::restore_port(PortConfig config, Done done) {
  loop_->post(
      [this, config = std::move(config), done = std::move(done)] { done(add_port(config, true)); });
}

void Runtime::delete_port(std::string id, Done done) {
  loop_->post([this, id = std::move(id), done = std::move(done)] { remove_port(id, done); });
}

template <typename T>
absl::StatusOr<T> Runtime::ask(absl::Time deadline, std::function<T()> read) {
  auto promise = std::make_shared<std::promise<T>>();
  std::future<T> result = promise->get_future();
  if (!loop_->post([promise, read = std::move(read)] { promise->set_value(read()); })) {
    return absl::UnavailableError("the switch is stopping");
  }
  if (result.wait_until(absl::ToChronoTime(deadline)) != std::future_status::ready) {
    return absl::DeadlineExceededError("the vhost-user loop did not answer in time");
  }
  return result.get();
}

absl::StatusOr<std::vector<BridgeStatus>> Runtime::bridges(absl::Time deadline) {
  return ask<std::vector<BridgeStatus>>(deadline, [this] {
    std::vector<BridgeStatus> list;
    for (const auto& [id, bridge] : bridges_) {
      list.push_back({bridge.config, bridge.ports, bridge.fdb->entries()});
    }
    return list;
  });
}

absl::StatusOr<std::vector<PortStatus>> Runtime::ports(absl::Time deadline) {
  return ask<std::vector<PortStatus>>(deadline, [this] {
    std::vector<PortStatus> list;
    for (const auto& [id, port] : ports_) list.push_back(port->status());
    return list;
  });
}

absl::StatusOr<std::vector<FdbEntry>> Runtime::fdb(absl::Time deadline) {
  return ask<std::vector<FdbEntry>>(deadline, [this] {
    std::vector<FdbEntry> list;
    const std::uint32_t now = now_seconds_.load(std::memory_order_relaxed);
    for (const auto& [bridge_id, bridge] : bridges_) {
      const std::string& id = bridge_id;  // clang 14 captures no structured bindings
      bridge.fdb->for_each(
          [&](forwarding::FdbKey key, forwarding::Location location, std::uint32_t seen) {
            const OutputSlot& slot = outputs_[location.output];
            if (slot.port == nullptr || slot.generation != location.generation) return;
            list.push_back({.bridge = id,
                            .vlan = static_cast<std::uint16_t>(key >> 48),
                            .mac = mac_bytes(key & 0xffffffffffff),
                            .port = slot.port->config().id,
                            .age = absl::Seconds(now > seen ? now - seen : 0)});
          });
    }
    return list;
  });
}

absl::StatusOr<std::vector<WorkerStatus>> Runtime::workers(absl::Time deadline) {
  return ask<std::vector<WorkerStatus>>(deadline, [this] {
    std::vector<WorkerStatus> list;
    for (const auto& worker : workers_) {
      const forwarding::WorkerCounters& counters = worker->counters();
      list.push_back(
          {.index = worker->index(),
           .cpu = worker->cpu(),
           .numa_node = worker->numa_node(),
           .polls = counters.polls.value(),
           .packets = counters.packets.value(),
           .bursts = counters.bursts.value(),
           .busy_cycles = counters.busy_cycles.value(),
           .total_cycles = rte_rdtsc() - counters.started.load(std::memory_order_relaxed)});
    }
    for (const auto& [id, port] : ports_) {
      for (const QueueStatus& queue : port->status().queues) {
        if (queue.worker >= 0) ++list[static_cast<std::size_t>(queue.worker)].queues;
      }
    }
    return list;
  });
}

absl::StatusOr<std::unique_ptr<Dataplane>> Dataplane::start(const Options& options) {
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::create(options);
  if (!runtime.ok()) return runtime.status();
  return *std::move(runtime);
}

std::string_view port_state_name(PortState state) {
  switch (state) {
    case PortState::kListening:
      return "Listening";
    case PortState::kNegotiating:
      return "Negotiating";
    case PortState::kUp:
      return "Up";
    case PortState::kQuarantined:
      return "Quarantined";
    case PortState::kFailed:
      return "Failed";
  }
  return "Unknown";
}

std::uint64_t DirectionCounters::dropped_total() const {
  std::uint64_t total = 0;
  for (const std::uint64_t count : dropped) total += count;
  return total;
}

}  // namespace vswitch::dataplane
