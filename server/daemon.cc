#include "server/daemon.h"

#include <grpc/support/log.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "control/controller.h"
#include "control/error.h"
#include "control/store.h"
#include "server/api_server.h"
#include "server/directories.h"
#include "server/metrics_server.h"
#include "server/version.h"

namespace vswitch::server {
namespace {

constexpr absl::Duration kStopGrace = absl::Seconds(2);

// The control loop's way to wake the main thread when the start has failed.
constexpr int kStartFailed = SIGUSR1;

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

sigset_t all_signals() {
  sigset_t signals = stop_signals();
  sigaddset(&signals, kStartFailed);
  return signals;
}

// Every thread inherits the mask, so that the signals wait for the main thread's sigwait.
void prepare_signals() {
  const sigset_t signals = all_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

// Each attached guest needs about eight descriptors, and the usual soft limit of 1024 is meant for
// programs that call select().
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    log_warning("server", "cannot raise the limit of open files");
  }
}

int wait_for(const sigset_t& signals) {
  int number = 0;
  while (sigwait(&signals, &number) != 0) {
  }
  return number;
}

// For whoever runs out of patience with a stop. Signals in the first second are the same request:
// some supervisors send theirs to the process and to its group.
void exit_on_later_signal() {
  std::thread([stopping_since = absl::Now()] {
    do {
      wait_for(stop_signals());
    } while (absl::Now() - stopping_since < absl::Seconds(1));
    log_warning("server", "second signal, stopping at once");
    ::_exit(1);
  }).detach();
}

// gRPC reports failures to its callers too; its own lines are for those who look for them.
void log_from_grpc(gpr_log_func_args* args) {
  const auto level = args->severity == GPR_LOG_SEVERITY_DEBUG ? LogLevel::kTrace : LogLevel::kDebug;
  log(level, "grpc", args->message);
}

// What the control loop tells the main thread.
struct RestoreResult {
  std::mutex mutex;
  absl::Status status;  // guarded by mutex
};

}  // namespace

absl::Status run_daemon(const Flags& flags) {
  set_log_level(flags.log_level);
  gpr_set_log_function(log_from_grpc);
  prepare_signals();
  raise_descriptor_limit();

  // What can be refused without having started anything comes first.
  if (absl::Status status = prepare_directories(flags); !status.ok()) return status;
  if (absl::Status status = ApiServer::check(flags.listen); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<control::Store>> store = control::Store::open(flags.state_dir);
  if (!store.ok()) return store.status();
  absl::StatusOr<control::DesiredState> state = (*store)->load(flags.run_dir);
  if (!state.ok()) return state.status();
  log_info("server", "starting version=", kVersion, " run-dir=", flags.run_dir,
           " state-dir=", flags.state_dir);

  // The data plane before gRPC's threads: it pins threads, and they would inherit that.
  absl::StatusOr<std::unique_ptr<dataplane::Dataplane>> dataplane =
      dataplane::Dataplane::start(flags.dataplane);
  if (!dataplane.ok()) return dataplane.status();
  control::Controller controller(**dataplane, **store, flags.run_dir);
  absl::StatusOr<std::unique_ptr<ApiServer>> api_server =
      ApiServer::start(controller, flags.listen);
  if (!api_server.ok()) return api_server.status();
  for (const api::Endpoint& endpoint : (*api_server)->endpoints()) {
    log_info("server", "API listens address=", endpoint.to_string());
  }
  std::unique_ptr<MetricsServer> metrics;
  if (flags.has_metrics) {
    absl::StatusOr<std::unique_ptr<MetricsServer>> started =
        MetricsServer::start(**dataplane, flags.metrics_listen);
    if (!started.ok()) return started.status();
    metrics = *std::move(started);
    api::Endpoint endpoint = flags.metrics_listen;
    endpoint.port = metrics->port();
    log_info("server", "metrics listen address=http://", endpoint.to_string(), "/metrics");
  }

  RestoreResult restored;
  controller.restore(*std::move(state), [&](const absl::Status& status) {
    if (status.ok()) return (*api_server)->set_serving(true);
    {
      std::lock_guard<std::mutex> lock(restored.mutex);
      restored.status = status;
    }
    ::kill(::getpid(), kStartFailed);
  });

  const int signal_number = wait_for(all_signals());
  if (signal_number != kStartFailed) log_info("server", "stopping signal=", signal_number);
  exit_on_later_signal();
  (*api_server)->set_serving(false);
  controller.stop();
  (*api_server)->stop(kStopGrace);
  metrics.reset();
  dataplane->reset();
  std::lock_guard<std::mutex> lock(restored.mutex);
  if (!restored.status.ok()) {
    return absl::InternalError("cannot restore the stored state: " +
                               control::message_of(restored.status));
  }
  log_info("server", "stopped");
  return absl::OkStatus();
}

}  // namespace vswitch::server
