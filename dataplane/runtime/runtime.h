// The running data plane: the vhost-user loop with all bridges and ports, and the workers.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/dataplane.h"
#include "dataplane/forwarding/fdb.h"
#include "dataplane/forwarding/topology_publisher.h"
#include "dataplane/forwarding/worker.h"
#include "dataplane/os/event_loop.h"
#include "dataplane/port/port.h"
#include "dataplane/runtime/eal.h"

namespace vswitch::dataplane {

class Runtime : public Dataplane {
 public:
  static absl::StatusOr<std::unique_ptr<Runtime>> create(const Options& options);
  ~Runtime() override;

  void create_bridge(BridgeConfig config, Done done) override;
  void delete_bridge(std::string id, Done done) override;
  void create_port(PortConfig config, Done done) override;
  void restore_port(PortConfig config, Done done) override;
  void delete_port(std::string id, Done done) override;

  absl::StatusOr<std::vector<BridgeStatus>> bridges(absl::Time deadline) override;
  absl::StatusOr<std::vector<PortStatus>> ports(absl::Time deadline) override;
  absl::StatusOr<std::vector<FdbEntry>> fdb(absl::Time deadline) override;
  absl::StatusOr<std::vector<WorkerStatus>> workers(absl::Time deadline) override;
  SystemStatus system() const override { return system_; }

 private:
  struct Bridge {
    BridgeConfig config;
    std::uint16_t number = 0;  // in the topology
    std::uint64_t ports = 0;
    std::unique_ptr<forwarding::Fdb> fdb;
  };
  struct OutputSlot {
    Port* port = nullptr;  // nullptr: free
    bool in_use = false;   // true until the last snapshot with the port is gone
    std::uint16_t generation = 0;
  };

  Runtime() = default;
  absl::Status start_loop();
  absl::Status start_workers(const std::vector<unsigned>& cpus);
  std::unique_ptr<const forwarding::Topology> build_topology() const;
  void tick();

  // On the loop.
  absl::Status add_bridge(BridgeConfig config);
  void remove_bridge(const std::string& id, const Done& done);
  absl::Status add_port(PortConfig config, bool keep_trying);
  void remove_port(const std::string& id, const Done& done);
  absl::StatusOr<std::uint16_t> allocate_output();
  unsigned least_loaded_worker() const;

  // Runs `read` on the loop and waits for its result, no longer than `deadline`.
  template <typename T>
  absl::StatusOr<T> ask(absl::Time deadline, std::function<T()> read);

  SystemStatus system_;
  std::vector<unsigned> control_cpus_;
  std::atomic<std::uint32_t> now_seconds_{0};
  std::unique_ptr<forwarding::Published> published_;
  std::unique_ptr<EventLoop> loop_;
  UniqueFd broken_event_;
  std::unique_ptr<forwarding::TopologyPublisher> publisher_;
  std::map<std::string, Bridge> bridges_;
  std::vector<std::string> bridge_numbers_;  // id by number; empty: free
  std::map<std::string, std::unique_ptr<Port>> ports_;
  std::vector<OutputSlot> outputs_;
  std::vector<std::unique_ptr<forwarding::Worker>> workers_;
  std::thread loop_thread_;
};

}  // namespace vswitch::dataplane
