// Message framing over a unix stream socket: non-blocking, bounded, with file descriptors.
//
// One channel belongs to one thread. It never blocks and never allocates more than one message in
// each direction: a peer that sends half a message, or does not read its replies, costs nobody else
// anything. Source: vhost-user.rst, "Message specification" and "Communication".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/os/peer_fd.h"
#include "dataplane/vhost_user/message.h"

namespace vswitch::vhost_user {

struct Message {
  Request request{};
  std::uint32_t flags = 0;
  std::vector<std::byte> payload;
  std::vector<UniqueFd> fds;

  bool needs_reply() const { return (flags & kFlagNeedReply) != 0; }
  bool is_reply() const { return (flags & kFlagReply) != 0; }
};

enum class ReadResult {
  kMessage,  // a whole message is in `message()`
  kAgain,    // wait until the socket is readable
  kClosed,   // the peer closed the connection between two messages
  kError,    // malformed header, too many fds, cut off inside a message, or socket error: error()
};

class MessageChannel {
 public:
  // Takes the socket and makes it non-blocking.
  explicit MessageChannel(UniqueFd socket);

  int fd() const { return socket_.get(); }

  // Reads until one whole message is there or the socket has no more. After kMessage the message
  // is moved out with take(); after kError the channel is dead.
  ReadResult read();
  Message take();
  // True inside a half-received message: the only time a peer is on the clock.
  bool inside_message() const { return received_ != 0; }
  const absl::Status& error() const { return error_; }
  // After kError: the header of the message that was refused, if it had arrived.
  std::optional<Header> refused_header() const;
  // After kError: one last message without descriptors, sent as far as the socket has room.
  void send_last(Request request, std::uint32_t flags, const void* payload, std::size_t size);

  // Queues one message and tries to send it. UNAVAILABLE: the socket is full and the rest waits
  // for flush() (a second send() meanwhile is RESOURCE_EXHAUSTED: the peer does not read).
  // `fds` stay the caller's and must stay open until the message is out.
  absl::Status send(Request request, std::uint32_t flags, const void* payload, std::size_t size,
                    const std::vector<int>& fds = {});
  absl::Status flush();
  bool wants_write() const { return sent_ < outgoing_.size(); }

 private:
  ReadResult fail(absl::Status status);

  PeerSocket socket_;
  // Incoming: header, then payload, in one buffer.
  std::array<std::byte, sizeof(Header) + kMaxPayload> incoming_{};
  std::size_t received_ = 0;
  std::vector<UniqueFd> incoming_fds_;
  // Outgoing: at most one message.
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;
  std::vector<int> outgoing_fds_;
  absl::Status error_;
};

}  // namespace vswitch::vhost_user
