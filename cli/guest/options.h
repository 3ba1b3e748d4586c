// What the command line of vswitch-guest says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/guest/guest_nic.h"
#include "cli/guest/test_frame.h"
#include "cli/guest/units.h"

namespace vswitch::guest {

enum class Command { kGenerate, kSink, kReflect, kPing };
const char* command_name(Command command);

struct Options {
  Command command = Command::kSink;
  NicOptions nic;
  MacKey mac = 0;
  MacKey destination = kBroadcast;
  std::vector<std::uint32_t> sizes = {60};  // without the check sequence
  Rate rate;
  std::uint64_t count = 0;                             // frames; 0: no limit
  absl::Duration duration = absl::InfiniteDuration();  // of sending, or of receiving
  std::uint32_t window = 0;                            // frames on their way; 0: no limit
  absl::Duration reply_timeout = absl::Seconds(1);
  absl::Duration wait_peer = absl::ZeroDuration();
  absl::Duration linger = absl::Milliseconds(500);      // quiet time that ends generate
  absl::Duration idle_exit = absl::InfiniteDuration();  // quiet time that ends sink and reflect
  Verify verify = Verify::kFull;
  bool fail_on_loss = false;
  bool wait_on_call = false;
  bool json = false;
  bool progress = false;
  absl::Duration interval = absl::Seconds(1);
  std::string ready_file;
  std::optional<int> cpu;
};

struct ParsedCommandLine {
  std::optional<Options> options;  // nothing: exit with `exit_code`
  int exit_code = 0;
};

// Prints help, version or what is wrong itself. Exit code 2 for wrong usage.
ParsedCommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace vswitch::guest
