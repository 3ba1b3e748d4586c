// The device's side of one vhost-user connection: a non-blocking state machine.
//
// Source: vhost-user.rst ("Communication", "Front-end message types", "Starting and stopping
// rings", "Ring states"). One session belongs to one event loop thread. It reads one message at a
// time; a message that changes something under a running ring waits, with all later ones, until the
// workers have let go (Delegate::quiesce). Whatever breaks the protocol ends this connection only:
// a failure reply if one was asked for, then everything it sent is closed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dataplane/guest_memory/guest_memory.h"
#include "dataplane/os/unique_fd.h"
#include "dataplane/vhost_user/message_channel.h"

namespace vswitch::vhost_user {

// One ring as the front-end has described it so far.
struct Vring {
  std::uint32_t size = 0;         // descriptors; 0: not set
  bool addressed = false;         // the three user addresses are set
  std::uint64_t descriptors = 0;  // addresses in the front-end
  std::uint64_t available = 0;
  std::uint64_t used = 0;
  // Where to go on: of a split ring the available index, of a packed one the offset in bits 0-14
  // and the wrap counter in bit 15.
  std::uint16_t position = 0;
  UniqueFd kick;  // may be absent: the ring is polled
  UniqueFd call;
  UniqueFd error;
  bool started = false;  // a kick descriptor (or its absence) was set since the last stop
  bool enabled = false;
};

// Everything a connection has negotiated; a plain value apart from its socket.
struct SessionState {
  bool features_set = false;
  std::uint64_t features = 0;  // virtio bits and VHOST_USER_F_PROTOCOL_FEATURES
  std::uint64_t protocol_features = 0;
  std::shared_ptr<const GuestMemory> memory;  // null: none set
  std::vector<Vring> vrings;                  // 2 per queue pair

  bool packed() const;  // the layout of the rings, as negotiated
};

// What the device on our side is.
struct Device {
  unsigned queue_pairs = 1;    // 1 to 16
  std::uint64_t features = 0;  // virtio bits offered, with VHOST_USER_F_PROTOCOL_FEATURES
  std::uint32_t mtu = 1500;    // the largest that NET_SET_MTU may ask for
};

class BackendSession : public std::enable_shared_from_this<BackendSession> {
 public:
  class Delegate {
   public:
    virtual ~Delegate() = default;
    // Calls `then` once no worker uses any of the rings in `vring_mask` (bit = vring index), with
    // Vring::position brought up to date; at once where none does. The rings stay stopped until
    // rings_changed().
    virtual void quiesce(std::uint64_t vring_mask, std::function<void()> then) = 0;
    // The state has changed: run what can run.
    virtual void rings_changed() = 0;
    // Calls on_events() when the socket has something for us; (false, false) while a message waits.
    virtual void watch(bool readable, bool writable) = 0;
    // The connection is over. OK: the front-end closed it; otherwise what it, or we, did wrong
    // (INVALID_ARGUMENT: it broke the protocol). The session must be closed with close().
    virtual void ended(const absl::Status& why) = 0;
  };

  BackendSession(UniqueFd socket, const Device& device, Delegate& delegate);

  int fd() const { return channel_.fd(); }
  // epoll events of fd().
  void on_events(std::uint32_t events);
  // Detaches from the delegate; late continuations do nothing.
  void close() { closed_ = true; }
  bool closed() const { return closed_; }

  SessionState& state() { return state_; }
  const SessionState& state() const { return state_; }
  // A peer is on the clock only inside a half-received message or with a reply it does not read.
  bool peer_owes_bytes() const { return channel_.inside_message() || channel_.wants_write(); }
  // Messages handled so far.
  std::uint64_t messages() const { return messages_; }
  // What was handled last, for people: "SET_FEATURES", or "nothing yet".
  std::string last_request() const { return last_request_; }

 private:
  // Most messages handled in a row, so that one busy peer does not starve the others.
  static constexpr int kMessagesPerTurn = 64;

  void process();
  void handle(Message message);
  void refuse_unread();
  // Handlers: an error is a protocol violation.
  absl::Status dispatch(Message& message);
  absl::Status set_features(const Message& message);
  absl::Status set_protocol_features(const Message& message);
  absl::Status set_memory_table(Message& message);
  absl::Status set_vring_number(const Message& message);
  absl::Status set_vring_address(const Message& message);
  absl::Status set_vring_base(const Message& message);
  absl::Status get_vring_base(const Message& message);
  absl::Status set_vring_doorbell(Message& message);
  absl::Status set_vring_enable(const Message& message);
  absl::Status set_mtu(const Message& message);

  absl::StatusOr<VringState> vring_state(const Message& message) const;
  // Applies a change once the rings in `mask` are at rest, then acknowledges.
  absl::Status change(std::uint64_t mask, std::function<void()> apply);
  void finish_change(const std::function<void()>& apply);
  std::uint64_t all_vrings() const;
  absl::Status reply(const void* payload, std::size_t size);
  absl::Status reply_number(std::uint64_t value) { return reply(&value, sizeof(value)); }
  void acknowledge();
  void fail(const absl::Status& why);

  MessageChannel channel_;
  Device device_;
  Delegate& delegate_;
  SessionState state_;
  bool closed_ = false;
  bool waiting_ = false;     // a change waits for the workers
  bool processing_ = false;  // inside process()
  // The message being handled.
  Request request_{};
  bool wants_acknowledgement_ = false;
  bool replied_ = false;
  std::uint64_t messages_ = 0;
  std::string last_request_ = "nothing yet";
};

}  // namespace vswitch::vhost_user
