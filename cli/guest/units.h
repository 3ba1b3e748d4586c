// Values as people write them on the command line: frame sizes, rates, durations, addresses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dataplane/net_header/ethernet.h"

namespace vswitch::guest {

// Bytes of an Ethernet frame on the ring: without the 4 bytes of the frame check sequence, which
// virtio frames do not carry. Testers' "64" and "1518" are 60 and 1514 here.
inline constexpr std::uint32_t kMinFrameBytes = 60;
inline constexpr std::uint32_t kMaxFrameBytes = 65'535;
// Testers count a frame with its check sequence, which no ring carries.
inline constexpr std::uint32_t kCheckSequenceBytes = 4;

// The sizes to send, one after the other, then again from the start.
// "64": one size. "64-1518": each from 64 to 1518. "imix": 7 of 64, 4 of 570 and 1 of 1518 bytes,
// mixed. What is written counts the check sequence; what is returned does not: from kMinFrameBytes
// to kMaxFrameBytes.
absl::StatusOr<std::vector<std::uint32_t>> parse_sizes(std::string_view text);

// How fast to send. Both 0: as fast as it goes.
struct Rate {
  double frames_per_second = 0;
  double bits_per_second = 0;  // of frame bytes as in kMinFrameBytes
  bool unlimited() const { return frames_per_second <= 0 && bits_per_second <= 0; }
};
// "100kpps", "1.5Mpps", "1000pps", "1Gbit", "500Mbit"; "0" or "none": as fast as it goes.
absl::StatusOr<Rate> parse_rate(std::string_view text);

// "10s", "500ms", "1m30s"; a bare number is seconds. Not negative.
absl::StatusOr<absl::Duration> parse_duration(std::string_view text);

// "02:00:00:00:00:01"
absl::StatusOr<MacKey> parse_mac(std::string_view text);
std::string format_mac(MacKey mac);

// 1234567 -> "1.23M"; three significant digits.
std::string format_quantity(double value);
// Nanoseconds as "850ns", "12.3us", "4.56ms", "1.20s".
std::string format_nanoseconds(double nanoseconds);

}  // namespace vswitch::guest
