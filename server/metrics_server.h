// The HTTP endpoint that Prometheus scrapes, at /metrics.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "dataplane/dataplane.h"
#include "proto/endpoint.h"

namespace vswitch::server {

class MetricsServer {
 public:
  // Listens from here on. The data plane must outlive the server. FAILED_PRECONDITION, with a
  // sentence, where the address cannot be had.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> start(dataplane::Dataplane& dataplane,
                                                              const api::Endpoint& endpoint);
  virtual ~MetricsServer() = default;

  // The real one where a port 0 was asked for.
  virtual int port() const = 0;
};

}  // namespace vswitch::server
