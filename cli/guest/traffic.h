// One run of vswitch-guest: the loop that sends and receives until it is over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cli/guest/accounting.h"
#include "cli/guest/guest_nic.h"
#include "cli/guest/options.h"
#include "cli/guest/pacer.h"
#include "cli/guest/report.h"
#include "cli/guest/test_frame.h"

namespace vswitch::guest {

// One thread. Nothing is allocated per frame.
class Traffic {
 public:
  // `nic` runs; `stop` ends the run early, with a report.
  Traffic(const Options& options, GuestNic& nic, const std::atomic<bool>& stop);

  // Until the options say it is over. An error means the switch is gone for good, or the peer did
  // not appear; what was counted until then is in report().
  absl::Status run();
  Report report() const;

 private:
  static constexpr std::size_t kBurst = 32;

  enum class Phase { kWaitForPeer, kSending, kLingering, kReceiving, kOver };

  struct ControlFrame {
    MacKey destination;
    Kind kind;
    std::uint64_t sequence;
    std::uint64_t about = 0;  // kAck: the stream
  };

  // Each returns whether there was anything to do.
  bool receive(std::uint64_t now);
  bool reflect(std::uint64_t now);
  bool send(std::uint64_t now);
  bool send_control(std::uint64_t now);

  void account(std::span<const std::byte> frame, std::uint64_t now);
  void account_data(const TestHeader& header, MacKey source, std::size_t bytes, std::uint64_t now);
  // Whether a frame that reflect got goes back.
  bool wants_reflection(std::span<const std::byte> frame);
  void handle_control(const TestHeader& header, MacKey source);
  // `pieces`: of the burst that `frame` belongs to.
  std::span<const std::byte> contiguous(const virtq::ReceivedFrame& frame,
                                        std::span<const virtq::ReceivedPiece> pieces);
  bool for_us(std::span<const std::byte> frame);

  std::uint32_t frames_due(std::uint64_t now);
  std::uint64_t outstanding() const;
  std::uint64_t echoes() const;
  bool everything_arrived() const;
  void announce();
  void queue_control(const ControlFrame& frame);
  void acknowledge();
  absl::Status look_after(std::uint64_t now);
  absl::Status advance_phase(std::uint64_t now);
  void idle(std::uint64_t now);
  void print_progress(std::uint64_t now);

  const Options& options_;
  GuestNic& nic_;
  const std::atomic<bool>& stop_;
  Phase phase_ = Phase::kSending;
  FrameWriter writer_;
  Pacer pacer_;
  Totals totals_;
  StreamTable streams_;
  Histogram latency_;
  std::vector<ControlFrame> control_;
  std::vector<std::byte> gathered_;  // a frame that lay in several buffers
  std::size_t next_size_ = 0;        // into options_.sizes
  bool peer_heard_ = false;
  bool owes_acknowledgements_ = false;
  std::uint64_t acknowledged_ = 0;  // frames of ours that the peer says it has
  std::uint64_t last_waiting_ = 0;  // outstanding() when it last changed, at waiting_since_
  std::uint64_t waiting_since_ = 0;
  std::uint64_t written_off_ = 0;  // echoes that are not waited for any more
  std::uint64_t idle_rounds_ = 0;
  std::uint64_t idle_since_ = 0;
  std::uint64_t announced_reconnects_ = 0;
  // Times in now_ns(); 0: not yet.
  std::uint64_t started_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t phase_started_ = 0;
  std::uint64_t first_sent_ = 0;
  std::uint64_t last_sent_ = 0;
  std::uint64_t first_received_ = 0;
  std::uint64_t last_received_ = 0;
  std::uint64_t next_look_ = 0;
  std::uint64_t next_announcement_ = 0;
  std::uint64_t next_progress_ = 0;
  Totals at_last_progress_;
  std::uint64_t last_progress_ = 0;
};

}  // namespace vswitch::guest
