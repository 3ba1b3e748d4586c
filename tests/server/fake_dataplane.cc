#include "tests/server/fake_dataplane.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace vswitch::testing {
namespace {

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const std::string& path_of(const dataplane::PortConfig& config) {
  return std::get<dataplane::VhostUserServerConfig>(config.kind).socket_path;
}

}  // namespace

FakeDataplane::FakeDataplane() : thread_([this] { run(); }) {}

FakeDataplane::~FakeDataplane() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  for (auto& [id, port] : ports_) ::unlink(port.path.c_str());
}

void FakeDataplane::hold() {
  std::lock_guard<std::mutex> lock(mutex_);
  held_ = true;
}

void FakeDataplane::release() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = false;
  }
  wake_.notify_one();
}

void FakeDataplane::fail_next(const std::string& operation, absl::Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  failures_[operation] = std::move(status);
}

void FakeDataplane::on_operation(std::function<void(const std::string&)> observer) {
  std::lock_guard<std::mutex> lock(mutex_);
  observer_ = std::move(observer);
}

std::vector<std::string> FakeDataplane::operations() {
  std::lock_guard<std::mutex> lock(mutex_);
  return log_;
}

void FakeDataplane::set_status(const std::string& port,
                               std::function<void(dataplane::PortStatus&)> change) {
  std::lock_guard<std::mutex> lock(mutex_);
  change(ports_.at(port).status);
}

void FakeDataplane::set_fdb(std::vector<dataplane::FdbEntry> entries) {
  std::lock_guard<std::mutex> lock(mutex_);
  fdb_ = std::move(entries);
}

void FakeDataplane::set_reads_stuck(bool stuck) {
  std::lock_guard<std::mutex> lock(mutex_);
  reads_stuck_ = stuck;
}

void FakeDataplane::post(Operation operation) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    log_.push_back(operation.name + " " + operation.subject);
    queue_.push_back(std::move(operation));
  }
  wake_.notify_one();
}

void FakeDataplane::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || (!held_ && !queue_.empty()); });
    if (stopping_) return;
    Operation operation = std::move(queue_.front());
    queue_.pop_front();
    if (observer_) observer_(operation.name + " " + operation.subject);
    absl::Status status;
    if (const auto failure = failures_.find(operation.name); failure != failures_.end()) {
      status = failure->second;
      failures_.erase(failure);
    } else {
      status = operation.act();
    }
    lock.unlock();
    operation.done(status);
    lock.lock();
  }
}

absl::Status FakeDataplane::listen(const dataplane::PortConfig& config) {
  const std::string& path = path_of(config);
  const sockaddr_un address = address_of(path);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return absl::FailedPreconditionError("socket path " + path + " is taken by something else");
    }
    UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(probe.get(), generic, sizeof address) == 0) {
      return absl::AlreadyExistsError("another process listens on " + path);
    }
    ::unlink(path.c_str());
  }
  Port port;
  port.socket = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(port.socket.get(), generic, sizeof address) != 0 ||
      ::listen(port.socket.get(), 8) != 0) {
    return absl::InternalError("cannot listen on " + path);
  }
  port.path = path;
  port.status.config = config;
  port.status.state_since = absl::Now();
  ports_.emplace(config.id, std::move(port));
  return absl::OkStatus();
}

void FakeDataplane::create_bridge(dataplane::BridgeConfig config, Done done) {
  post({"create_bridge", config.id,
        [this, config] {
          bridges_.emplace(config.id, config);
          return absl::OkStatus();
        },
        std::move(done)});
}

void FakeDataplane::delete_bridge(std::string id, Done done) {
  post({"delete_bridge", id,
        [this, id] {
          bridges_.erase(id);
          return absl::OkStatus();
        },
        std::move(done)});
}

void FakeDataplane::create_port(dataplane::PortConfig config, Done done) {
  post({"create_port", config.id, [this, config] { return listen(config); }, std::move(done)});
}

void FakeDataplane::restore_port(dataplane::PortConfig config, Done done) {
  post({"restore_port", config.id,
        [this, config] {
          const absl::Status status = listen(config);
          if (status.ok()) return status;
          Port port;
          port.status.config = config;
          port.status.state = dataplane::PortState::kFailed;
          port.status.state_reason = std::string(status.message());
          port.status.state_since = absl::Now();
          ports_.emplace(config.id, std::move(port));
          return absl::OkStatus();
        },
        std::move(done)});
}

void FakeDataplane::delete_port(std::string id, Done done) {
  post({"delete_port", id,
        [this, id] {
          const auto port = ports_.find(id);
          if (port == ports_.end()) return absl::NotFoundError("no such port " + id);
          if (!port->second.path.empty()) ::unlink(port->second.path.c_str());
          ports_.erase(port);
          return absl::OkStatus();
        },
        std::move(done)});
}

absl::StatusOr<std::vector<dataplane::BridgeStatus>> FakeDataplane::bridges(absl::Time) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (reads_stuck_) return absl::DeadlineExceededError("stuck");
  std::vector<dataplane::BridgeStatus> out;
  for (const auto& [id, config] : bridges_) {
    dataplane::BridgeStatus status{config, 0, 0};
    for (const auto& [port_id, port] : ports_) {
      if (port.status.config.bridge == id) ++status.ports;
    }
    for (const auto& entry : fdb_) {
      if (entry.bridge == id) ++status.fdb_entries;
    }
    out.push_back(status);
  }
  return out;
}

absl::StatusOr<std::vector<dataplane::PortStatus>> FakeDataplane::ports(absl::Time) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (reads_stuck_) return absl::DeadlineExceededError("stuck");
  std::vector<dataplane::PortStatus> out;
  for (const auto& [id, port] : ports_) out.push_back(port.status);
  return out;
}

absl::StatusOr<std::vector<dataplane::FdbEntry>> FakeDataplane::fdb(absl::Time) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (reads_stuck_) return absl::DeadlineExceededError("stuck");
  return fdb_;
}

absl::StatusOr<std::vector<dataplane::WorkerStatus>> FakeDataplane::workers(absl::Time) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (reads_stuck_) return absl::DeadlineExceededError("stuck");
  dataplane::WorkerStatus worker;
  worker.cpu = 1;
  worker.queues = ports_.size();
  worker.polls = 1000;
  worker.packets = 100;
  worker.bursts = 10;
  worker.busy_cycles = 12'000;
  worker.total_cycles = 24'000;
  return std::vector<dataplane::WorkerStatus>{worker};
}

dataplane::SystemStatus FakeDataplane::system() const {
  return {"ordinary pages", 64ull << 20, 2'000'000'000, 1};
}

}  // namespace vswitch::testing
