#include "dataplane/os/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>

namespace vswitch {
namespace {

std::atomic<LogLevel> threshold{LogLevel::kInfo};

constexpr std::array<std::string_view, 5> kNames = {"trace", "debug", "info", "warning", "error"};

void append_time(std::string& out) {
  using std::chrono::microseconds;
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<microseconds>(since_epoch).count();
  const std::time_t seconds = static_cast<std::time_t>(micros / 1'000'000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[48];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  out.append(text, length);
  std::snprintf(text, sizeof text, ".%06uZ ", static_cast<unsigned>(micros % 1'000'000));
  out += text;
}

}  // namespace

void set_log_level(LogLevel level) { threshold.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) { return level >= threshold.load(std::memory_order_relaxed); }

std::string_view log_level_name(LogLevel level) { return kNames[static_cast<std::size_t>(level)]; }

std::optional<LogLevel> parse_log_level(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

void log(LogLevel level, std::string_view room, std::string_view message) {
  if (!log_enabled(level)) return;
  std::string line;
  line.reserve(64 + room.size() + message.size());
  append_time(line);
  const std::string_view name = log_level_name(level);
  line += name;
  line.append(name.size() < 8 ? 8 - name.size() : 1, ' ');
  line += room;
  line += ' ';
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  line += '\n';
  // A log that cannot be written must not stop the switch: the result is of no use here.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace vswitch
