#include <cstdio>

#include "control/error.h"
#include "server/daemon.h"
#include "server/flags.h"

int main(int argc, char** argv) {
  const vswitch::server::ParsedFlags parsed = vswitch::server::parse_flags(argc, argv);
  if (parsed.should_exit) {
    std::fputs(parsed.output.c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  const absl::Status status = vswitch::server::run_daemon(parsed.flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "vswitchd: %s\n", vswitch::control::message_of(status).c_str());
  return 1;
}
