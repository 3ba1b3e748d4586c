// Keeps desired state, on disk and in the data plane, and answers what is.
//
// One control loop thread owns desired state. A change is a chain of continuations on it: nobody
// blocks it on the data plane, whose callbacks post back. While a change is under way its ids,
// socket path and bridge are marked busy; another change that needs one of them waits its turn, so
// that every answer is about a settled state. Changes that are ready at the same time share one
// write to disk.
//
//   create: data plane, then disk, then OK.  If the disk fails, the data plane is rolled back.
//   delete: disk, then data plane, then OK.  If the disk fails, nothing has changed.
//
// After a crash the disk is what counts: an acknowledged port is there again, one that was never
// acknowledged may or may not be.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "control/control_loop.h"
#include "control/store.h"
#include "control/types.h"
#include "dataplane/dataplane.h"

namespace vswitch::control {

struct BridgeView {
  BridgeSpec spec;
  dataplane::BridgeStatus status;
};

struct PortView {
  PortSpec spec;
  dataplane::PortStatus status;
};

// All methods are thread-safe. Those with a deadline block the caller, never the control loop, and
// fail with DEADLINE_EXCEEDED when it passes; a change that has begun is completed all the same.
// Errors carry a reason (error.h); the public ones are documented with the API.
class Controller {
 public:
  using Done = std::function<void(absl::Status)>;

  // Both must outlive the controller's stop().
  Controller(dataplane::Dataplane& dataplane, Store& store, std::string run_dir);
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // Gives the stored state to the data plane. Call once; `done` runs on the control loop, with OK
  // when the controller has become ready. Until then every other method answers UNAVAILABLE with
  // SWITCH_STARTING.
  void restore(DesiredState state, Done done);

  // Answers everybody who waits with UNAVAILABLE, SWITCH_STOPPING, and ends the control loop.
  void stop();

  // OK, or the error that callers get because of starting or stopping.
  absl::Status check_ready() const;

  absl::Status create_bridge(const BridgeSpec& bridge, absl::Time deadline);
  absl::Status delete_bridge(const std::string& id, absl::Time deadline);
  absl::Status create_port(const PortSpec& port, absl::Time deadline);
  absl::Status delete_port(const std::string& id, absl::Time deadline);

  // In the order of ids. What exists for users: acknowledged, and in the data plane.
  absl::StatusOr<std::vector<BridgeView>> bridges(absl::Time deadline);
  absl::StatusOr<std::vector<PortView>> ports(absl::Time deadline);
  // BRIDGE_NOT_FOUND, PORT_NOT_FOUND.
  absl::StatusOr<BridgeView> bridge(const std::string& id, absl::Time deadline);
  absl::StatusOr<PortView> port(const std::string& id, absl::Time deadline);
  // In the order of bridge, VLAN and address. An empty id means all bridges.
  absl::StatusOr<std::vector<dataplane::FdbEntry>> fdb(const std::string& bridge,
                                                       absl::Time deadline);
  absl::StatusOr<std::vector<dataplane::WorkerStatus>> workers(absl::Time deadline);
  dataplane::SystemStatus system() const { return dataplane_.system(); }

  const std::string& run_dir() const { return run_dir_; }
  const std::string& state_dir() const { return store_.directory(); }

 private:
  // Where a caller waits and is answered, once.
  struct Call;
  using Reply = std::shared_ptr<Call>;

  enum class Phase { kStarting, kReady, kStopping };

  // A change of desired state that waits for the next write to disk.
  struct Commit {
    std::function<void(DesiredState&)> apply;
    Done done;
  };

  // What changes under way hold. A port holds its bridge too: as long as one does, the bridge
  // stays.
  struct Busy {
    std::set<std::string> bridges;
    std::set<std::string> ports;
    std::set<std::string> paths;
    std::multiset<std::string> bridge_users;
  };

  // Runs `begin` on the control loop and waits for its answer.
  absl::Status run(absl::Time deadline, std::function<void(Reply)> begin);
  static void answer(const Reply& reply, absl::Status status);

  // The rest runs on the control loop.
  bool expired(const Reply& reply) const;
  void begin_create_bridge(const BridgeSpec& bridge, const Reply& reply);
  void begin_delete_bridge(const std::string& id, const Reply& reply);
  void begin_create_port(const PortSpec& port, const std::string& path, const Reply& reply);
  void begin_delete_port(const std::string& id, const Reply& reply);
  void port_created(const PortSpec& port, const std::string& path, const Reply& reply);
  void hold_port(const std::string& id, const std::string& path, const std::string& bridge);
  void release_port(const std::string& id, const std::string& path, const std::string& bridge);
  void release_bridge(const std::string& id);
  // Keeps the task until a change has ended, then runs it again.
  void park(ControlLoop::Task task);
  void unpark();
  void commit(std::function<void(DesiredState&)> apply, Done done);
  void flush();
  void restore_ports(std::shared_ptr<Done> done);
  void finish_restore(const absl::Status& status, const Done& done);
  // Wraps a continuation so that the data plane's thread only posts it.
  dataplane::Dataplane::Done on_loop(Done done);
  dataplane::PortConfig port_config(const PortSpec& port) const;

  std::shared_ptr<const DesiredState> desired() const;
  void set_desired(std::shared_ptr<const DesiredState> state);

  dataplane::Dataplane& dataplane_;
  Store& store_;
  const std::string run_dir_;

  mutable std::mutex mutex_;
  Phase phase_ = Phase::kStarting;               // guarded by mutex_
  std::shared_ptr<const DesiredState> desired_;  // guarded by mutex_, written by the control loop
  std::set<Reply> waiting_;                      // guarded by mutex_

  // Of the control loop alone.
  Busy busy_;
  std::map<std::string, std::string> path_owners_;  // resolved socket path to port id
  std::vector<ControlLoop::Task> parked_;
  std::vector<Commit> commits_;

  // Shared with the data plane's callbacks, which may come after stop().
  std::shared_ptr<ControlLoop> loop_;
};

}  // namespace vswitch::control
