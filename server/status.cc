#include "server/status.h"

#include "control/error.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "proto/endpoint.h"

namespace vswitch::server {

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const control::ErrorDetail detail = control::error_detail(status);
  google::rpc::ErrorInfo info;
  info.set_reason(detail.reason.empty() ? "INTERNAL" : detail.reason);
  info.set_domain(api::kDomain);
  info.mutable_metadata()->insert(detail.metadata.begin(), detail.metadata.end());

  const std::string message = control::message_of(status);
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));  // both use the canonical numbers
  details.set_message(message);
  details.add_details()->PackFrom(info);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      details.SerializeAsString());
}

}  // namespace vswitch::server
