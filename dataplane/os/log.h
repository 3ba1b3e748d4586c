// The log: one line an event, on standard error, `time level room message key=value…`.
//
//   2026-01-31T12:00:00.123456Z info  vhost-user front-end connected port=web
//
// Any thread may log; a line is written by one write(2), so lines never mix. Workers must not log:
// it is a system call. Line breaks and other control characters in a message are replaced, so that
// text from a peer cannot forge a line.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <string_view>

namespace vswitch {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError };

// Lines below this level are dropped. The level at start is kInfo. Any thread, at any time.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

// "trace", "debug", "info", "warning", "error".
std::string_view log_level_name(LogLevel level);
// The reverse; nothing for any other text.
std::optional<LogLevel> parse_log_level(std::string_view name);

// `room` is the part of the program that speaks, e.g. "vhost-user".
void log(LogLevel level, std::string_view room, std::string_view message);

namespace log_internal {

inline void append(std::string& out, std::string_view piece) { out += piece; }
inline void append(std::string& out, char piece) { out += piece; }
// Without it a literal would become a bool, a better conversion than the one to string_view.
inline void append(std::string& out, const char* piece) { out += piece; }
inline void append(std::string& out, bool piece) { out += piece ? "true" : "false"; }
template <typename T>
requires(std::integral<T> || std::floating_point<T>) void append(std::string& out, T piece) {
  out += std::to_string(piece);
}

}  // namespace log_internal

// Texts and numbers, put one after the other: log_info("port", "created port=", id, " mtu=", mtu).
// Nothing is formatted when the level is off.
template <typename... Pieces>
void log_pieces(LogLevel level, std::string_view room, const Pieces&... pieces) {
  if (!log_enabled(level)) return;
  std::string message;
  (log_internal::append(message, pieces), ...);
  log(level, room, message);
}

template <typename... Pieces>
void log_trace(std::string_view room, const Pieces&... pieces) {
  log_pieces(LogLevel::kTrace, room, pieces...);
}
template <typename... Pieces>
void log_debug(std::string_view room, const Pieces&... pieces) {
  log_pieces(LogLevel::kDebug, room, pieces...);
}
template <typename... Pieces>
void log_info(std::string_view room, const Pieces&... pieces) {
  log_pieces(LogLevel::kInfo, room, pieces...);
}
template <typename... Pieces>
void log_warning(std::string_view room, const Pieces&... pieces) {
  log_pieces(LogLevel::kWarning, room, pieces...);
}
template <typename... Pieces>
void log_error(std::string_view room, const Pieces&... pieces) {
  log_pieces(LogLevel::kError, room, pieces...);
}

}  // namespace vswitch
