#include "cli/guest/units.h"

#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace vswitch::guest {
namespace {

// Abseil of this generation has a string_view of its own.
absl::string_view view(std::string_view text) { return {text.data(), text.size()}; }

absl::StatusOr<std::uint32_t> parse_size(absl::string_view text) {
  constexpr std::uint32_t kSmallest = kMinFrameBytes + kCheckSequenceBytes;
  constexpr std::uint32_t kLargest = kMaxFrameBytes + kCheckSequenceBytes;
  std::uint32_t size = 0;
  if (!absl::SimpleAtoi(text, &size) || size < kSmallest || size > kLargest) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a frame size from ", kSmallest, " to ", kLargest));
  }
  return size - kCheckSequenceBytes;
}

}  // namespace

absl::StatusOr<std::vector<std::uint32_t>> parse_sizes(std::string_view text) {
  // The "simple IMIX" of 7:4:1 of 64, 570 and 1518 bytes, spread so that each stretch of a few
  // frames has about that mix.
  if (text == "imix")
    return std::vector<std::uint32_t>{60, 566, 60, 60, 566, 60, 60, 566, 60, 1514, 60, 566};
  const std::vector<std::string> ends = absl::StrSplit(view(text), '-');
  if (ends.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", view(text), "\" is neither a size, a range of sizes nor imix"));
  }
  const auto first = parse_size(ends.front());
  if (!first.ok()) return first.status();
  const auto last = parse_size(ends.back());
  if (!last.ok()) return last.status();
  if (*last < *first) {
    return absl::InvalidArgumentError(
        absl::StrCat("the range \"", view(text), "\" ends before it starts"));
  }
  std::vector<std::uint32_t> sizes;
  for (std::uint32_t size = *first; size <= *last; ++size) sizes.push_back(size);
  return sizes;
}

absl::StatusOr<Rate> parse_rate(std::string_view text) {
  if (text == "none" || text == "0") return Rate{};
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", view(text), "\" is not a rate such as 100kpps, 1.5Mpps, 1Gbit or none"));
  };
  const std::size_t digits = text.find_first_not_of("0123456789.");
  if (digits == 0 || digits == std::string_view::npos) return bad();
  double number = 0;
  if (!absl::SimpleAtod(view(text.substr(0, digits)), &number) || !(number > 0)) return bad();
  std::string_view unit = text.substr(digits);
  double factor = 1;
  switch (unit.front()) {
    case 'k':
    case 'K':
      factor = 1e3;
      break;
    case 'm':
    case 'M':
      factor = 1e6;
      break;
    case 'g':
    case 'G':
      factor = 1e9;
      break;
    default:
      break;
  }
  if (factor > 1) unit.remove_prefix(1);
  Rate rate;
  if (unit == "pps") {
    rate.frames_per_second = number * factor;
  } else if (unit == "bit" || unit == "bps" || unit == "bit/s") {
    rate.bits_per_second = number * factor;
  } else {
    return bad();
  }
  return rate;
}

absl::StatusOr<absl::Duration> parse_duration(std::string_view text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(view(text), &seconds) && std::isfinite(seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(view(text), &duration) || duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", view(text), "\" is not a duration such as 10s, 500ms or 1m30s"));
  }
  if (duration < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", view(text), "\" is a negative duration"));
  }
  return duration;
}

absl::StatusOr<MacKey> parse_mac(std::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(view(text), ':');
  MacKey mac = 0;
  bool good = parts.size() == 6;
  for (const std::string& part : parts) {
    std::uint32_t byte = 0;
    good = good && part.size() == 2 && absl::ascii_isxdigit(part[0]) &&
           absl::ascii_isxdigit(part[1]) && absl::SimpleHexAtoi(part, &byte);
    mac = mac << 8 | byte;
  }
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", view(text), "\" is not an address such as 02:00:00:00:00:01"));
  }
  return mac;
}

std::string format_mac(MacKey mac) {
  const auto b = mac_bytes(mac);
  return absl::StrFormat("%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5]);
}

std::string format_quantity(double value) {
  constexpr std::array<const char*, 5> kPrefixes = {"", "k", "M", "G", "T"};
  std::size_t prefix = 0;
  while (value >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f%s", prefix == 0 && value == std::floor(value) ? 0 : decimals, value,
                         kPrefixes[prefix]);
}

std::string format_nanoseconds(double nanoseconds) {
  constexpr std::array<const char*, 4> kUnits = {"ns", "us", "ms", "s"};
  std::size_t unit = 0;
  while (nanoseconds >= 999.5 && unit + 1 < kUnits.size()) {
    nanoseconds /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || nanoseconds >= 99.95 ? 0 : nanoseconds >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f%s", decimals, nanoseconds, kUnits[unit]);
}

}  // namespace vswitch::guest
