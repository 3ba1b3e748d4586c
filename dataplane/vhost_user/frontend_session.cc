#include "dataplane/vhost_user/frontend_session.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "dataplane/virtq/features.h"

namespace vswitch::vhost_user {
namespace {

constexpr std::size_t kMaxVrings = 256;  // the index has 8 bits in SET_VRING_KICK

}  // namespace

FrontendSession::FrontendSession(UniqueFd socket, const FrontendOptions& options)
    : channel_(std::move(socket)), options_(options) {
  if (!channel_.error().ok()) {
    fail(channel_.error());
    return;
  }
  enqueue(Request::kSetOwner, nullptr, 0);
  enqueue(Request::kGetFeatures, nullptr, 0, {}, /*has_reply=*/true);
  send_steps();
}

void FrontendSession::fail(absl::Status status) {
  state_ = State::kFailed;
  error_ = std::move(status);
  steps_.clear();
}

void FrontendSession::enqueue(Request request, const void* payload, std::size_t size,
                              std::vector<int> fds, bool has_reply) {
  Step step{request, Answer::kNone, {}, std::move(fds)};
  if (has_reply) {
    step.answer = Answer::kReply;
  } else if ((protocol_features_ & kProtocolReplyAck) != 0) {
    // "REPLY_ACK": with an answer to each message a refusal names the message it is about.
    step.answer = Answer::kAck;
  }
  const auto* bytes = static_cast<const std::byte*>(payload);
  step.payload.assign(bytes, bytes + size);
  steps_.push_back(std::move(step));
}

void FrontendSession::enqueue_u64(Request request, std::uint64_t value, std::vector<int> fds) {
  enqueue(request, &value, sizeof(value), std::move(fds));
}

void FrontendSession::enqueue_vring(Request request, std::uint32_t index, std::uint32_t value,
                                    bool has_reply) {
  const VringState vring{index, value};
  enqueue(request, &vring, sizeof(vring), {}, has_reply);
}

absl::Status FrontendSession::start(const std::vector<SharedRegion>& memory,
                                    const std::vector<VringSetup>& vrings) {
  if (state_ != State::kNegotiated) {
    return absl::FailedPreconditionError("the vhost-user session is not ready to start");
  }
  if (memory.empty() || memory.size() > kMaxMemoryRegions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "between 1 and ", kMaxMemoryRegions, " memory regions can be shared, not ", memory.size()));
  }
  std::vector<std::byte> table(sizeof(MemoryTableHeader) + memory.size() * sizeof(MemoryRegion));
  std::vector<int> fds;
  const MemoryTableHeader header{static_cast<std::uint32_t>(memory.size()), 0};
  std::memcpy(table.data(), &header, sizeof(header));
  for (std::size_t i = 0; i < memory.size(); ++i) {
    std::memcpy(table.data() + sizeof(header) + i * sizeof(MemoryRegion), &memory[i].region,
                sizeof(MemoryRegion));
    fds.push_back(memory[i].fd);
  }

  state_ = State::kStarting;
  enqueue_u64(Request::kSetFeatures, features_);
  enqueue(Request::kSetMemTable, table.data(), table.size(), std::move(fds));
  vrings_.clear();
  for (const VringSetup& vring : vrings) {
    if (vring.index >= kMaxVrings) {
      fail(absl::InvalidArgumentError(absl::StrCat("vring index ", vring.index, " is too large")));
      return error_;
    }
    vrings_.push_back(vring.index);
    enqueue_vring(Request::kSetVringNum, vring.index, vring.size);
    enqueue_vring(Request::kSetVringBase, vring.index, vring.base);
    const VringAddress address{vring.index, 0, vring.descriptors, vring.used, vring.available, 0};
    enqueue(Request::kSetVringAddr, &address, sizeof(address));
    enqueue_u64(Request::kSetVringCall, vring.index, {vring.call_fd});
    // "Ring states": the kick starts the ring, so it comes last.
    enqueue_u64(Request::kSetVringKick, vring.index, {vring.kick_fd});
  }
  // Without the protocol features a ring is enabled as soon as it is started.
  if ((features_ & virtq::kFeatureProtocolFeatures) != 0) {
    for (const VringSetup& vring : vrings) {
      enqueue_vring(Request::kSetVringEnable, vring.index, 1);
    }
  }
  send_steps();
  return state_ == State::kFailed ? error_ : absl::OkStatus();
}

absl::Status FrontendSession::stop() {
  if (state_ != State::kRunning) {
    return absl::FailedPreconditionError("the vhost-user session is not running");
  }
  state_ = State::kStopping;
  const auto last = std::max_element(vrings_.begin(), vrings_.end());
  bases_.assign(last == vrings_.end() ? 0 : *last + 1, 0);
  if ((features_ & virtq::kFeatureProtocolFeatures) != 0) {
    for (const std::uint32_t index : vrings_) enqueue_vring(Request::kSetVringEnable, index, 0);
  }
  // "Ring states": GET_VRING_BASE stops the ring.
  for (const std::uint32_t index : vrings_) {
    enqueue_vring(Request::kGetVringBase, index, 0, /*has_reply=*/true);
  }
  send_steps();
  return state_ == State::kFailed ? error_ : absl::OkStatus();
}

void FrontendSession::send_steps() {
  while (state_ != State::kFailed && !waiting_for_answer_) {
    if (channel_.wants_write()) {
      const absl::Status flushed = channel_.flush();
      if (absl::IsUnavailable(flushed)) return;
      if (!flushed.ok()) return fail(flushed);
    }
    if (steps_.empty()) {
      const State before = state_;
      steps_done();
      if (state_ == before) return;
      continue;
    }
    const Step& step = steps_.front();
    const absl::Status sent =
        channel_.send(step.request, step.answer == Answer::kAck ? kFlagNeedReply : 0,
                      step.payload.data(), step.payload.size(), step.fds);
    if (!sent.ok() && !absl::IsUnavailable(sent)) return fail(sent);
    // An unsent rest leaves with a later flush(); the answer cannot come before.
    if (step.answer == Answer::kNone) {
      steps_.pop_front();
    } else {
      waiting_for_answer_ = true;
    }
  }
}

void FrontendSession::steps_done() {
  switch (state_) {
    case State::kNegotiating:
    case State::kStopping:
      state_ = State::kNegotiated;
      break;
    case State::kStarting:
      state_ = State::kRunning;
      break;
    default:
      break;
  }
}

FrontendSession::State FrontendSession::advance() {
  if (state_ == State::kFailed) return state_;
  if (channel_.wants_write()) {
    const absl::Status flushed = channel_.flush();
    if (!flushed.ok() && !absl::IsUnavailable(flushed)) fail(flushed);
  }
  while (state_ != State::kFailed) {
    switch (channel_.read()) {
      case ReadResult::kMessage:
        handle(channel_.take());
        send_steps();
        continue;
      case ReadResult::kAgain:
        send_steps();
        return state_;
      case ReadResult::kClosed:
        fail(absl::AbortedError(steps_.empty()
                                    ? std::string("the back-end closed the connection")
                                    : absl::StrCat("the back-end closed the connection at ",
                                                   request_name(steps_.front().request))));
        break;
      case ReadResult::kError:
        fail(channel_.error());
        break;
    }
  }
  return state_;
}

void FrontendSession::handle(const Message& message) {
  if (!waiting_for_answer_ || !message.is_reply() || message.request != steps_.front().request) {
    return fail(absl::InvalidArgumentError(
        absl::StrCat("the back-end sent an unexpected ", request_name(message.request))));
  }
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  waiting_for_answer_ = false;
  if (step.request == Request::kGetVringBase) return handle_base(message);
  if (message.payload.size() != sizeof(std::uint64_t)) {
    return fail(absl::InvalidArgumentError(
        absl::StrCat("the back-end's answer to ", request_name(step.request), " has ",
                     message.payload.size(), " bytes instead of 8")));
  }
  const auto value = payload_as<std::uint64_t>(message.payload.data());
  if (step.answer == Answer::kReply) return handle_reply(step.request, value);
  if (value != 0) {
    fail(absl::FailedPreconditionError(
        absl::StrCat("the back-end refused ", request_name(step.request), " (code ", value, ")")));
  }
}

void FrontendSession::handle_base(const Message& message) {
  if (message.payload.size() != sizeof(VringState)) {
    return fail(absl::InvalidArgumentError("the back-end's GET_VRING_BASE answer is malformed"));
  }
  const auto vring = payload_as<VringState>(message.payload.data());
  if (vring.index >= bases_.size()) {
    return fail(absl::InvalidArgumentError("the back-end answered for another vring"));
  }
  bases_[vring.index] = vring.value;
}

void FrontendSession::handle_reply(Request request, std::uint64_t value) {
  switch (request) {
    case Request::kGetFeatures: {
      const std::uint64_t missing = options_.required_features & ~value;
      if (missing != 0) {
        return fail(absl::FailedPreconditionError(absl::StrCat(
            "the back-end does not offer ", absl::StrJoin(virtq::feature_names(missing), ", "))));
      }
      features_ = value & (options_.wanted_features | virtq::kFeatureProtocolFeatures);
      if ((features_ & virtq::kFeatureProtocolFeatures) != 0) {
        enqueue(Request::kGetProtocolFeatures, nullptr, 0, {}, /*has_reply=*/true);
      }
      return;
    }
    case Request::kGetProtocolFeatures: {
      const std::uint64_t chosen = value & options_.wanted_protocol_features;
      enqueue_u64(Request::kSetProtocolFeatures, chosen);
      // From here on: SET_PROTOCOL_FEATURES itself goes without an acknowledgement.
      protocol_features_ = chosen;
      if ((chosen & kProtocolMq) != 0) {
        enqueue(Request::kGetQueueNum, nullptr, 0, {}, /*has_reply=*/true);
      }
      return;
    }
    case Request::kGetQueueNum:
      max_queue_pairs_ = std::max<std::uint64_t>(value, 1);
      return;
    default:
      return;
  }
}

absl::Status FrontendSession::wait_for(State wanted, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (advance() != wanted) {
    if (state_ == State::kFailed) return error_;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          steps_.empty() ? std::string("the back-end did not answer in time")
                         : absl::StrCat("the back-end did not answer ",
                                        request_name(steps_.front().request), " in time"));
    }
    pollfd events{fd(), static_cast<short>(POLLIN | (wants_write() ? POLLOUT : 0)), 0};
    const auto milliseconds = std::clamp<std::int64_t>(absl::ToInt64Milliseconds(left), 1, 60'000);
    if (::poll(&events, 1, static_cast<int>(milliseconds)) < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, "waiting for the back-end");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> connect_to_backend(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a socket path has 1 to ", sizeof(address.sun_path) - 1, " bytes, not ", path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return absl::ErrnoToStatus(errno, "making a socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
    const int error = errno;
    const std::string what = absl::StrCat("connecting to ", path, ": ", std::strerror(error));
    // EAGAIN: the listener's queue is full.
    if (error == ENOENT || error == ECONNREFUSED || error == EAGAIN) {
      return absl::UnavailableError(what);
    }
    return absl::ErrnoToStatus(error, absl::StrCat("connecting to ", path));
  }
  return socket;
}

}  // namespace vswitch::vhost_user
