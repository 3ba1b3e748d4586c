// absl::Status, as the control plane returns it, into what a gRPC client sees.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace vswitch::server {

// Same code and message; the details hold a google.rpc.Status with an ErrorInfo of the domain
// "vswitch.v1". A status without a reason gets INTERNAL as reason, and as code if it has none.
grpc::Status to_grpc(const absl::Status& status);

}  // namespace vswitch::server
