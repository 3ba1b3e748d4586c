// Carries out a command line.
#pragma once

#include "cli/vswitchctl/command_line.h"

namespace vswitch::ctl {

// Writes the answer to standard output, an error to standard error, and returns the exit code.
int run_command(const CommandLine& command);

}  // namespace vswitch::ctl
