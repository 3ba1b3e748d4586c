#include "cli/guest/guest_nic.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "dataplane/virtq/features.h"

namespace vswitch::guest {
namespace {

using vhost_user::FrontendSession;

// virtio 1.2, 5.1.2: queue 0 receives, queue 1 transmits.
constexpr std::uint32_t kReceiveIndex = 0;
constexpr std::uint32_t kTransmitIndex = 1;

constexpr absl::Duration kRetryInterval = absl::Milliseconds(20);
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The three parts of a ring, each at the start of a page. A packed ring's descriptors are as long
// as a split one's, and its other parts far smaller.
constexpr std::size_t kPart = 4096;
std::size_t ring_bytes(std::uint32_t size) {
  return round_up(virtq::descriptor_table_bytes(size), kPart) +
         round_up(virtq::avail_ring_bytes(size), kPart) +
         round_up(virtq::used_ring_bytes(size), kPart);
}

std::uint32_t transmit_buffer_bytes(const NicOptions& options) {
  return static_cast<std::uint32_t>(round_up(std::max(options.max_frame + 12, 2048U), 64));
}

// Where everything lies in the guest's memory.
std::size_t transmit_ring_offset(const NicOptions& o) { return ring_bytes(o.queue_size); }
std::size_t receive_buffers_offset(const NicOptions& o) { return 2 * ring_bytes(o.queue_size); }
std::size_t transmit_buffers_offset(const NicOptions& o) {
  return round_up(receive_buffers_offset(o) + std::size_t{o.queue_size} * o.receive_buffer, kPart);
}
std::size_t transmit_tables_offset(const NicOptions& o) {
  return round_up(transmit_buffers_offset(o) + std::size_t{o.queue_size} * transmit_buffer_bytes(o),
                  kPart);
}
std::size_t memory_bytes(const NicOptions& o) {
  return transmit_tables_offset(o) + std::size_t{o.queue_size} * virtq::kTransmitTableBytes;
}

void signal(const UniqueFd& event) {
  const std::uint64_t one = 1;
  // A full eventfd is a pending signal already.
  (void)!::write(event.get(), &one, sizeof(one));
}

void drain(const UniqueFd& event) {
  std::uint64_t count = 0;
  (void)!::read(event.get(), &count, sizeof(count));
}

// A feature that is there because of one flag of the command line.
struct AskedFor {
  std::uint64_t feature;
  const char* flag;
};
std::vector<AskedFor> features_asked_for(const NicOptions& options) {
  std::vector<AskedFor> asked;
  if (options.packed) asked.push_back({virtq::kFeatureRingPacked, "--packed"});
  if (options.in_order) asked.push_back({virtq::kFeatureInOrder, "--in-order"});
  if (options.event_index) asked.push_back({virtq::kFeatureEventIdx, "--event-idx"});
  if (options.tx_layout == virtq::TxLayout::kIndirect) {
    asked.push_back({virtq::kFeatureIndirectDesc, "--tx-layout indirect"});
  }
  if (options.tx_layout == virtq::TxLayout::kPush && !options.version_1) {
    asked.push_back({virtq::kFeatureAnyLayout, "--tx-layout push with --legacy"});
  }
  return asked;
}

vhost_user::FrontendOptions session_options(const NicOptions& options) {
  vhost_user::FrontendOptions session;
  session.wanted_features = virtq::kFeatureAnyLayout;
  if (options.version_1) session.required_features = virtq::kFeatureVersion1;
  for (const AskedFor& asked : features_asked_for(options)) {
    session.required_features |= asked.feature;
  }
  // Something to fall back to for legacy devices that do not take any layout.
  if (options.tx_layout == virtq::TxLayout::kAuto) {
    session.wanted_features |= virtq::kFeatureIndirectDesc;
  }
  if (options.mergeable) session.wanted_features |= virtq::kFeatureMrgRxbuf;
  session.wanted_features |= session.required_features;
  return session;
}

// Adds to a refusal what can be done about it.
absl::Status with_advice(const absl::Status& refusal, const NicOptions& options) {
  std::vector<std::string> flags;
  for (const AskedFor& asked : features_asked_for(options)) {
    for (const std::string& name : virtq::feature_names(asked.feature)) {
      if (absl::StrContains(refusal.message(), name)) flags.emplace_back(asked.flag);
    }
  }
  if (flags.empty()) return refusal;
  return {refusal.code(),
          absl::StrCat(refusal.message(), ". Leave out ", absl::StrJoin(flags, " and "),
                       ", or attach to a port that offers ", flags.size() == 1 ? "it" : "them")};
}

}  // namespace

GuestNic::GuestNic(const NicOptions& options, SharedMemory memory)
    : options_(options), memory_(std::move(memory)) {}

GuestNic::~GuestNic() {
  if (session_ == nullptr || session_->state() != FrontendSession::State::kRunning) return;
  if (session_->stop().ok()) {
    (void)session_->wait_for(FrontendSession::State::kNegotiated, absl::Seconds(1));
  }
}

RingPlace GuestNic::ring_at(std::size_t offset) const {
  const std::uint32_t size = options_.queue_size;
  RingPlace ring;
  ring.size = size;
  ring.descriptors = memory_.data() + offset;
  ring.driver = ring.descriptors + round_up(virtq::descriptor_table_bytes(size), kPart);
  ring.device = ring.driver + round_up(virtq::avail_ring_bytes(size), kPart);
  return ring;
}

absl::Status GuestNic::make_queues() {
  for (UniqueFd* event : {&receive_kick_, &receive_call_, &transmit_kick_, &transmit_call_}) {
    event->reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event->valid()) return absl::ErrnoToStatus(errno, "making an eventfd");
  }
  const auto layout = virtq::resolve_tx_layout(options_.tx_layout, features_);
  if (!layout) {
    return absl::FailedPreconditionError(absl::StrCat(
        "frames cannot be sent as ", virtq::tx_layout_name(options_.tx_layout),
        " with the features negotiated: ", absl::StrJoin(virtq::feature_names(features_), ", ")));
  }
  if (*layout == virtq::TxLayout::kChain && options_.queue_size < 2) {
    return absl::FailedPreconditionError(
        "a frame takes two descriptors with the features negotiated, and --queue-size 1 has one; "
        "ask for at least 2");
  }
  receive_ring_ = ring_at(0);
  transmit_ring_ = ring_at(transmit_ring_offset(options_));
  const auto area = [&](std::size_t offset, std::uint32_t bytes) {
    return virtq::BufferArea{memory_.data() + offset, memory_.guest_address(offset), bytes,
                             options_.queue_size};
  };
  const std::size_t tables = transmit_tables_offset(options_);
  auto transmit_area = area(transmit_buffers_offset(options_), transmit_buffer_bytes(options_));
  transmit_area.tables = {memory_.data() + tables, memory_.guest_address(tables)};
  queues_ = std::make_unique<NicQueues>(
      features_, receive_ring_, area(receive_buffers_offset(options_), options_.receive_buffer),
      transmit_ring_, transmit_area,
      virtq::TransmitOptions{.layout = *layout, .reclaim = options_.reclaim});
  return absl::OkStatus();
}

vhost_user::VringSetup GuestNic::vring(std::uint32_t index, const RingPlace& ring,
                                       std::uint32_t base) const {
  vhost_user::VringSetup setup;
  setup.index = index;
  setup.size = ring.size;
  setup.base = base;
  setup.descriptors = reinterpret_cast<std::uint64_t>(ring.descriptors);
  setup.available = reinterpret_cast<std::uint64_t>(ring.driver);
  setup.used = reinterpret_cast<std::uint64_t>(ring.device);
  setup.kick_fd = index == kReceiveIndex ? receive_kick_.get() : transmit_kick_.get();
  setup.call_fd = index == kReceiveIndex ? receive_call_.get() : transmit_call_.get();
  return setup;
}

absl::Status GuestNic::start(FrontendSession& session, const NicQueues::Bases& bases,
                             absl::Duration timeout) {
  vhost_user::SharedRegion region;
  region.region = {memory_.guest_address(0), memory_.size(),
                   reinterpret_cast<std::uint64_t>(memory_.data()), 0};
  region.fd = memory_.fd();
  const absl::Status started =
      session.start({region}, {vring(kReceiveIndex, receive_ring_, bases.receive),
                               vring(kTransmitIndex, transmit_ring_, bases.transmit)});
  if (!started.ok()) return started;
  const absl::Status running = session.wait_for(FrontendSession::State::kRunning, timeout);
  // Buffers may have been waiting since before the switch knew the rings.
  if (running.ok()) {
    kick_receive();
    kick_transmit();
  }
  return running;
}

absl::StatusOr<std::unique_ptr<GuestNic>> GuestNic::open(const NicOptions& options,
                                                         const std::atomic<bool>& stop) {
  auto memory = SharedMemory::create(memory_bytes(options));
  if (!memory.ok()) return memory.status();
  std::unique_ptr<GuestNic> nic(new GuestNic(options, *std::move(memory)));

  const absl::Time deadline = absl::Now() + options.connect_timeout;
  for (;;) {
    auto socket = vhost_user::connect_to_backend(options.socket);
    if (socket.ok()) {
      nic->session_ =
          std::make_unique<FrontendSession>(*std::move(socket), session_options(options));
      const absl::Status negotiated = nic->session_->wait_for(
          FrontendSession::State::kNegotiated, std::max(deadline - absl::Now(), absl::Seconds(1)));
      if (negotiated.ok()) break;
      // A switch that is just being restarted may drop what it has accepted.
      if (!absl::IsAborted(negotiated) || absl::Now() >= deadline) {
        return with_advice(negotiated, options);
      }
    } else if (!absl::IsUnavailable(socket.status())) {
      return socket.status();
    } else if (absl::Now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(
          socket.status().message(), " (tried for ", absl::FormatDuration(options.connect_timeout),
          "). Does the switch run, and does it have a vhost-user port with this path?"));
    }
    if (stop.load(std::memory_order_relaxed)) return absl::CancelledError("interrupted");
    absl::SleepFor(kRetryInterval);
  }
  nic->features_ = nic->session_->features();
  absl::Status status = nic->make_queues();
  if (status.ok()) {
    status = nic->start(*nic->session_, nic->queues_->fresh_bases(), kAnswerTimeout);
  }
  if (!status.ok()) return status;
  return nic;
}

void GuestNic::kick_receive() { signal(receive_kick_); }
void GuestNic::kick_transmit() { signal(transmit_kick_); }

absl::Status GuestNic::check() {
  if (session_ != nullptr) {
    if (queues_->broken()) {
      return absl::DataLossError(
          "the switch returned a buffer that it does not have, so that where the ring stands is "
          "lost; attach again");
    }
    if (session_->advance() != FrontendSession::State::kFailed) return absl::OkStatus();
    const absl::Status error = session_->error();
    session_.reset();
    if (!options_.reconnect) return error;
    // Not at once: the caller first reads what the old switch has delivered.
    next_attempt_ = absl::Now() + kRetryInterval;
    return absl::OkStatus();
  }
  if (absl::Now() < next_attempt_) return absl::OkStatus();
  next_attempt_ = absl::Now() + kRetryInterval;
  return resume();
}

absl::Status GuestNic::resume() {
  auto socket = vhost_user::connect_to_backend(options_.socket);
  if (!socket.ok()) return absl::OkStatus();
  vhost_user::FrontendOptions same = session_options(options_);
  // The rings go on as they are, so what they were made for must be there again.
  same.wanted_features = features_;
  same.required_features = features_;
  auto session = std::make_unique<FrontendSession>(*std::move(socket), same);
  if (const absl::Status negotiated =
          session->wait_for(FrontendSession::State::kNegotiated, kAnswerTimeout);
      !negotiated.ok()) {
    return absl::IsFailedPrecondition(negotiated) ? negotiated : absl::OkStatus();
  }
  // Nobody touches the rings now.
  if (!start(*session, queues_->resume(), kAnswerTimeout).ok()) return absl::OkStatus();
  session_ = std::move(session);
  ++reconnects_;
  return absl::OkStatus();
}

void GuestNic::wait_for_call(absl::Duration longest) {
  pollfd events[2] = {{receive_call_.get(), POLLIN, 0},
                      {session_ != nullptr ? session_->fd() : -1, POLLIN, 0}};
  const auto limit = std::clamp(longest, absl::ZeroDuration(), absl::Seconds(1));
  const timespec time = absl::ToTimespec(limit);
  ::ppoll(events, 2, &time, nullptr);
  drain(receive_call_);
}

}  // namespace vswitch::guest
