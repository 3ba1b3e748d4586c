#include <grpc/support/log.h>

#include <cstdio>

#include "cli/vswitchctl/command_line.h"
#include "cli/vswitchctl/commands.h"

int main(int argc, char** argv) {
  // gRPC's own lines would mix with the message that explains the same failure.
  gpr_set_log_function([](gpr_log_func_args*) {});
  const vswitch::ctl::ParsedCommandLine parsed = vswitch::ctl::parse_command_line(argc, argv);
  if (parsed.should_exit) {
    std::fputs(parsed.output.c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  return vswitch::ctl::run_command(parsed.command);
}
