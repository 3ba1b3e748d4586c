#include <grpcpp/server_context.h>

#include "server/services.h"
#include "server/status.h"
#include "server/translate.h"
#include "server/version.h"
#include "vswitch/v1/system.grpc.pb.h"

namespace vswitch::server {
namespace {

class SystemService final : public v1::SystemService::Service {
 public:
  explicit SystemService(control::Controller& controller) : controller_(controller) {}

  grpc::Status GetSystemInfo(grpc::ServerContext*, const v1::GetSystemInfoRequest*,
                             v1::SystemInfo* response) override {
    if (absl::Status status = controller_.check_ready(); !status.ok()) return to_grpc(status);
    const dataplane::SystemStatus system = controller_.system();
    response->set_version(kVersion);
    *response->mutable_start_time() = to_proto(start_time_);
    response->set_worker_count(system.workers);
    response->set_memory_mode(system.memory_mode == "hugepages" ? v1::SystemInfo::HUGEPAGES
                                                                : v1::SystemInfo::ORDINARY_PAGES);
    response->set_memory_bytes(system.memory_bytes);
    response->set_tsc_hz(system.tsc_hz);
    response->set_run_dir(controller_.run_dir());
    response->set_state_dir(controller_.state_dir());
    return grpc::Status::OK;
  }

  grpc::Status ListWorkers(grpc::ServerContext* context, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override {
    const auto workers = controller_.workers(read_deadline(context->deadline()));
    if (!workers.ok()) return to_grpc(workers.status());
    for (const auto& worker : *workers) *response->add_workers() = to_proto(worker);
    return grpc::Status::OK;
  }

 private:
  control::Controller& controller_;
  const absl::Time start_time_ = absl::Now();
};

}  // namespace

std::unique_ptr<grpc::Service> make_system_service(control::Controller& controller) {
  return std::make_unique<SystemService>(controller);
}

}  // namespace vswitch::server
