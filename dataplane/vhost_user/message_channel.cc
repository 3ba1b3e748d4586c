#include "dataplane/vhost_user/message_channel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/os/control_data.h"

namespace vswitch::vhost_user {
namespace {

absl::Status socket_error(const char* operation, int error) {
  if (error == EPIPE || error == ECONNRESET) {
    return absl::AbortedError("the peer closed the connection");
  }
  return absl::ErrnoToStatus(error, operation);
}

// What could block when it is closed is of no use here and goes at once; its place stays, so that
// the descriptors are still counted, and refused by whoever looks for one.
void keep_harmless(std::vector<UniqueFd> received, std::vector<UniqueFd>& fds) {
  for (UniqueFd& fd : received) {
    if (is_eventfd(fd.get()) || is_memory_file(fd.get())) {
      fds.push_back(std::move(fd));
    } else {
      close_peer_fd(std::move(fd));
      fds.emplace_back();
    }
  }
}

}  // namespace

MessageChannel::MessageChannel(UniqueFd socket) : socket_(std::move(socket)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) < 0) {
    fail(absl::ErrnoToStatus(errno, "making the vhost-user socket non-blocking"));
  }
}

ReadResult MessageChannel::fail(absl::Status status) {
  error_ = std::move(status);
  incoming_fds_.clear();
  return ReadResult::kError;
}

ReadResult MessageChannel::read() {
  if (!error_.ok()) return ReadResult::kError;
  for (;;) {
    std::size_t wanted = sizeof(Header);
    if (received_ >= sizeof(Header)) {
      const auto header = payload_as<Header>(incoming_.data());
      if ((header.flags & kFlagVersionMask) != kFlagVersion) {
        return fail(absl::InvalidArgumentError(
            absl::StrCat("message version ", header.flags & kFlagVersionMask, " is not 1")));
      }
      if (header.size > kMaxPayload) {
        return fail(absl::InvalidArgumentError(
            absl::StrCat("payload of ", header.size, " bytes is over the limit of ", kMaxPayload)));
      }
      wanted += header.size;
    }
    if (received_ == wanted) return ReadResult::kMessage;

    // Never past the end of this message: the descriptors of the next one arrive with its first
    // byte and must not be mixed up with ours.
    iovec data{incoming_.data() + received_, wanted - received_};
    ControlData control;
    msghdr header = control.header(data);
    const ssize_t got = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return ReadResult::kAgain;
      return fail(socket_error("receiving a vhost-user message", errno));
    }
    keep_harmless(ControlData::take_fds(header), incoming_fds_);
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
      // There was room for them, so it is this process that has no descriptor left.
      return fail(absl::ResourceExhaustedError("the switch is out of file descriptors"));
    }
    if (incoming_fds_.size() > kMaxFds) {
      return fail(absl::InvalidArgumentError(
          absl::StrCat("a message carries more than ", kMaxFds, " file descriptors")));
    }
    if (got == 0) {
      if (received_ == 0) {
        incoming_fds_.clear();
        return ReadResult::kClosed;
      }
      return fail(absl::AbortedError("the peer closed the connection inside a message"));
    }
    received_ += static_cast<std::size_t>(got);
  }
}

Message MessageChannel::take() {
  const auto header = payload_as<Header>(incoming_.data());
  Message message;
  message.request = static_cast<Request>(header.request);
  message.flags = header.flags;
  message.payload.assign(incoming_.begin() + sizeof(Header),
                         incoming_.begin() + static_cast<std::ptrdiff_t>(received_));
  message.fds = std::exchange(incoming_fds_, {});
  received_ = 0;
  return message;
}

absl::Status MessageChannel::send(Request request, std::uint32_t flags, const void* payload,
                                  std::size_t size, const std::vector<int>& fds) {
  if (!error_.ok()) return error_;
  if (size > kMaxPayload || fds.size() > kMaxFds) {
    return absl::InvalidArgumentError(absl::StrCat(request_name(request), ": a message of ", size,
                                                   " bytes and ", fds.size(),
                                                   " file descriptors is over the limit"));
  }
  if (wants_write()) {
    return absl::ResourceExhaustedError("the peer does not read its messages");
  }
  const Header header{static_cast<std::uint32_t>(request), flags | kFlagVersion,
                      static_cast<std::uint32_t>(size)};
  outgoing_.resize(sizeof(header) + size);
  std::memcpy(outgoing_.data(), &header, sizeof(header));
  if (size > 0) std::memcpy(outgoing_.data() + sizeof(header), payload, size);
  sent_ = 0;
  outgoing_fds_ = fds;
  return flush();
}

std::optional<Header> MessageChannel::refused_header() const {
  if (received_ < sizeof(Header)) return std::nullopt;
  return payload_as<Header>(incoming_.data());
}

void MessageChannel::send_last(Request request, std::uint32_t flags, const void* payload,
                               std::size_t size) {
  if (wants_write()) return;  // half of another one is on its way
  const absl::Status error = std::exchange(error_, absl::OkStatus());
  const absl::Status sent = send(request, flags, payload, size);
  (void)sent;  // the end of the connection says it too
  error_ = error;
}

absl::Status MessageChannel::flush() {
  if (!error_.ok()) return error_;
  while (wants_write()) {
    iovec data{outgoing_.data() + sent_, outgoing_.size() - sent_};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    // The descriptors travel with the first byte only.
    if (sent_ == 0 && !outgoing_fds_.empty()) {
      const std::size_t bytes = outgoing_fds_.size() * sizeof(int);
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(bytes);
      std::memcpy(CMSG_DATA(rights), outgoing_fds_.data(), bytes);
    }
    const ssize_t put = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return absl::UnavailableError("the socket is full");
      }
      error_ = socket_error("sending a vhost-user message", errno);
      return error_;
    }
    sent_ += static_cast<std::size_t>(put);
  }
  outgoing_fds_.clear();
  return absl::OkStatus();
}

}  // namespace vswitch::vhost_user
