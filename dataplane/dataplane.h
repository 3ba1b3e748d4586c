// The data plane as the control plane sees it: start it, give it bridges and ports, read its state.
//
// Thread model: one `Dataplane` owns the vhost-user loop thread and the workers. Every method may
// be called from any thread. Changes are asynchronous: the callback runs on the vhost-user loop,
// must not block, and is called exactly once (not at all once the destructor has begun). Reads ask
// the loop and wait no longer than the deadline (DEADLINE_EXCEEDED); they never touch a worker.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dataplane/frame/drop_reason.h"

namespace vswitch::dataplane {

enum class HugepageMode { kAuto, kOn, kOff };

struct Options {
  // CPUs the workers are pinned to, one worker each. Empty: `worker_count` CPUs are chosen from the
  // process's affinity mask, highest number first (the control threads stay on the others).
  std::vector<unsigned> worker_cpus;
  unsigned worker_count = 1;
  // Memory for the switch's own tables and buffers, in bytes.
  std::uint64_t memory_bytes = 64ull << 20;
  HugepageMode hugepages = HugepageMode::kAuto;
};

inline constexpr std::uint32_t kMinMtu = 68;     // RFC 791
inline constexpr std::uint32_t kMaxMtu = 65521;  // frame of 65535 bytes
inline constexpr std::uint32_t kDefaultMtu = 1500;
inline constexpr std::size_t kMaxSocketPathLength = 107;  // sockaddr_un without its final NUL
inline constexpr std::uint32_t kMaxQueuePairs = 16;       // of a port
inline constexpr std::size_t kMaxBridges = 1024;
inline constexpr std::size_t kMaxPorts = 4096;

struct BridgeConfig {
  std::string id;
};

// A vhost-user port on whose socket we listen; the guest's VMM connects.
struct VhostUserServerConfig {
  std::string socket_path;  // absolute, at most kMaxSocketPathLength bytes
};

using PortKind = std::variant<VhostUserServerConfig>;

struct PortConfig {
  std::string id;
  std::string bridge;
  std::uint32_t mtu = kDefaultMtu;  // bytes of L3 payload, without Ethernet header and VLAN tags
  std::uint32_t queue_pairs = 1;    // 1 to kMaxQueuePairs: the most that a guest may use
  PortKind kind;
};

enum class PortState {
  kListening,    // the socket is there, nobody is connected
  kNegotiating,  // a front-end is connected, its rings do not run yet
  kUp,           // both rings of the first queue pair run
  kQuarantined,  // a ring broke its rules or its memory vanished; waits for re-initialisation
  kFailed,       // the port cannot work; state_reason says why; retried in the background
};
std::string_view port_state_name(PortState state);  // "Listening", ...

// A frame read from a guest counts once as received: as a packet, or as dropped for one reason. For
// each output it is meant for it then counts once as transmitted: as a packet, or as dropped.
struct DirectionCounters {
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;  // Ethernet frame bytes, without FCS and virtio-net header
  std::array<std::uint64_t, kDropReasonCount> dropped{};
  std::uint64_t dropped_total() const;
};

// One virtqueue, named from the guest's side as the specification does: even indices are the
// guest's receive queues (we write), odd ones its transmit queues (we read).
struct QueueStatus {
  std::uint32_t index = 0;
  std::uint32_t size = 0;  // descriptors; 0 until the front-end has set it
  bool enabled = false;    // by VHOST_USER_SET_VRING_ENABLE or implicitly
  bool running = false;    // polled or written by a worker
  bool quarantined = false;
  std::uint32_t available = 0;  // descriptor heads offered by the guest and not taken yet
  std::uint64_t packets = 0;    // frames read from it or written to it since the port exists
  std::uint64_t notifications_sent = 0;
  std::uint64_t notifications_suppressed = 0;
  std::uint64_t notifications_full = 0;  // the event counter was full: the guest is told anyway
  int worker = -1;                       // worker that polls a guest transmit queue; -1: none
};

struct PortStatus {
  PortConfig config;
  PortState state = PortState::kListening;
  std::string state_reason;  // one sentence; empty where the state says all
  absl::Time state_since;
  DirectionCounters receive;              // into the switch
  DirectionCounters transmit;             // out of the switch
  std::uint64_t offered_features = 0;     // virtio feature bits
  std::uint64_t negotiated_features = 0;  // 0 while no front-end has set them
  std::uint64_t protocol_features = 0;    // vhost-user protocol feature bits in use
  std::uint64_t memory_regions = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t connections = 0;          // accepted since the port exists
  std::uint64_t protocol_violations = 0;  // connections ended for breaking the protocol
  std::vector<QueueStatus> queues;
};

struct FdbEntry {
  std::string bridge;
  std::uint16_t vlan = 0;
  std::array<std::uint8_t, 6> mac{};
  std::string port;
  absl::Duration age;  // since it was last seen as a source
};

struct BridgeStatus {
  BridgeConfig config;
  std::uint64_t ports = 0;
  std::uint64_t fdb_entries = 0;
};

struct WorkerStatus {
  unsigned index = 0;
  unsigned cpu = 0;
  int numa_node = 0;
  std::uint64_t queues = 0;        // guest transmit queues it polls
  std::uint64_t polls = 0;         // rounds over all its queues
  std::uint64_t packets = 0;       // frames read from guests
  std::uint64_t bursts = 0;        // polls of a queue that found frames
  std::uint64_t busy_cycles = 0;   // TSC cycles spent on frames: a queue poll that found some
  std::uint64_t total_cycles = 0;  // TSC cycles since the worker started
};

struct SystemStatus {
  std::string memory_mode;  // "hugepages" or "ordinary pages"
  std::uint64_t memory_bytes = 0;
  std::uint64_t tsc_hz = 0;  // converts the cycle counts above
  unsigned workers = 0;
};

class Dataplane {
 public:
  using Done = std::function<void(absl::Status)>;

  // Initialises the EAL (once per process), the workers and the vhost-user loop. Blocks until they
  // run. INVALID_ARGUMENT for an unusable CPU, RESOURCE_EXHAUSTED for too little memory; the
  // message is one sentence for the operator. Afterwards the calling thread, and the threads it
  // makes from then on, stay off the workers' CPUs where the process has others.
  static absl::StatusOr<std::unique_ptr<Dataplane>> start(const Options& options);

  // Closes every port (sockets are removed) and stops all threads.
  virtual ~Dataplane() = default;

  // The caller has checked ids and references (the control plane owns desired state); the data
  // plane reports what only the machine can know.
  virtual void create_bridge(BridgeConfig config, Done done) = 0;
  // FAILED_PRECONDITION while ports are attached.
  virtual void delete_bridge(std::string id, Done done) = 0;
  // ALREADY_EXISTS: somebody listens on the path. FAILED_PRECONDITION: something that is no socket
  // is in its place (left untouched). RESOURCE_EXHAUSTED: out of memory, fds or port numbers.
  // A stale socket is replaced. Done is called when the socket listens.
  virtual void create_port(PortConfig config, Done done) = 0;
  // Like create_port, but where the socket cannot listen the port is kept as kFailed, with the
  // reason, and tried again every second. For ports that are known from the store.
  virtual void restore_port(PortConfig config, Done done) = 0;
  // Done is called when no worker uses the port any more, its memory is unmapped and its socket
  // is gone.
  virtual void delete_port(std::string id, Done done) = 0;

  virtual absl::StatusOr<std::vector<BridgeStatus>> bridges(absl::Time deadline) = 0;
  virtual absl::StatusOr<std::vector<PortStatus>> ports(absl::Time deadline) = 0;
  virtual absl::StatusOr<std::vector<FdbEntry>> fdb(absl::Time deadline) = 0;
  virtual absl::StatusOr<std::vector<WorkerStatus>> workers(absl::Time deadline) = 0;
  virtual SystemStatus system() const = 0;
};

}  // namespace vswitch::dataplane
