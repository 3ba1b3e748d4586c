// The flags of vswitchd, from the command line and from the configuration file.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/dataplane.h"
#include "dataplane/os/log.h"
#include "proto/endpoint.h"

namespace vswitch::server {

inline constexpr char kDefaultMetricsListen[] = "127.0.0.1:9117";

struct Flags {
  std::vector<api::Endpoint> listen;  // at least one
  bool has_metrics = true;
  api::Endpoint metrics_listen;  // if has_metrics
  std::string run_dir;           // absolute
  std::string state_dir;         // absolute
  // Directories that were not given, and so are ours to create with their parents.
  bool is_default_run_dir = false;
  bool is_default_state_dir = false;
  bool is_default_listen = false;
  dataplane::Options dataplane;
  LogLevel log_level = LogLevel::kInfo;
};

// What a command line leads to: a start, or (--help, --version, a mistake) an exit.
struct ParsedFlags {
  bool should_exit = false;
  int exit_code = 0;
  std::string output;  // for standard output if exit_code is 0, else for standard error
  Flags flags;
};

ParsedFlags parse_flags(int argc, const char* const* argv);

// "64M", "1G", "65536": bytes; K, M, G are powers of 1024, with or without "iB".
absl::StatusOr<std::uint64_t> parse_size(const std::string& text);
// "1-3,5": CPU numbers, each once, in the order given.
absl::StatusOr<std::vector<unsigned>> parse_cpu_list(const std::string& text);

// $XDG_STATE_HOME/vswitch or ~/.local/state/vswitch; /var/lib/vswitch for root.
std::string default_state_dir();

}  // namespace vswitch::server
