// The front-end side of a vhost-user connection: the guest's half (virtio-user ports,
// vswitch-guest).
//
// A non-blocking state machine over MessageChannel. It negotiates, then hands over memory and
// vrings, later stops them. Everything it owns is the socket and a queue of messages still to be
// sent; memory and rings are the caller's. One thread. Source: QEMU's docs/interop/vhost-user.rst.
//
//   kNegotiating ──► kNegotiated ──start()──► kStarting ──► kRunning ──stop()──► kStopping
//                         ▲                                                         │
//                         └──────────────────────── (bases() known) ◄───────────────┘
//   any of them ──► kFailed: error() says why. The connection is of no more use.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dataplane/os/unique_fd.h"
#include "dataplane/vhost_user/message.h"
#include "dataplane/vhost_user/message_channel.h"

namespace vswitch::vhost_user {

struct FrontendOptions {
  // Virtio feature bits the driver can use. What is negotiated is what both sides have.
  std::uint64_t wanted_features = 0;
  // Bits without which the driver cannot work; a back-end that lacks one is refused.
  std::uint64_t required_features = 0;
  std::uint64_t wanted_protocol_features = kProtocolFeatures;
};

// One piece of shared memory. `fd` must stay open until the session runs.
struct SharedRegion {
  MemoryRegion region;
  int fd = -1;
};

// One vring. Addresses are the front-end's own ("user addresses"), inside a SharedRegion.
// The fds are eventfds and must stay open until the session runs.
struct VringSetup {
  std::uint32_t index = 0;
  std::uint32_t size = 0;
  // Where the back-end starts, as SET_VRING_BASE carries it. Split: the available index. Packed:
  // two positions (offset in 15 bits, wrap counter above), available in the low half and used in
  // the high one.
  std::uint32_t base = 0;
  std::uint64_t descriptors = 0;
  std::uint64_t available = 0;  // packed: the driver's event suppression
  std::uint64_t used = 0;       // packed: the device's
  int kick_fd = -1;
  int call_fd = -1;
};

class FrontendSession {
 public:
  enum class State { kNegotiating, kNegotiated, kStarting, kRunning, kStopping, kFailed };

  FrontendSession(UniqueFd socket, const FrontendOptions& options);

  int fd() const { return channel_.fd(); }
  // Whether to wait for the socket to become writable too.
  bool wants_write() const { return channel_.wants_write(); }
  // Reads replies and sends what can be sent. Call when the socket is readable or writable; never
  // blocks. Also notices that the back-end has gone.
  State advance();

  State state() const { return state_; }
  const absl::Status& error() const { return error_; }

  // Valid from kNegotiated on.
  std::uint64_t features() const { return features_; }
  std::uint64_t protocol_features() const { return protocol_features_; }
  // Queue pairs the back-end can serve; 1 if it does not say.
  std::uint64_t max_queue_pairs() const { return max_queue_pairs_; }

  // Hands over memory and vrings and enables them. Only in kNegotiated.
  absl::Status start(const std::vector<SharedRegion>& memory,
                     const std::vector<VringSetup>& vrings);
  // Disables the vrings and asks for their positions. Only in kRunning.
  absl::Status stop();
  // By vring index, as in VringSetup; after stop() has come back to kNegotiated.
  const std::vector<std::uint32_t>& bases() const { return bases_; }

  // Blocks until `wanted` is reached, or fails: DEADLINE_EXCEEDED, or error().
  absl::Status wait_for(State wanted, absl::Duration timeout);

 private:
  enum class Answer { kNone, kAck, kReply };
  struct Step {
    Request request;
    Answer answer = Answer::kNone;
    std::vector<std::byte> payload;
    std::vector<int> fds;
  };

  void fail(absl::Status status);
  void enqueue(Request request, const void* payload, std::size_t size, std::vector<int> fds = {},
               bool has_reply = false);
  void enqueue_u64(Request request, std::uint64_t value, std::vector<int> fds = {});
  void enqueue_vring(Request request, std::uint32_t index, std::uint32_t value,
                     bool has_reply = false);
  void send_steps();
  void steps_done();
  void handle(const Message& message);
  void handle_reply(Request request, std::uint64_t value);
  void handle_base(const Message& message);

  MessageChannel channel_;
  FrontendOptions options_;
  State state_ = State::kNegotiating;
  absl::Status error_;
  std::uint64_t features_ = 0;
  std::uint64_t protocol_features_ = 0;
  std::uint64_t max_queue_pairs_ = 1;
  std::deque<Step> steps_;
  bool waiting_for_answer_ = false;  // to steps_.front(), which has been sent
  std::vector<std::uint32_t> vrings_;
  std::vector<std::uint32_t> bases_;
};

// One attempt to connect; does not wait. UNAVAILABLE: nobody listens there (yet).
// INVALID_ARGUMENT: not a path a unix socket can have.
absl::StatusOr<UniqueFd> connect_to_backend(const std::string& path);

}  // namespace vswitch::vhost_user
