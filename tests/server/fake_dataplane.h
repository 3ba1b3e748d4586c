// A data plane for tests of what is above it: a loop thread that runs operations in order, real
// unix sockets, and no frames. Operations can be held back and made to fail.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/dataplane.h"
#include "dataplane/os/unique_fd.h"

namespace vswitch::testing {

class FakeDataplane final : public dataplane::Dataplane {
 public:
  FakeDataplane();
  ~FakeDataplane() override;

  // Operations that come from now on wait until release().
  void hold();
  void release();
  // The next operation of this name ("create_port", …) fails.
  void fail_next(const std::string& operation, absl::Status status);
  // Runs on the loop thread before each operation, which is given as "create_port web".
  void on_operation(std::function<void(const std::string&)> observer);
  // What was asked for so far, in order; with the held ones.
  std::vector<std::string> operations();
  // Changes what ports() says of a port.
  void set_status(const std::string& port, std::function<void(dataplane::PortStatus&)> change);
  void set_fdb(std::vector<dataplane::FdbEntry> entries);
  // Reads fail with DEADLINE_EXCEEDED.
  void set_reads_stuck(bool stuck);

  void create_bridge(dataplane::BridgeConfig config, Done done) override;
  void delete_bridge(std::string id, Done done) override;
  void create_port(dataplane::PortConfig config, Done done) override;
  void restore_port(dataplane::PortConfig config, Done done) override;
  void delete_port(std::string id, Done done) override;

  absl::StatusOr<std::vector<dataplane::BridgeStatus>> bridges(absl::Time deadline) override;
  absl::StatusOr<std::vector<dataplane::PortStatus>> ports(absl::Time deadline) override;
  absl::StatusOr<std::vector<dataplane::FdbEntry>> fdb(absl::Time deadline) override;
  absl::StatusOr<std::vector<dataplane::WorkerStatus>> workers(absl::Time deadline) override;
  dataplane::SystemStatus system() const override;

 private:
  struct Operation {
    std::string name;
    std::string subject;
    std::function<absl::Status()> act;
    Done done;
  };
  struct Port {
    dataplane::PortStatus status;
    UniqueFd socket;
    std::string path;
  };

  void post(Operation operation);
  void run();
  absl::Status listen(const dataplane::PortConfig& config);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Operation> queue_;
  std::vector<std::string> log_;
  std::map<std::string, absl::Status> failures_;
  std::function<void(const std::string&)> observer_;
  std::map<std::string, dataplane::BridgeConfig> bridges_;
  std::map<std::string, Port> ports_;
  std::vector<dataplane::FdbEntry> fdb_;
  bool held_ = false;
  bool stopping_ = false;
  bool reads_stuck_ = false;
  std::thread thread_;
};

}  // namespace vswitch::testing
