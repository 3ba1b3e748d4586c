// The result of a run, as a table for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/guest/accounting.h"
#include "cli/guest/options.h"

namespace vswitch::guest {

struct Totals {
  // Data frames. In reflect: frames sent back.
  std::uint64_t sent = 0;
  std::uint64_t sent_bytes = 0;
  // Data frames that were whole and for us, duplicates included. In reflect: all frames for us.
  std::uint64_t received = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t damaged = 0;     // our frames, but changed or cut off
  std::uint64_t foreign = 0;     // not our frames (a Linux guest's, for example)
  std::uint64_t not_for_us = 0;  // flooded frames for somebody else
  std::uint64_t tx_full = 0;     // frames that were due and found the transmit ring full
  // Frames the guests need for themselves (greetings, ends of streams, acknowledgements); in none
  // of the numbers above. With `sent` and with `received`, foreign and damaged: all a switch
  // counts.
  std::uint64_t control_sent = 0;
  std::uint64_t control_received = 0;
  std::uint64_t send_cycles = 0;     // spent on sending and on receiving frames,
  std::uint64_t receive_cycles = 0;  // polls that found nothing not counted
};

struct Report {
  Command command = Command::kSink;
  MacKey mac = 0;
  std::vector<std::string> features;
  std::string tx_layout;       // how frames were sent, see virtq::TxLayout
  double elapsed_seconds = 0;  // from ready to the end
  double send_seconds = 0;     // from the first to the last frame sent
  double receive_seconds = 0;  // from the first to the last frame received
  Totals totals;
  std::vector<Stream> streams;  // received, by sender
  std::uint64_t lost = 0;       // of the streams; in ping: echoes that did not come back
  std::uint64_t duplicates = 0;
  std::uint64_t reordered = 0;
  Histogram latency;  // ping: round trip; else one way, from the sender's clock
  std::uint64_t reconnects = 0;
  std::uint64_t bad_used_elements = 0;  // what the switch returned and must not have
};

std::string to_json(const Report& report);
std::string to_table(const Report& report);

// One line about the time since the last one.
struct Progress {
  double seconds = 0;                                                        // since the start
  double interval_seconds = 0;                                               // since the last line
  std::uint64_t sent = 0, sent_bytes = 0, received = 0, received_bytes = 0;  // in the interval
  std::uint64_t lost = 0, damaged = 0;                                       // since the start
};
std::string to_line(const Progress& progress);

}  // namespace vswitch::guest
