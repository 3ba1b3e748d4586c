// vswitch-guest: a virtio-net driver with its own memory on a vhost-user socket.
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/guest/guest_nic.h"
#include "cli/guest/options.h"
#include "cli/guest/report.h"
#include "cli/guest/traffic.h"

namespace vswitch::guest {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

void request_stop(int) { stop_requested.store(true, std::memory_order_relaxed); }

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = request_stop;
  // The second signal ends the process, should the first not get through.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

int fail(const std::string& message) {
  std::fprintf(stderr, "vswitch-guest: %s\n", message.c_str());
  return 1;
}

bool pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  return cpu < CPU_SETSIZE && ::sched_setaffinity(0, sizeof(set), &set) == 0;
}

bool touch(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  return file != nullptr && std::fclose(file) == 0;
}

int run(const Options& options) {
  handle_signals();
  if (options.cpu && !pin_to(*options.cpu)) {
    return fail(absl::StrCat("cannot run on CPU ", *options.cpu, ": ", std::strerror(errno)));
  }
  auto nic = GuestNic::open(options.nic, stop_requested);
  if (absl::IsCancelled(nic.status())) return 1;
  if (!nic.ok()) {
    return fail(
        absl::StrCat("cannot attach to ", options.nic.socket, ": ", nic.status().message()));
  }
  std::fputs("ready\n", stderr);
  if (!options.ready_file.empty() && !touch(options.ready_file)) {
    return fail(absl::StrCat("cannot make ", options.ready_file, ": ", std::strerror(errno)));
  }
  Traffic traffic(options, **nic, stop_requested);
  const absl::Status status = traffic.run();
  const Report report = traffic.report();
  std::fputs((options.json ? to_json(report) : to_table(report)).c_str(), stdout);
  if (std::fflush(stdout) != 0) return fail("cannot write the report");
  if (!status.ok()) return fail(std::string(status.message()));
  const bool damaged = report.lost > 0 || report.totals.damaged > 0;
  return options.fail_on_loss && damaged ? 4 : 0;
}

}  // namespace
}  // namespace vswitch::guest

int main(int argc, char** argv) {
  const auto parsed = vswitch::guest::parse_command_line(argc, argv);
  return parsed.options ? vswitch::guest::run(*parsed.options) : parsed.exit_code;
}
