// The gRPC endpoint: services, health, reflection, and the sockets they are on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "control/controller.h"
#include "proto/endpoint.h"

namespace vswitch::server {

class ApiServer {
 public:
  // Checks that the endpoints can be had, without taking them: no live unix socket, TCP only on
  // loopback addresses. FAILED_PRECONDITION or INVALID_ARGUMENT, with a sentence.
  static absl::Status check(const std::vector<api::Endpoint>& endpoints);

  // Listens on every endpoint; health says NOT_SERVING. The controller must outlive the server.
  static absl::StatusOr<std::unique_ptr<ApiServer>> start(
      control::Controller& controller, const std::vector<api::Endpoint>& endpoints);

  // Stops, if stop() has not.
  virtual ~ApiServer() = default;

  // What the health service says, for "" and "vswitch.v1".
  virtual void set_serving(bool serving) = 0;
  // Ends: calls that run get `grace` to finish. The sockets are removed.
  virtual void stop(absl::Duration grace) = 0;
  // Where it listens, with the real port for a port 0.
  virtual const std::vector<api::Endpoint>& endpoints() const = 0;
};

}  // namespace vswitch::server
