#include "dataplane/port/vhost_user_port.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "dataplane/net_header/ethernet.h"
#include "dataplane/os/eventfd.h"
#include "dataplane/os/log.h"
#include "dataplane/virtq/features.h"
#include "dataplane/virtq/packed_layout.h"
#include "dataplane/virtq/split_layout.h"

namespace vswitch::dataplane {
namespace {

constexpr std::string_view kRoom = "port";
constexpr mode_t kSocketMode = 0660;
constexpr const char* kVanished = "the front-end took away memory that it shares";
// From the guest's side, as the specification numbers them.
constexpr unsigned kReceiveRing = 0;
constexpr unsigned kTransmitRing = 1;

bool is_receive(unsigned ring) { return ring % 2 == kReceiveRing; }

// A part of a ring in host memory; nullptr where it is not mapped as it must be. The front-end's
// address is aligned (checked when it was set); a region that is shifted against its file would
// still misalign it here.
std::byte* locate_part(const GuestMemory& memory, std::uint64_t user_address, std::size_t bytes,
                       std::size_t alignment) {
  std::byte* const part = memory.at_user_address(user_address, bytes);
  return reinterpret_cast<std::uintptr_t>(part) % alignment == 0 ? part : nullptr;
}

std::optional<virtq::SplitRing> locate_split(const GuestMemory& memory,
                                             const vhost_user::Vring& vring) {
  std::byte* const descriptors =
      locate_part(memory, vring.descriptors, virtq::descriptor_table_bytes(vring.size),
                  virtq::kDescriptorTableAlignment);
  std::byte* const available = locate_part(
      memory, vring.available, virtq::avail_ring_bytes(vring.size), virtq::kAvailRingAlignment);
  std::byte* const used = locate_part(memory, vring.used, virtq::used_ring_bytes(vring.size),
                                      virtq::kUsedRingAlignment);
  if (descriptors == nullptr || available == nullptr || used == nullptr) return std::nullopt;
  return virtq::SplitRing{reinterpret_cast<virtq::Descriptor*>(descriptors),
                          reinterpret_cast<virtq::RingHeader*>(available),
                          reinterpret_cast<virtq::RingHeader*>(used), vring.size};
}

// "vring address description": a packed ring's event suppression structures stand where a split
// ring has its available and used rings.
std::optional<virtq::PackedRing> locate_packed(const GuestMemory& memory,
                                               const vhost_user::Vring& vring) {
  std::byte* const descriptors = locate_part(
      memory, vring.descriptors, virtq::packed_ring_bytes(vring.size), virtq::kPackedRingAlignment);
  const auto events = [&memory](std::uint64_t address) {
    return reinterpret_cast<virtq::EventSuppression*>(locate_part(
        memory, address, sizeof(virtq::EventSuppression), virtq::kEventSuppressionAlignment));
  };
  virtq::EventSuppression* const driver = events(vring.available);
  virtq::EventSuppression* const device = events(vring.used);
  if (descriptors == nullptr || driver == nullptr || device == nullptr) return std::nullopt;
  return virtq::PackedRing{reinterpret_cast<virtq::PackedDescriptor*>(descriptors), driver, device,
                           vring.size};
}

bool hung_up(int socket) {
  pollfd events{socket, 0, 0};
  return poll(&events, 1, 0) == 1 && (events.revents & POLLHUP) != 0;
}

}  // namespace

VhostUserPort::VhostUserPort(PortConfig config, PortPlace place, PortServices services)
    : config_(std::move(config)),
      kind_(std::get<VhostUserServerConfig>(config_.kind)),
      place_(place),
      services_(services),
      counters_(std::make_unique<QueueCounters[]>(std::size_t{2} * config_.queue_pairs *
                                                  services.workers)),
      rings_(std::size_t{2} * config_.queue_pairs),
      state_since_(absl::Now()) {}

VhostUserPort::~VhostUserPort() {
  if (session_) {
    watch(false, false);
    session_->close();
  }
  watch_listener(false);
}

absl::Status VhostUserPort::listen(bool keep_trying) {
  absl::Status status;
  absl::StatusOr<UnixListener> listener = UnixListener::listen(kind_.socket_path, kSocketMode);
  if (listener.ok()) {
    listener_ = *std::move(listener);
    watch_listener(true);
    if (!listener_watched_) {
      listener_.reset();
      status = absl::ResourceExhaustedError("too many file descriptors are being watched");
    }
  } else {
    status = listener.status();
  }
  if (!status.ok() && !keep_trying) return status;
  if (!status.ok() && listen_error_.empty()) {
    log_warning(kRoom, "cannot listen, trying again port=", config_.id,
                " reason=", std::string(status.message()));
  }
  listen_error_ = std::string(status.message());
  update_state();
  return status;
}

void VhostUserPort::watch_listener(bool on) {
  if (!listener_ || on == listener_watched_) return;
  if (on) {
    listener_watched_ =
        services_.loop
            .add(listener_->fd(), EPOLLIN, [this](std::uint32_t) { accept_connections(); })
            .ok();
  } else {
    services_.loop.remove(listener_->fd());
    listener_watched_ = false;
  }
}

void VhostUserPort::accept_connections() {
  if (session_ && hung_up(session_->fd())) {
    // Most likely the same front-end, back before its old connection was seen to end. It waits in
    // the backlog until end_session() is done.
    watch_listener(false);
    return;
  }
  absl::StatusOr<UniqueFd> connection = listener_->accept();
  if (!connection.ok()) {
    if (!absl::IsUnavailable(connection.status())) {
      // Out of descriptors, most likely. The connection stays in the backlog; tick() looks again.
      log_warning(kRoom, "cannot accept port=", config_.id,
                  " reason=", std::string(connection.status().message()));
      watch_listener(false);
      accept_later_ = true;
    }
    return;
  }
  if (session_) {
    // One device, one driver: the newcomer is turned away at once, the guest in place stays.
    log_warning(kRoom, "second front-end refused port=", config_.id);
    const PeerSocket refused(*std::move(connection));
    return;
  }
  ++connections_;
  last_ending_.clear();
  log_info(kRoom, "front-end connected port=", config_.id);
  session_ = std::make_shared<vhost_user::BackendSession>(
      *std::move(connection),
      vhost_user::Device{.queue_pairs = config_.queue_pairs,
                         .features = virtq::kDeviceFeatures,
                         .mtu = config_.mtu},
      static_cast<vhost_user::BackendSession::Delegate&>(*this));
  owed_seconds_ = 0;
  update_state();
  watch(true, false);
}

void VhostUserPort::watch(bool readable, bool writable) {
  const std::uint32_t events = (readable ? EPOLLIN : 0u) | (writable ? EPOLLOUT : 0u);
  if (events == 0) {
    if (session_watched_) services_.loop.remove(session_->fd());
    session_watched_ = false;
    return;
  }
  if (session_watched_) {
    const absl::Status status = services_.loop.modify(session_->fd(), events);
    (void)status;  // changing what is watched already does not fail
    return;
  }
  session_watched_ =
      services_.loop
          .add(session_->fd(), events,
               [session = session_.get()](std::uint32_t ready) { session->on_events(ready); })
          .ok();
  if (!session_watched_) ended(absl::ResourceExhaustedError("cannot watch the connection"));
}

void VhostUserPort::quiesce(std::uint64_t vring_mask, std::function<void()> then) {
  bool in_service = retiring_ != 0;
  for (unsigned i = 0; i < rings_.size(); ++i) {
    if ((vring_mask >> i & 1) == 0 || !rings_[i].attached) continue;
    rings_[i].attached = false;
    in_service = true;
  }
  if (!in_service) {
    then();
    return;
  }
  ++retiring_;
  services_.publisher.request([this, vring_mask, then = std::move(then)] {
    --retiring_;
    for (unsigned i = 0; i < rings_.size(); ++i) {
      if ((vring_mask >> i & 1) == 0 || rings_[i].attached || !rings_[i].queue) continue;
      if (session_) session_->state().vrings[i].position = rings_[i].queue->position();
      rings_[i].queue.reset();
    }
    update_state();
    then();
  });
}

void VhostUserPort::rings_changed() {
  bool changed = false;
  for (unsigned i = 0; i < rings_.size(); ++i) {
    if (!rings_[i].queue) changed |= start_ring(i);
  }
  if (changed) {
    // Before the front-end gets its answer and sends.
    services_.publisher.request();
    services_.publisher.publish_now();
  }
  update_state();
}

bool VhostUserPort::start_ring(unsigned index) {
  const vhost_user::SessionState& state = session_->state();
  const vhost_user::Vring& vring = state.vrings[index];
  Ring& ring = rings_[index];
  if (!vring.started) return false;
  ring.quarantined = false;
  ring.trouble.clear();
  if (!vring.enabled || !state.features_set || vring.size == 0 || !vring.addressed ||
      state.memory == nullptr) {
    return false;
  }
  if (state.memory->vanished()) {
    // What stands in for it is ours alone: the ring would run and reach nobody.
    ring.quarantined = true;
    ring.trouble = kVanished;
    return false;
  }
  std::optional<forwarding::PortQueue::Engine> engine = make_engine(index, ring.trouble);
  if (!engine) return false;
  ring.queue = std::make_unique<forwarding::PortQueue>(*std::move(engine), vring.call.get(),
                                                       services_.broken_event);
  ring.attached = true;
  return true;
}

// Nothing, and what is wrong in `trouble`, where the ring cannot run.
std::optional<forwarding::PortQueue::Engine> VhostUserPort::make_engine(unsigned index,
                                                                        std::string& trouble) {
  const vhost_user::SessionState& state = session_->state();
  const vhost_user::Vring& vring = state.vrings[index];
  const virtq::RingFeatures features = virtq::ring_features(state.features);
  const auto outside = [&] {
    trouble = absl::StrCat("ring ", index, " lies outside the shared memory");
    return std::nullopt;
  };
  if (state.packed()) {
    const std::optional<virtq::PackedRing> layout = locate_packed(*state.memory, vring);
    if (!layout) return outside();
    const auto position = virtq::PackedPosition::from_raw(vring.position);
    if (position.offset >= vring.size) {
      trouble = absl::StrCat("ring ", index, " of ", vring.size, " descriptors cannot start at ",
                             position.offset);
      return std::nullopt;
    }
    return virtq::BasicDeviceQueue<virtq::PackedDevice>(
        virtq::PackedDevice(*layout, vring.position, features), state.memory, state.features,
        vring.size);
  }
  if (!std::has_single_bit(vring.size)) {
    // Set while packed rings were negotiated.
    trouble = absl::StrCat("ring ", index, " is split and its size of ", vring.size,
                           " is no power of two");
    return std::nullopt;
  }
  const std::optional<virtq::SplitRing> layout = locate_split(*state.memory, vring);
  if (!layout) return outside();
  // Whatever was fetched has been returned whenever a ring rests, so the used index is where it
  // goes on. Front-ends that reconnect to a live ring send a base of 0 or a stale one. (A packed
  // ring does not say where it stands: there the front-end's word counts.)
  const std::uint16_t position = virtq::load_acquire(layout->used->index);
  if (position != vring.position) {
    log_info(kRoom, "ring resumes at its used index port=", config_.id, " ring=", index,
             " base=", vring.position, " used=", position);
  }
  return virtq::BasicDeviceQueue<virtq::SplitDevice>(
      virtq::SplitDevice(*layout, position, features), state.memory, state.features, vring.size);
}

void VhostUserPort::contribute(forwarding::Topology& topology) const {
  forwarding::Topology::Output& output = topology.outputs[place_.output];
  output.generation = place_.generation;
  output.bridge = place_.bridge;
  output.max_frame_bytes = config_.mtu + kEthernetHeaderBytes;
  output.counters = counters(kReceiveRing);
  for (unsigned i = 0; i < rings_.size(); ++i) {
    if (!rings_[i].attached) continue;
    if (is_receive(i)) {
      output.queues.push_back({rings_[i].queue.get(), counters(i)});
    } else {
      topology.workers[worker_of(i)].push_back({.queue = rings_[i].queue.get(),
                                                .counters = counters(i),
                                                .max_frame_bytes = output.max_frame_bytes,
                                                .output = place_.output,
                                                .bridge = place_.bridge});
    }
  }
  if (!output.queues.empty()) topology.bridges[place_.bridge].outputs.push_back(place_.output);
}

void VhostUserPort::ended(const absl::Status& why) {
  if (why.ok()) {
    log_info(kRoom, "front-end disconnected port=", config_.id);
  } else {
    if (absl::IsInvalidArgument(why)) ++violations_;
    last_ending_ = absl::StrCat("the last connection was closed: ", why.message());
    log_warning(kRoom, "connection closed port=", config_.id,
                " reason=", std::string(why.message()));
  }
  end_session();
}

void VhostUserPort::end_session() {
  // A front-end that comes back at once waits in the backlog until the old session is gone.
  watch_listener(false);
  watch(false, false);
  session_->close();
  quiesce(all_rings(), [this] {
    session_.reset();
    for (Ring& ring : rings_) ring = Ring{};
    if (!shutting_down_) watch_listener(true);
    update_state();
  });
}

void VhostUserPort::check_health() {
  if (!session_ || session_->closed()) return;
  if (session_->state().memory && session_->state().memory->vanished()) {
    std::uint64_t mask = 0;
    for (unsigned i = 0; i < rings_.size(); ++i) {
      if (!rings_[i].quarantined) mask |= std::uint64_t{1} << i;
    }
    if (mask != 0) quarantine(mask, kVanished);
  }
  for (unsigned i = 0; i < rings_.size(); ++i) {
    if (!rings_[i].attached || rings_[i].queue->broken() == virtq::BrokenRing::kNone) continue;
    quarantine(std::uint64_t{1} << i,
               absl::StrCat("ring ", i, ": ", broken_ring_text(rings_[i].queue->broken())));
  }
}

void VhostUserPort::quarantine(std::uint64_t vring_mask, const std::string& why) {
  log_warning(kRoom, "quarantined port=", config_.id, " reason=", why);
  for (unsigned i = 0; i < rings_.size(); ++i) {
    if ((vring_mask >> i & 1) == 0) continue;
    rings_[i].quarantined = true;
    rings_[i].trouble = why;
    vhost_user::Vring& vring = session_->state().vrings[i];
    // Only a new start by the front-end (a new kick descriptor) releases it.
    vring.started = false;
    if (vring.error.valid()) {
      signal_eventfd(vring.error.get());
    }
  }
  quiesce(vring_mask, [] {});
  update_state();
}

void VhostUserPort::tick() {
  if (!listener_ && !shutting_down_) {
    const absl::Status status = listen(true);
    if (status.ok()) log_info(kRoom, "listening at last port=", config_.id);
  }
  if (accept_later_) {
    accept_later_ = false;
    if (!session_ || !session_->closed()) watch_listener(true);
  }
  if (!session_ || session_->closed() || !session_->peer_owes_bytes() ||
      session_->messages() != last_messages_) {
    owed_seconds_ = 0;
    if (session_) last_messages_ = session_->messages();
  } else if (++owed_seconds_ > kMessageSeconds) {
    ended(absl::DeadlineExceededError(
        absl::StrCat("the front-end stopped inside a message after ", session_->last_request())));
  }
}

void VhostUserPort::shut_down(std::function<void()> done) {
  shutting_down_ = true;
  watch_listener(false);
  listener_.reset();
  if (session_) end_session();
  // Runs behind whatever is still on its way out.
  quiesce(all_rings(), std::move(done));
}

void VhostUserPort::update_state() {
  PortState state = PortState::kListening;
  if (!listener_ && !shutting_down_) {
    state = PortState::kFailed;
  } else if (session_) {
    const bool up = rings_[kReceiveRing].attached && rings_[kTransmitRing].attached;
    state = up ? PortState::kUp : PortState::kNegotiating;
    for (const Ring& ring : rings_) {
      if (ring.quarantined) state = PortState::kQuarantined;
    }
  }
  if (state == state_) return;
  log_info(kRoom, "state port=", config_.id, " from=", std::string(port_state_name(state_)),
           " to=", std::string(port_state_name(state)));
  state_ = state;
  state_since_ = absl::Now();
}

std::string VhostUserPort::missing_for_up() const {
  const vhost_user::SessionState& state = session_->state();
  std::string missing;
  if (!state.features_set) {
    missing = "has not set features";
  } else if (!state.memory) {
    missing = "has not shared its memory";
  } else {
    for (const unsigned i : {kReceiveRing, kTransmitRing}) {
      if (!missing.empty()) break;
      const vhost_user::Vring& vring = state.vrings[i];
      if (vring.size == 0 || !vring.addressed) {
        missing = absl::StrCat("has not set up ring ", i);
      } else if (!vring.started) {
        missing = absl::StrCat("has not started ring ", i);
      } else if (!vring.enabled) {
        missing = absl::StrCat("has not enabled ring ", i);
      } else if (!rings_[i].trouble.empty()) {
        return rings_[i].trouble;
      }
    }
  }
  if (missing.empty()) return "";
  return absl::StrCat("the front-end ", missing, "; its last message was ",
                      session_->last_request());
}

QueueStatus VhostUserPort::queue_status(unsigned index) const {
  QueueStatus status;
  status.index = index;
  for (unsigned worker = 0; worker < services_.workers; ++worker) {
    const QueueCounters& part = counters(index)[worker];
    status.packets += part.packets.value();
    status.notifications_sent += part.notifications_sent.value();
    status.notifications_suppressed += part.notifications_suppressed.value();
    status.notifications_full += part.notifications_full.value();
  }
  if (!is_receive(index) && rings_[index].attached) {
    status.worker = static_cast<int>(worker_of(index));
  }
  if (!session_) return status;
  const vhost_user::Vring& vring = session_->state().vrings[index];
  status.size = vring.size;
  status.enabled = vring.enabled;
  status.running = rings_[index].attached;
  status.quarantined = rings_[index].quarantined;
  if (rings_[index].attached) status.available = rings_[index].queue->available();
  return status;
}

// Over all receive rings, or all transmit rings.
DirectionCounters VhostUserPort::direction(unsigned first_ring) const {
  DirectionCounters total;
  for (unsigned ring = first_ring; ring < rings_.size(); ring += 2) {
    for (unsigned worker = 0; worker < services_.workers; ++worker) {
      const QueueCounters& part = counters(ring)[worker];
      total.packets += part.packets.value();
      total.bytes += part.bytes.value();
      for (std::size_t reason = 0; reason < kDropReasonCount; ++reason) {
        total.dropped[reason] += part.dropped[reason].value();
      }
    }
  }
  return total;
}

PortStatus VhostUserPort::status() const {
  PortStatus status;
  status.config = config_;
  status.state = state_;
  status.state_since = state_since_;
  switch (state_) {
    case PortState::kFailed:
      status.state_reason = listen_error_;
      break;
    case PortState::kListening:
      status.state_reason = last_ending_;
      break;
    case PortState::kNegotiating:
      status.state_reason = missing_for_up();
      break;
    case PortState::kQuarantined:
      for (const Ring& ring : rings_) {
        if (ring.quarantined) status.state_reason = ring.trouble;
      }
      break;
    case PortState::kUp:
      // Of a further pair, which the state says nothing of.
      for (const Ring& ring : rings_) {
        if (!ring.trouble.empty()) status.state_reason = ring.trouble;
      }
      break;
  }
  status.receive = direction(kTransmitRing);
  status.transmit = direction(kReceiveRing);
  status.offered_features = virtq::kDeviceFeatures;
  status.connections = connections_;
  status.protocol_violations = violations_;
  if (session_) {
    const vhost_user::SessionState& state = session_->state();
    status.negotiated_features = state.features;
    status.protocol_features = state.protocol_features;
    if (state.memory) {
      status.memory_regions = state.memory->regions().size();
      status.memory_bytes = state.memory->total_bytes();
    }
  }
  for (unsigned i = 0; i < rings_.size(); ++i) status.queues.push_back(queue_status(i));
  return status;
}

}  // namespace vswitch::dataplane
