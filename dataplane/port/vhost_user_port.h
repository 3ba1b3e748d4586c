// A vhost-user port: a listening socket, at most one front-end, and its rings in service.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataplane/os/unix_listener.h"
#include "dataplane/port/port.h"
#include "dataplane/vhost_user/backend_session.h"

namespace vswitch::dataplane {

class VhostUserPort : public Port, private vhost_user::BackendSession::Delegate {
 public:
  VhostUserPort(PortConfig config, PortPlace place, PortServices services);
  // Only after shut_down() has called back, or when the workers have stopped.
  ~VhostUserPort() override;

  // Starts to listen; see UnixListener::listen for errors. Where `keep_trying`, an error makes the
  // port kFailed, and it is tried again every second.
  absl::Status listen(bool keep_trying);

  const PortConfig& config() const override { return config_; }
  const PortPlace& place() const override { return place_; }
  void contribute(forwarding::Topology& topology) const override;
  PortStatus status() const override;
  void tick() override;
  void check_health() override;
  void shut_down(std::function<void()> done) override;

 private:
  // Seconds that a peer may take to finish a message it has begun.
  static constexpr int kMessageSeconds = 5;

  // A vring in service, or on its way out of it.
  struct Ring {
    std::unique_ptr<forwarding::PortQueue> queue;
    bool attached = false;  // part of new snapshots
    std::string trouble;    // why it is quarantined, or cannot run though it is started
    bool quarantined = false;
  };

  // BackendSession::Delegate
  void quiesce(std::uint64_t vring_mask, std::function<void()> then) override;
  void rings_changed() override;
  void watch(bool readable, bool writable) override;
  void ended(const absl::Status& why) override;

  void accept_connections();
  void watch_listener(bool on);
  void end_session();
  std::uint64_t all_rings() const { return (std::uint64_t{1} << rings_.size()) - 1; }
  // [worker], of one ring.
  QueueCounters* counters(unsigned ring) const {
    return counters_.get() + std::size_t{ring} * services_.workers;
  }
  DirectionCounters direction(unsigned first_ring) const;
  unsigned worker_of(unsigned ring) const { return (place_.worker + ring / 2) % services_.workers; }
  bool start_ring(unsigned index);
  std::optional<forwarding::PortQueue::Engine> make_engine(unsigned index, std::string& trouble);
  void quarantine(std::uint64_t vring_mask, const std::string& why);
  void update_state();
  std::string missing_for_up() const;
  QueueStatus queue_status(unsigned index) const;

  PortConfig config_;
  const VhostUserServerConfig& kind_;
  PortPlace place_;
  PortServices services_;
  // [ring][worker]. What concerns the port and none of its rings counts with the first pair.
  std::unique_ptr<QueueCounters[]> counters_;

  std::optional<UnixListener> listener_;
  bool listener_watched_ = false;
  bool accept_later_ = false;  // the listener rests until the next tick
  std::string listen_error_;
  std::shared_ptr<vhost_user::BackendSession> session_;
  bool session_watched_ = false;
  int owed_seconds_ = 0;             // ticks that found the peer inside the same message
  std::uint64_t last_messages_ = 0;  // BackendSession::messages() at the last tick
  bool shutting_down_ = false;
  std::vector<Ring> rings_;  // two a queue pair, as the specification numbers them
  unsigned retiring_ = 0;    // quiesce() calls whose grace period is not over

  PortState state_ = PortState::kListening;
  absl::Time state_since_;
  std::string last_ending_;  // why the previous connection ended, if not by the front-end's wish
  std::uint64_t connections_ = 0;
  std::uint64_t violations_ = 0;
};

}  // namespace vswitch::dataplane
