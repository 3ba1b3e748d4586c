// The RPC handlers, one service a file. They translate, call the controller and map the status;
// the decisions are the controller's. Handlers run on gRPC's threads and may wait there.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "control/controller.h"

namespace grpc {
class Service;
}

namespace vswitch::server {

// The controller must outlive the services.
std::unique_ptr<grpc::Service> make_bridge_service(control::Controller& controller);
std::unique_ptr<grpc::Service> make_port_service(control::Controller& controller);
std::unique_ptr<grpc::Service> make_fdb_service(control::Controller& controller);
std::unique_ptr<grpc::Service> make_system_service(control::Controller& controller);

// A call's deadline, but no later than a limit of ours: a caller without one must not hold a thread
// for ever.
absl::Time read_deadline(std::chrono::system_clock::time_point deadline);
absl::Time change_deadline(std::chrono::system_clock::time_point deadline);

}  // namespace vswitch::server
