// What the user asked for: the grammar of vswitchctl.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "proto/endpoint.h"

namespace vswitch::ctl {

// Exit codes; scripts depend on them.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;    // the call failed
inline constexpr int kExitUsage = 2;     // the command line makes no sense
inline constexpr int kExitNotFound = 3;  // what it names does not exist

enum class Verb { kCreate, kGet, kDescribe, kDelete };
enum class Noun { kBridge, kPort, kFdb, kWorker, kSystem };
enum class Format { kDefault, kTable, kWide, kJson, kYaml, kName };

struct CommandLine {
  Verb verb = Verb::kGet;
  Noun noun = Noun::kPort;
  std::string name;               // empty: all (get only)
  std::string bridge;             // create port
  std::string vhost_user;         // create port: socket path
  std::uint32_t mtu = 0;          // create port; 0: the switch's default
  std::uint32_t queue_pairs = 0;  // create port; 0: the switch's default

  api::Endpoint server;
  absl::Duration timeout = absl::Seconds(10);
  Format format = Format::kDefault;
  bool has_headers = true;
};

struct ParsedCommandLine {
  bool should_exit = false;
  int exit_code = 0;
  std::string output;  // for standard output if exit_code is 0, else for standard error
  CommandLine command;
};

ParsedCommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace vswitch::ctl
