#include "cli/guest/traffic.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "cli/guest/clock.h"
#include "dataplane/virtq/features.h"

namespace vswitch::guest {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kLookInterval = kMillisecond;
constexpr std::uint64_t kAnnounceInterval = 100 * kMillisecond;
constexpr std::uint64_t kLongestLinger = 5'000 * kMillisecond;
constexpr std::size_t kMaxControlFrames = 64;
// Idle rounds before the processor is offered to others, and idle time before sleeping.
constexpr std::uint64_t kRoundsBeforeYield = 4;
constexpr std::uint64_t kPollBeforeSleep = 2 * kMillisecond;

double average(const std::vector<std::uint32_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 0.0) / static_cast<double>(sizes.size());
}

std::uint64_t nanoseconds(absl::Duration duration) {
  return duration == absl::InfiniteDuration()
             ? UINT64_MAX
             : static_cast<std::uint64_t>(absl::ToInt64Nanoseconds(duration));
}

double seconds_between(std::uint64_t from, std::uint64_t to) {
  return to > from ? static_cast<double>(to - from) / 1e9 : 0;
}

bool sends(Command command) { return command == Command::kGenerate || command == Command::kPing; }

}  // namespace

Traffic::Traffic(const Options& options, GuestNic& nic, const std::atomic<bool>& stop)
    : options_(options),
      nic_(nic),
      stop_(stop),
      writer_(options.mac, options.destination, random_stream(),
              *std::max_element(options.sizes.begin(), options.sizes.end()), options.nic.queue_size,
              options.command == Command::kGenerate && options.window > 0 ? Kind::kWindowData
                                                                          : Kind::kData),
      pacer_(options.rate, average(options.sizes)) {
  control_.reserve(kMaxControlFrames);
  gathered_.reserve(std::size_t{kMaxFrameBytes} + 1);
}

absl::Status Traffic::run() {
  started_ = now_ns();
  phase_started_ = last_progress_ = started_;
  next_progress_ = started_ + nanoseconds(options_.interval);
  phase_ = !sends(options_.command)                    ? Phase::kReceiving
           : options_.wait_peer > absl::ZeroDuration() ? Phase::kWaitForPeer
                                                       : Phase::kSending;
  announce();
  absl::Status status;
  while (phase_ != Phase::kOver && status.ok()) {
    const std::uint64_t now = now_ns();
    bool worked = options_.command == Command::kReflect ? reflect(now) : receive(now);
    worked |= !control_.empty() && send_control(now);
    // Without a switch frames would only grow old in the ring.
    worked |= phase_ == Phase::kSending && nic_.up() && send(now);
    status = advance_phase(now);
    if (status.ok() && now >= next_look_) status = look_after(now);
    if (worked) {
      idle_rounds_ = 0;
    } else {
      idle(now);
    }
  }
  ended_ = now_ns();
  return status;
}

bool Traffic::for_us(std::span<const std::byte> frame) {
  if (frame.size() < kEthernetHeaderBytes) {
    ++totals_.damaged;
    return false;
  }
  const MacKey destination = load_mac(frame.data());
  if (destination == options_.mac || is_group(destination)) return true;
  ++totals_.not_for_us;
  return false;
}

std::span<const std::byte> Traffic::contiguous(const virtq::ReceivedFrame& frame,
                                               std::span<const virtq::ReceivedPiece> pieces) {
  pieces = pieces.subspan(frame.first, frame.count);
  if (pieces.size() == 1) return {pieces[0].data, pieces[0].length};
  gathered_.clear();
  for (const auto& piece : pieces) {
    // Longer than any frame can be: the rest of what the device claims is not looked at.
    const std::size_t room = gathered_.capacity() - gathered_.size();
    gathered_.insert(gathered_.end(), piece.data,
                     piece.data + std::min<std::size_t>(piece.length, room));
  }
  return gathered_;
}

bool Traffic::receive(std::uint64_t now) {
  const std::uint64_t before = cycles();
  std::array<virtq::ReceivedFrame, kBurst> frames;
  const std::uint32_t count = nic_.queues().read(frames);
  if (count == 0) return false;
  // A round trip must not end before the frame was there.
  now = now_ns();
  const auto pieces = nic_.queues().pieces();
  for (std::uint32_t i = 0; i < count; ++i) account(contiguous(frames[i], pieces), now);
  if (nic_.queues().release()) nic_.kick_receive();
  if (owes_acknowledgements_) acknowledge();
  last_received_ = now;
  totals_.receive_cycles += cycles() - before;
  return true;
}

void Traffic::account(std::span<const std::byte> frame, std::uint64_t now) {
  if (!for_us(frame)) return;
  TestHeader header;
  switch (parse_frame(frame, options_.verify, header)) {
    case Verdict::kForeign:
      ++totals_.foreign;
      return;
    case Verdict::kDamaged:
      ++totals_.damaged;
      return;
    case Verdict::kGood:
      break;
  }
  const MacKey source = load_mac(frame.data() + 6);
  if (header.kind == Kind::kData || header.kind == Kind::kWindowData) {
    account_data(header, source, frame.size(), now);
  } else {
    handle_control(header, source);
  }
}

void Traffic::account_data(const TestHeader& header, MacKey source, std::size_t bytes,
                           std::uint64_t now) {
  if (first_received_ == 0) first_received_ = now;
  if (source == options_.destination) peer_heard_ = true;
  ++totals_.received;
  totals_.received_bytes += bytes;
  Stream* stream = streams_.find(header.stream, source);
  if (stream == nullptr) return;
  ++stream->frames;
  stream->bytes += bytes;
  if (header.kind == Kind::kWindowData)
    stream->owes_acknowledgement = owes_acknowledgements_ = true;
  const auto arrival = stream->sequence.record(header.sequence);
  const bool timed = options_.command != Command::kPing || header.stream == writer_.stream();
  if (timed && arrival != SequenceTracker::Arrival::kDuplicate && now >= header.time) {
    latency_.add(now - header.time);
  }
}

void Traffic::handle_control(const TestHeader& header, MacKey source) {
  ++totals_.control_received;
  if (source == options_.mac) return;
  if (source == options_.destination) peer_heard_ = true;
  if (header.kind == Kind::kHello) {
    queue_control({source, Kind::kHelloReply, 0});
  } else if (header.kind == Kind::kAck) {
    // Never more than were sent, whatever the peer says.
    if (header.time == writer_.stream() && header.sequence <= totals_.sent) {
      acknowledged_ = std::max(acknowledged_, header.sequence);
    }
  } else if (header.kind == Kind::kEnd && options_.command != Command::kReflect) {
    if (Stream* stream = streams_.find(header.stream, source)) stream->total = header.sequence;
  }
}

bool Traffic::wants_reflection(std::span<const std::byte> frame) {
  if (!for_us(frame)) return false;
  // Frames to everybody are not for us alone to answer.
  const bool reflected = !is_group(load_mac(frame.data()));
  TestHeader header;
  if (parse_frame(frame, Verify::kHeader, header) != Verdict::kGood) return reflected;
  if (header.kind == Kind::kData || header.kind == Kind::kWindowData) return reflected;
  handle_control(header, load_mac(frame.data() + 6));
  return false;
}

bool Traffic::reflect(std::uint64_t now) {
  const std::uint64_t before = cycles();
  // No more than can be sent back: the rest waits in the ring.
  std::array<virtq::TransmitSlot, kBurst> slots;
  const std::uint32_t room = nic_.queues().reserve(slots);
  std::array<virtq::ReceivedFrame, kBurst> frames;
  const std::uint32_t count = nic_.queues().read(std::span(frames).first(room));
  if (count == 0) return false;
  const auto pieces = nic_.queues().pieces();
  std::uint32_t used = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto frame = contiguous(frames[i], pieces);
    if (!wants_reflection(frame) || frame.size() > slots[used].capacity) continue;
    if (first_received_ == 0) first_received_ = first_sent_ = now;
    ++totals_.received;
    totals_.received_bytes += frame.size();
    virtq::TransmitSlot& slot = slots[used++];
    std::memcpy(slot.data, frame.data() + 6, 6);
    std::memcpy(slot.data + 6, frame.data(), 6);
    std::memcpy(slot.data + 12, frame.data() + 12, frame.size() - 12);
    slot.length = static_cast<std::uint32_t>(frame.size());
    totals_.sent_bytes += frame.size();
  }
  last_received_ = now;
  // Both directions are one piece of work here; half of it is each one's.
  const auto spent = [&] { return (cycles() - before) / 2; };
  if (nic_.queues().release()) nic_.kick_receive();
  if (used > 0) {
    if (nic_.queues().commit(std::span(slots).first(used))) nic_.kick_transmit();
    totals_.sent += used;
    last_sent_ = now;
    const std::uint64_t half = spent();
    totals_.receive_cycles += half;
    totals_.send_cycles += half;
  }
  return true;
}

std::uint64_t Traffic::echoes() const {
  for (const Stream& stream : streams_.streams()) {
    if (stream.id == writer_.stream()) return stream.sequence.unique();
  }
  return 0;
}

std::uint64_t Traffic::outstanding() const {
  // What a reflect sent back has arrived as well.
  const std::uint64_t settled = std::max(echoes(), acknowledged_) + written_off_;
  return totals_.sent > settled ? totals_.sent - settled : 0;
}

std::uint32_t Traffic::frames_due(std::uint64_t now) {
  std::uint64_t due = std::min<std::uint64_t>(pacer_.due(now), kBurst);
  if (options_.count > 0) due = std::min(due, options_.count - totals_.sent);
  if (options_.window > 0) {
    std::uint64_t waiting = outstanding();
    if (waiting == 0 || waiting != last_waiting_) {
      last_waiting_ = waiting;
      waiting_since_ = now;
    } else if (now - waiting_since_ >= nanoseconds(options_.reply_timeout)) {
      written_off_ += waiting;
      waiting = 0;
    }
    due = std::min<std::uint64_t>(due, options_.window > waiting ? options_.window - waiting : 0);
  }
  return static_cast<std::uint32_t>(due);
}

bool Traffic::send(std::uint64_t now) {
  const std::uint32_t due = frames_due(now);
  if (due == 0) return false;
  const std::uint64_t before = cycles();
  std::array<virtq::TransmitSlot, kBurst> slots;
  const std::uint32_t count = nic_.queues().reserve(std::span(slots).first(due));
  if (count < due) ++totals_.tx_full;
  if (count == 0) return false;
  const std::uint64_t time = now_ns();
  for (std::uint32_t i = 0; i < count; ++i) {
    virtq::TransmitSlot& slot = slots[i];
    slot.length = options_.sizes[next_size_];
    if (++next_size_ == options_.sizes.size()) next_size_ = 0;
    writer_.write(slot.data, slot.buffer, slot.length, totals_.sent++, time);
    totals_.sent_bytes += slot.length;
  }
  if (nic_.queues().commit(std::span(slots).first(count))) nic_.kick_transmit();
  pacer_.sent(count);
  if (first_sent_ == 0) first_sent_ = time;
  last_sent_ = time;
  totals_.send_cycles += cycles() - before;
  return true;
}

bool Traffic::send_control(std::uint64_t now) {
  std::array<virtq::TransmitSlot, kBurst> slots;
  const std::uint32_t count =
      nic_.queues().reserve(std::span(slots).first(std::min(slots.size(), control_.size())));
  if (count == 0) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    slots[i].length = kMinFrameBytes;
    const ControlFrame& frame = control_[i];
    writer_.write_control(slots[i].data, slots[i].buffer, frame.destination, frame.kind,
                          frame.sequence, frame.kind == Kind::kAck ? frame.about : now);
  }
  control_.erase(control_.begin(), control_.begin() + count);
  totals_.control_sent += count;
  if (nic_.queues().commit(std::span(slots).first(count))) nic_.kick_transmit();
  return true;
}

void Traffic::acknowledge() {
  owes_acknowledgements_ = false;
  for (Stream& stream : streams_.streams()) {
    if (!stream.owes_acknowledgement) continue;
    stream.owes_acknowledgement = false;
    // One that could not leave yet says the newest number when it does.
    const auto waiting =
        std::find_if(control_.begin(), control_.end(), [&](const ControlFrame& frame) {
          return frame.kind == Kind::kAck && frame.about == stream.id;
        });
    if (waiting != control_.end()) {
      waiting->sequence = stream.sequence.unique();
    } else {
      queue_control({stream.source, Kind::kAck, stream.sequence.unique(), stream.id});
    }
  }
}

void Traffic::queue_control(const ControlFrame& frame) {
  if (control_.size() < kMaxControlFrames) control_.push_back(frame);
}

void Traffic::announce() {
  queue_control({kBroadcast, Kind::kHello, 0});
  next_announcement_ = now_ns() + kAnnounceInterval;
}

bool Traffic::everything_arrived() const {
  if (streams_.streams().empty()) return false;
  return std::all_of(streams_.streams().begin(), streams_.streams().end(),
                     [](const Stream& stream) { return stream.total && stream.lost() == 0; });
}

absl::Status Traffic::advance_phase(std::uint64_t now) {
  const bool interrupted = stop_.load(std::memory_order_relaxed);
  const std::uint64_t in_phase = now > phase_started_ ? now - phase_started_ : 0;
  const std::uint64_t heard = std::max(last_received_, phase_started_);
  const std::uint64_t quiet = now > heard ? now - heard : 0;
  const auto enter = [&](Phase phase) {
    phase_ = phase;
    phase_started_ = now;
  };
  switch (phase_) {
    case Phase::kWaitForPeer:
      if (interrupted) {
        enter(Phase::kOver);
      } else if (peer_heard_) {
        enter(Phase::kSending);
      } else if (in_phase >= nanoseconds(options_.wait_peer)) {
        return absl::NotFoundError(
            absl::StrCat("no vswitch-guest with the address ", format_mac(options_.destination),
                         " answered within ", absl::FormatDuration(options_.wait_peer),
                         ". Is it running, and on the same bridge?"));
      }
      break;
    case Phase::kSending:
      if (interrupted || in_phase >= nanoseconds(options_.duration) ||
          (options_.count > 0 && totals_.sent >= options_.count)) {
        queue_control({options_.destination, Kind::kEnd, totals_.sent});
        enter(Phase::kLingering);
      }
      break;
    case Phase::kLingering: {
      if (in_phase >= kLongestLinger) {
        enter(Phase::kOver);
        break;
      }
      // What is still in our ring would be lost with us.
      nic_.queues().reclaim();
      if (!control_.empty() || nic_.queues().in_flight() > 0) break;
      const bool ping = options_.command == Command::kPing;
      const bool complete = ping ? echoes() >= totals_.sent : everything_arrived();
      if (complete || quiet >= nanoseconds(ping ? options_.reply_timeout : options_.linger)) {
        enter(Phase::kOver);
      }
      break;
    }
    case Phase::kReceiving:
      if (interrupted || in_phase >= nanoseconds(options_.duration) ||
          (options_.count > 0 && totals_.received >= options_.count) ||
          quiet >= nanoseconds(options_.idle_exit)) {
        enter(Phase::kOver);
      }
      break;
    case Phase::kOver:
      break;
  }
  return absl::OkStatus();
}

absl::Status Traffic::look_after(std::uint64_t now) {
  next_look_ = now + kLookInterval;
  if (phase_ == Phase::kWaitForPeer && now >= next_announcement_) announce();
  if (options_.progress && now >= next_progress_) print_progress(now);
  const bool was_up = nic_.up();
  const absl::Status status = nic_.check();
  if (was_up && !nic_.up()) std::fputs("the switch is gone; waiting for it\n", stderr);
  if (nic_.reconnects() != announced_reconnects_) {
    announced_reconnects_ = nic_.reconnects();
    std::fputs("the switch is back\n", stderr);
    // It has to learn the address anew.
    announce();
  }
  return status;
}

void Traffic::idle(std::uint64_t now) {
  if (idle_rounds_++ == 0) idle_since_ = now;
  for (int i = 0; i < 8; ++i) pause_cpu();
  if (options_.wait_on_call && now - idle_since_ > kPollBeforeSleep) {
    std::uint64_t wake = now + 50 * kMillisecond;
    if (phase_ == Phase::kSending && pacer_.next() > now) wake = std::min(wake, pacer_.next());
    nic_.queues().suppress_receive_calls(false);
    // What came just before calls were wanted is not called for.
    const bool worked = options_.command == Command::kReflect ? reflect(now) : receive(now);
    if (worked) {
      idle_rounds_ = 0;
    } else {
      nic_.wait_for_call(absl::Nanoseconds(wake - now));
    }
    nic_.queues().suppress_receive_calls(true);
  } else if (idle_rounds_ > kRoundsBeforeYield) {
    // The peer may be another guest on the same processor.
    ::sched_yield();
  }
}

void Traffic::print_progress(std::uint64_t now) {
  const Report so_far = report();
  Progress progress;
  progress.seconds = seconds_between(started_, now);
  progress.interval_seconds = seconds_between(last_progress_, now);
  progress.sent = totals_.sent - at_last_progress_.sent;
  progress.sent_bytes = totals_.sent_bytes - at_last_progress_.sent_bytes;
  progress.received = totals_.received - at_last_progress_.received;
  progress.received_bytes = totals_.received_bytes - at_last_progress_.received_bytes;
  // Echoes on their way are not lost.
  progress.lost = options_.command == Command::kPing ? written_off_ : so_far.lost;
  progress.damaged = totals_.damaged;
  std::fputs(to_line(progress).c_str(), stderr);
  at_last_progress_ = totals_;
  last_progress_ = now;
  next_progress_ += nanoseconds(options_.interval);
}

Report Traffic::report() const {
  Report report;
  report.command = options_.command;
  report.mac = options_.mac;
  report.features = virtq::feature_names(nic_.features());
  report.tx_layout = virtq::tx_layout_name(nic_.queues().tx_layout());
  report.elapsed_seconds = seconds_between(started_, ended_);
  report.send_seconds = seconds_between(first_sent_, last_sent_);
  report.receive_seconds = seconds_between(first_received_, last_received_);
  report.totals = totals_;
  report.streams = streams_.streams();
  for (Stream& stream : report.streams) {
    // Our own frames, sent back to us: their number needs no end-of-stream frame.
    if (stream.id == writer_.stream()) stream.total = totals_.sent;
    report.lost += stream.lost();
    report.duplicates += stream.sequence.duplicates();
    report.reordered += stream.sequence.reordered();
  }
  if (options_.command == Command::kPing) report.lost = totals_.sent - echoes();
  report.latency = latency_;
  report.reconnects = nic_.reconnects();
  report.bad_used_elements = nic_.queues().bad_used_elements();
  return report;
}

}  // namespace vswitch::guest
