#include "server/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <sstream>

#include "absl/strings/str_join.h"
#include "control/error.h"
#include "server/config_file.h"
#include "server/version.h"

namespace vswitch::server {
namespace {

using control::message_of;

// The flags as written, before they are understood.
struct Raw {
  std::vector<std::string> listen;
  std::string metrics_listen = kDefaultMetricsListen;
  std::string run_dir;
  std::string state_dir;
  unsigned workers = 1;
  std::vector<std::string> worker_cpus;
  std::string memory = "64M";
  std::string hugepages = "auto";
  std::string log_level = "info";
};

void declare(CLI::App& app, Raw& raw) {
  app.add_option("--listen", raw.listen,
                 "Address of the API: unix:///path, a path, or HOST:PORT on a loopback address; "
                 "may be given several times (default " +
                     api::default_server() + ")")
      ->type_name("ADDR")
      ->allow_extra_args(false);
  app.add_option("--metrics-listen", raw.metrics_listen,
                 "IPv4 address of the Prometheus endpoint, or \"off\"")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--run-dir", raw.run_dir,
                 "Directory of vhost-user sockets with relative paths (default " +
                     api::default_run_dir() + ")")
      ->type_name("DIR");
  app.add_option("--state-dir", raw.state_dir,
                 "Directory where desired state is stored (default " + default_state_dir() + ")")
      ->type_name("DIR");
  CLI::Option* workers = app.add_option("--workers", raw.workers, "Number of workers, one CPU each")
                             ->type_name("N")
                             ->check(CLI::Range(1u, 1024u))
                             ->capture_default_str();
  app.add_option("--worker-cpus", raw.worker_cpus,
                 "CPUs of the workers, one worker each, e.g. 1-3,5")
      ->type_name("LIST")
      ->allow_extra_args(false)
      ->excludes(workers);
  app.add_option("--memory", raw.memory,
                 "Memory for the switch's own tables and buffers, e.g. 64M or 1G")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--hugepages", raw.hugepages, "Use hugepages: auto, on or off")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--log-level", raw.log_level, "trace, debug, info, warning or error")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.set_config("--config", "", "YAML file with any of these flags as keys, without the dashes")
      ->type_name("FILE")
      ->configurable(false);
  app.config_formatter(make_yaml_config(app));
  app.set_version_flag("--version", std::string("vswitchd ") + kVersion)->configurable(false);
  app.get_help_ptr()->configurable(false);
}

std::string absolute(const std::string& path) {
  std::string text = std::filesystem::absolute(path).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

absl::StatusOr<Flags> understand(const Raw& raw) {
  Flags flags;
  flags.is_default_run_dir = raw.run_dir.empty();
  flags.run_dir = absolute(flags.is_default_run_dir ? api::default_run_dir() : raw.run_dir);
  flags.is_default_state_dir = raw.state_dir.empty();
  flags.state_dir = absolute(flags.is_default_state_dir ? default_state_dir() : raw.state_dir);

  flags.is_default_listen = raw.listen.empty();
  const std::vector<std::string> addresses =
      raw.listen.empty() ? std::vector<std::string>{api::default_server()} : raw.listen;
  for (const std::string& address : addresses) {
    absl::StatusOr<api::Endpoint> endpoint = api::parse_endpoint(address);
    if (!endpoint.ok()) {
      return absl::InvalidArgumentError("--listen: " + message_of(endpoint.status()));
    }
    flags.listen.push_back(*std::move(endpoint));
  }
  flags.has_metrics = raw.metrics_listen != "off";
  if (flags.has_metrics) {
    absl::StatusOr<api::Endpoint> endpoint = api::parse_endpoint(raw.metrics_listen);
    if (!endpoint.ok() || endpoint->kind != api::Endpoint::Kind::kTcp) {
      return absl::InvalidArgumentError("--metrics-listen: \"" + raw.metrics_listen +
                                        "\" is neither HOST:PORT nor \"off\"");
    }
    if (endpoint->host.find(':') != std::string::npos) {
      return absl::InvalidArgumentError(
          "--metrics-listen: metrics are served on IPv4 only, write e.g. 127.0.0.1:" +
          std::to_string(endpoint->port));
    }
    flags.metrics_listen = *std::move(endpoint);
  }

  const absl::StatusOr<std::uint64_t> memory = parse_size(raw.memory);
  if (!memory.ok()) return absl::InvalidArgumentError("--memory: " + message_of(memory.status()));
  flags.dataplane.memory_bytes = *memory;
  flags.dataplane.worker_count = raw.workers;
  if (!raw.worker_cpus.empty()) {
    absl::StatusOr<std::vector<unsigned>> cpus =
        parse_cpu_list(absl::StrJoin(raw.worker_cpus, ","));
    if (!cpus.ok()) {
      return absl::InvalidArgumentError("--worker-cpus: " + message_of(cpus.status()));
    }
    flags.dataplane.worker_cpus = *std::move(cpus);
    flags.dataplane.worker_count = static_cast<unsigned>(flags.dataplane.worker_cpus.size());
  }
  using dataplane::HugepageMode;
  flags.dataplane.hugepages = raw.hugepages == "on"    ? HugepageMode::kOn
                              : raw.hugepages == "off" ? HugepageMode::kOff
                                                       : HugepageMode::kAuto;
  flags.log_level = parse_log_level(raw.log_level).value_or(LogLevel::kInfo);
  return flags;
}

bool parse_unsigned(std::string_view text, unsigned& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

absl::StatusOr<std::uint64_t> parse_size(const std::string& text) {
  const absl::Status bad = absl::InvalidArgumentError(
      "\"" + text + "\" is not a size: write a number of bytes, or one with K, M or G");
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value == 0) return bad;
  std::string unit(stop, end);
  if (unit.size() == 3 && unit.substr(1) == "iB") unit.resize(1);
  static const std::map<std::string, unsigned> kShifts = {
      {"", 0}, {"K", 10}, {"k", 10}, {"M", 20}, {"m", 20}, {"G", 30}, {"g", 30}};
  const auto shift = kShifts.find(unit);
  if (shift == kShifts.end()) return bad;
  if (value > std::numeric_limits<std::uint64_t>::max() >> shift->second) return bad;
  return value << shift->second;
}

absl::StatusOr<std::vector<unsigned>> parse_cpu_list(const std::string& text) {
  constexpr unsigned kMaxCpu = 1023;
  const absl::Status bad = absl::InvalidArgumentError(
      "\"" + text + "\" is not a list of CPUs: write numbers and ranges, e.g. 1-3,5");
  std::vector<unsigned> cpus;
  std::istringstream parts(text);
  std::string part;
  if (text.empty() || text.back() == ',') return bad;
  while (std::getline(parts, part, ',')) {
    const std::size_t dash = part.find('-');
    unsigned first = 0;
    unsigned last = 0;
    if (!parse_unsigned(std::string_view(part).substr(0, dash), first)) return bad;
    last = first;
    if (dash != std::string::npos &&
        !parse_unsigned(std::string_view(part).substr(dash + 1), last)) {
      return bad;
    }
    if (first > last || last > kMaxCpu) return bad;
    for (unsigned cpu = first; cpu <= last; ++cpu) {
      if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) {
        return absl::InvalidArgumentError("CPU " + std::to_string(cpu) + " is there twice");
      }
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

std::string default_state_dir() {
  if (::geteuid() == 0) return "/var/lib/vswitch";
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return std::string(state) + "/vswitch";
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr && home[0] == '/' ? home : "/") + "/.local/state/vswitch";
}

ParsedFlags parse_flags(int argc, const char* const* argv) {
  ParsedFlags result;
  CLI::App app("A virtual switch for virtual machines and containers.", "vswitchd");
  Raw raw;
  declare(app, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream output;
    const bool is_success = error.get_exit_code() == 0;
    if (is_success) {
      app.exit(error, output, output);
    } else {
      output << "vswitchd: " << error.what() << "; see vswitchd --help\n";
    }
    return {true, is_success ? 0 : 2, output.str(), {}};
  }
  absl::StatusOr<Flags> flags = understand(raw);
  if (!flags.ok()) {
    return {true, 2, "vswitchd: " + message_of(flags.status()) + "; see vswitchd --help\n", {}};
  }
  result.flags = *std::move(flags);
  return result;
}

}  // namespace vswitch::server
