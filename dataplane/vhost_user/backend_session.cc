#include "dataplane/vhost_user/backend_session.h"

#include <sys/epoll.h>

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/os/eventfd.h"
#include "dataplane/os/log.h"
#include "dataplane/virtq/features.h"
#include "dataplane/virtq/packed_layout.h"
#include "dataplane/virtq/split_layout.h"

namespace vswitch::vhost_user {
namespace {

absl::Status violation(Request request, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(request_name(request), ": ", std::string(what)));
}

// Exact payload size of each message; SET_MEM_TABLE says its own.
std::size_t payload_bytes(Request request) {
  switch (request) {
    case Request::kSetFeatures:
    case Request::kSetProtocolFeatures:
    case Request::kSetVringKick:
    case Request::kSetVringCall:
    case Request::kSetVringErr:
    case Request::kNetSetMtu:
      return sizeof(std::uint64_t);
    case Request::kSetVringNum:
    case Request::kSetVringBase:
    case Request::kGetVringBase:
    case Request::kSetVringEnable:
      return sizeof(VringState);
    case Request::kSetVringAddr:
      return sizeof(VringAddress);
    default:
      return 0;
  }
}

bool carries_fds(Request request) {
  switch (request) {
    case Request::kSetMemTable:
    case Request::kSetVringKick:
    case Request::kSetVringCall:
    case Request::kSetVringErr:
      return true;
    default:
      return false;
  }
}

// Where a ring of this layout starts (virtio 1.2, 2.7.6 and 2.8.1).
std::uint16_t first_position(bool packed) { return packed ? virtq::PackedPosition{}.raw() : 0; }

}  // namespace

bool SessionState::packed() const { return (features & virtq::kFeatureRingPacked) != 0; }

BackendSession::BackendSession(UniqueFd socket, const Device& device, Delegate& delegate)
    : channel_(std::move(socket)), device_(device), delegate_(delegate) {
  state_.vrings.resize(std::size_t{2} * device.queue_pairs);
}

void BackendSession::on_events(std::uint32_t events) {
  const std::shared_ptr<BackendSession> keep = shared_from_this();
  // A hang-up never makes the socket writable: flushing is what finds out.
  if ((events & EPOLLOUT) != 0 || channel_.wants_write()) {
    const absl::Status status = channel_.flush();
    if (!status.ok() && !absl::IsUnavailable(status)) {
      fail(status);
      return;
    }
    if (!channel_.wants_write()) delegate_.watch(true, false);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) process();
}

void BackendSession::process() {
  processing_ = true;
  for (int handled = 0; handled < kMessagesPerTurn; ++handled) {
    // Nothing more is read from a peer that does not read its replies.
    if (closed_ || waiting_ || channel_.wants_write()) break;
    const ReadResult result = channel_.read();
    if (result == ReadResult::kAgain) break;
    if (result == ReadResult::kMessage) {
      handle(channel_.take());
    } else {
      if (result == ReadResult::kError) refuse_unread();
      fail(result == ReadResult::kClosed ? absl::OkStatus() : channel_.error());
      break;
    }
  }
  processing_ = false;
}

// A message whose header alone is a violation may ask for a reply like any other.
void BackendSession::refuse_unread() {
  const std::optional<Header> header = channel_.refused_header();
  if (!header || (header->flags & kFlagNeedReply) == 0 ||
      (state_.protocol_features & kProtocolReplyAck) == 0) {
    return;
  }
  const std::uint64_t failure = 1;
  channel_.send_last(static_cast<Request>(header->request), kFlagReply, &failure, sizeof(failure));
}

void BackendSession::handle(Message message) {
  ++messages_;
  request_ = message.request;
  last_request_ = request_name(message.request);
  log_debug("vhost-user", "message connection=", channel_.fd(), " request=", last_request_);
  wants_acknowledgement_ =
      message.needs_reply() && (state_.protocol_features & kProtocolReplyAck) != 0;
  replied_ = false;
  const absl::Status status = dispatch(message);
  if (!status.ok()) {
    if (wants_acknowledgement_ && !replied_) {
      // Non-zero is failure. If the socket is full the closed connection must say it alone.
      const absl::Status ignored = reply_number(1);
      (void)ignored;
    }
    fail(status);
  }
}

absl::Status BackendSession::dispatch(Message& message) {
  if (message.is_reply()) return violation(request_, "a reply where a request was expected");
  if (!message.fds.empty() && !carries_fds(request_)) {
    return violation(request_, "unexpected file descriptors");
  }
  if (request_ != Request::kSetMemTable && message.payload.size() != payload_bytes(request_)) {
    return violation(request_, absl::StrCat("payload of ", message.payload.size(), " bytes, not ",
                                            payload_bytes(request_)));
  }
  switch (request_) {
    case Request::kGetFeatures:
      return reply_number(device_.features);
    case Request::kGetProtocolFeatures:
      return reply_number(kProtocolFeatures);
    case Request::kGetQueueNum:
      return reply_number(state_.vrings.size() / 2);
    case Request::kSetFeatures:
      return set_features(message);
    case Request::kSetProtocolFeatures:
      return set_protocol_features(message);
    case Request::kSetOwner:
    case Request::kResetOwner:
      // Nothing to do: a connection has one owner, and RESET_OWNER is only sent by front-ends that
      // stop their rings with GET_VRING_BASE anyway ("no longer used" in the document).
      acknowledge();
      return absl::OkStatus();
    case Request::kSetMemTable:
      return set_memory_table(message);
    case Request::kSetVringNum:
      return set_vring_number(message);
    case Request::kSetVringAddr:
      return set_vring_address(message);
    case Request::kSetVringBase:
      return set_vring_base(message);
    case Request::kGetVringBase:
      return get_vring_base(message);
    case Request::kSetVringKick:
    case Request::kSetVringCall:
    case Request::kSetVringErr:
      return set_vring_doorbell(message);
    case Request::kSetVringEnable:
      return set_vring_enable(message);
    case Request::kNetSetMtu:
      return set_mtu(message);
    default:
      return violation(request_, "not supported, and its feature was not offered");
  }
}

absl::Status BackendSession::set_features(const Message& message) {
  const auto features = payload_as<std::uint64_t>(message.payload.data());
  if ((features & ~device_.features) != 0) {
    return violation(request_, absl::StrCat("features that were not offered: 0x",
                                            absl::Hex(features & ~device_.features)));
  }
  // Setting the same features again, as front-ends do at every start, disturbs nothing.
  const std::uint64_t mask = state_.features_set && features == state_.features ? 0 : all_vrings();
  return change(mask, [this, features] {
    const bool was_packed = state_.packed();
    state_.features = features;
    // A position in the other layout means nothing in this one.
    if (state_.packed() != was_packed) {
      for (Vring& vring : state_.vrings) vring.position = first_position(state_.packed());
    }
    state_.features_set = true;
    // "Ring states": without protocol features there is no SET_VRING_ENABLE, rings start enabled.
    if ((features & virtq::kFeatureProtocolFeatures) == 0) {
      for (Vring& vring : state_.vrings) vring.enabled = true;
    }
  });
}

absl::Status BackendSession::set_protocol_features(const Message& message) {
  const auto features = payload_as<std::uint64_t>(message.payload.data());
  if ((features & ~kProtocolFeatures) != 0) {
    return violation(request_, absl::StrCat("protocol features that were not offered: 0x",
                                            absl::Hex(features & ~kProtocolFeatures)));
  }
  state_.protocol_features = features;
  acknowledge();
  return absl::OkStatus();
}

absl::Status BackendSession::set_memory_table(Message& message) {
  if (message.payload.size() < sizeof(MemoryTableHeader)) {
    return violation(request_, "payload without a table");
  }
  const auto header = payload_as<MemoryTableHeader>(message.payload.data());
  if (header.regions > kMaxMemoryRegions || header.regions != message.fds.size() ||
      message.payload.size() != sizeof(header) + header.regions * sizeof(MemoryRegion)) {
    return violation(request_,
                     absl::StrCat(header.regions, " regions with ", message.fds.size(),
                                  " file descriptors in ", message.payload.size(), " bytes"));
  }
  std::vector<RegionDescription> descriptions;
  for (std::uint32_t i = 0; i < header.regions; ++i) {
    const auto region = payload_as<MemoryRegion>(message.payload.data() + sizeof(header) +
                                                 i * sizeof(MemoryRegion));
    descriptions.push_back({region.guest_address, region.size, region.user_address,
                            region.mmap_offset, std::move(message.fds[i])});
  }
  absl::StatusOr<std::shared_ptr<const GuestMemory>> memory =
      GuestMemory::map(std::move(descriptions));
  if (!memory.ok()) return violation(request_, std::string(memory.status().message()));
  // Rings go on at once in the new memory where their addresses are still mapped.
  return change(all_vrings(), [this, memory = *std::move(memory)] { state_.memory = memory; });
}

absl::StatusOr<VringState> BackendSession::vring_state(const Message& message) const {
  const auto vring = payload_as<VringState>(message.payload.data());
  if (vring.index >= state_.vrings.size()) {
    return violation(request_, absl::StrCat("vring ", vring.index, " of ", state_.vrings.size()));
  }
  return vring;
}

absl::Status BackendSession::set_vring_number(const Message& message) {
  const absl::StatusOr<VringState> vring = vring_state(message);
  if (!vring.ok()) return vring.status();
  // Virtio 1.2, 2.7 and 2.8.10.1: at most 32768; a power of two where the ring is split.
  if (vring->value == 0 || vring->value > virtq::kMaxQueueSize ||
      !(state_.packed() || std::has_single_bit(vring->value))) {
    return violation(request_, absl::StrCat("queue size ", vring->value,
                                            state_.packed() ? " is not" : " is no power of two",
                                            " from 1 to 32768"));
  }
  return change(std::uint64_t{1} << vring->index,
                [this, vring = *vring] { state_.vrings[vring.index].size = vring.value; });
}

absl::Status BackendSession::set_vring_address(const Message& message) {
  const auto address = payload_as<VringAddress>(message.payload.data());
  if (address.index >= state_.vrings.size()) {
    return violation(request_, absl::StrCat("vring ", address.index, " of ", state_.vrings.size()));
  }
  // Virtio 1.2, 2.7 and 2.8.10.1: alignment of the three parts. Of a packed ring 'available' is the
  // driver's event suppression structure and 'used' the device's.
  const auto fits = [&address](std::size_t descriptors, std::size_t available, std::size_t used) {
    return address.descriptors % descriptors == 0 && address.available % available == 0 &&
           address.used % used == 0;
  };
  if (!(state_.packed() ? fits(virtq::kPackedRingAlignment, virtq::kEventSuppressionAlignment,
                               virtq::kEventSuppressionAlignment)
                        : fits(virtq::kDescriptorTableAlignment, virtq::kAvailRingAlignment,
                               virtq::kUsedRingAlignment))) {
    return violation(request_, "a misaligned ring");
  }
  return change(std::uint64_t{1} << address.index, [this, address] {
    Vring& vring = state_.vrings[address.index];
    vring.descriptors = address.descriptors;
    vring.available = address.available;
    vring.used = address.used;
    vring.addressed = true;
  });
}

absl::Status BackendSession::set_vring_base(const Message& message) {
  const absl::StatusOr<VringState> vring = vring_state(message);
  if (!vring.ok()) return vring.status();
  if (!state_.packed() && vring->value > 0xffff) {
    return violation(request_, absl::StrCat("available index ", vring->value, " is over 65535"));
  }
  // "vring state description" of a packed ring: the available position, and in the upper half the
  // used one. They are equal whenever a ring of ours rests, and some front-ends send no used one.
  return change(std::uint64_t{1} << vring->index, [this, vring = *vring] {
    state_.vrings[vring.index].position = static_cast<std::uint16_t>(vring.value);
  });
}

absl::Status BackendSession::get_vring_base(const Message& message) {
  const absl::StatusOr<VringState> vring = vring_state(message);
  if (!vring.ok()) return vring.status();
  // "Starting and stopping rings": this message stops the ring until the next kick descriptor.
  return change(std::uint64_t{1} << vring->index, [this, vring = *vring] {
    state_.vrings[vring.index].started = false;
    const std::uint32_t position = state_.vrings[vring.index].position;
    const VringState answer{vring.index, state_.packed() ? position << 16 | position : position};
    const absl::Status status = reply(&answer, sizeof(answer));
    if (!status.ok()) fail(status);
  });
}

absl::Status BackendSession::set_vring_doorbell(Message& message) {
  const auto number = payload_as<std::uint64_t>(message.payload.data());
  const std::uint64_t index = number & kVringIndexMask;
  const bool without_fd = (number & kVringNoFd) != 0;
  if ((number & ~(kVringIndexMask | kVringNoFd)) != 0 || index >= state_.vrings.size()) {
    return violation(request_, absl::StrCat("vring ", index, " of ", state_.vrings.size()));
  }
  if (message.fds.size() != (without_fd ? 0 : 1)) {
    return violation(request_, absl::StrCat(message.fds.size(), " file descriptors"));
  }
  auto fd = std::make_shared<UniqueFd>();
  if (!without_fd) {
    *fd = std::move(message.fds[0]);
    if (const absl::Status status = accept_doorbell(fd->get()); !status.ok()) {
      return violation(request_, std::string(status.message()));
    }
  }
  return change(std::uint64_t{1} << index, [this, index, request = request_, fd] {
    Vring& vring = state_.vrings[index];
    switch (request) {
      case Request::kSetVringKick:
        vring.kick = std::move(*fd);
        vring.started = true;
        break;
      case Request::kSetVringCall:
        vring.call = std::move(*fd);
        break;
      default:
        vring.error = std::move(*fd);
        break;
    }
  });
}

absl::Status BackendSession::set_vring_enable(const Message& message) {
  const absl::StatusOr<VringState> vring = vring_state(message);
  if (!vring.ok()) return vring.status();
  if (vring->value > 1) {
    return violation(request_, absl::StrCat("value ", vring->value, " is neither 0 nor 1"));
  }
  // Remembered even before the ring is set up: some front-ends enable first.
  return change(std::uint64_t{1} << vring->index,
                [this, vring = *vring] { state_.vrings[vring.index].enabled = vring.value == 1; });
}

// "VHOST_USER_NET_SET_MTU": the answer says whether that is possible; nothing else changes, for a
// port's MTU is its operator's to set.
absl::Status BackendSession::set_mtu(const Message& message) {
  const auto mtu = payload_as<std::uint64_t>(message.payload.data());
  if (mtu < kMinNetMtu || mtu > kMaxNetMtu) {
    return violation(request_, absl::StrCat("an MTU of ", mtu, " is not from 68 to 65535"));
  }
  if (mtu > device_.mtu) {
    log_warning("vhost-user", "MTU above the port's refused connection=", channel_.fd(),
                " mtu=", mtu, " most=", device_.mtu);
    return wants_acknowledgement_ ? reply_number(1) : absl::OkStatus();
  }
  acknowledge();
  return absl::OkStatus();
}

std::uint64_t BackendSession::all_vrings() const {
  return (std::uint64_t{1} << state_.vrings.size()) - 1;
}

absl::Status BackendSession::change(std::uint64_t mask, std::function<void()> apply) {
  waiting_ = true;
  delegate_.quiesce(
      mask, [self = shared_from_this(), apply = std::move(apply)] { self->finish_change(apply); });
  // Still waiting: the socket is left alone, or a peer that hangs up would wake the loop for ever.
  if (waiting_ && !closed_) delegate_.watch(false, false);
  return absl::OkStatus();
}

void BackendSession::finish_change(const std::function<void()>& apply) {
  if (closed_) return;
  waiting_ = false;
  apply();
  if (closed_) return;
  delegate_.rings_changed();
  acknowledge();
  if (closed_ || processing_) return;
  // Readable only with nothing left to send: what is not read would wake the loop for ever.
  delegate_.watch(!channel_.wants_write(), channel_.wants_write());
  process();
}

absl::Status BackendSession::reply(const void* payload, std::size_t size) {
  replied_ = true;
  const absl::Status status = channel_.send(request_, kFlagReply, payload, size);
  if (absl::IsUnavailable(status)) {
    delegate_.watch(false, true);
    return absl::OkStatus();
  }
  return status;
}

void BackendSession::acknowledge() {
  if (!wants_acknowledgement_ || replied_) return;
  const absl::Status status = reply_number(0);
  if (!status.ok()) fail(status);
}

void BackendSession::fail(const absl::Status& why) {
  if (closed_) return;
  delegate_.ended(why);
}

}  // namespace vswitch::vhost_user
