// The API as vswitchctl uses it: blocking calls with a deadline, whole lists, plain errors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/endpoint.h"
#include "vswitch/v1/bridge.pb.h"
#include "vswitch/v1/fdb.pb.h"
#include "vswitch/v1/port.pb.h"
#include "vswitch/v1/system.pb.h"

namespace vswitch::ctl {

// Names are what the user typed: "web" or "ports/web". Errors have the code of the call and a
// message for the user: what failed, why, and what to do about it. All calls share one deadline.
class Client {
 public:
  Client(const api::Endpoint& server, absl::Duration timeout);
  ~Client();

  absl::StatusOr<v1::Bridge> create_bridge(const std::string& name);
  absl::StatusOr<v1::Bridge> bridge(const std::string& name);
  absl::StatusOr<std::vector<v1::Bridge>> bridges();
  absl::Status delete_bridge(const std::string& name);

  // `port` holds the settings.
  absl::StatusOr<v1::Port> create_port(const std::string& name, const v1::Port& port);
  absl::StatusOr<v1::Port> port(const std::string& name);
  absl::StatusOr<std::vector<v1::Port>> ports();
  absl::Status delete_port(const std::string& name);

  // Of all bridges where `bridge` is empty.
  absl::StatusOr<std::vector<v1::FdbEntry>> fdb(const std::string& bridge);
  absl::StatusOr<std::vector<v1::Worker>> workers();
  absl::StatusOr<v1::SystemInfo> system();

 private:
  struct Rpc;
  std::unique_ptr<Rpc> rpc_;
};

// "ports/web" -> "web"; a text without a slash stays as it is.
std::string short_name(const std::string& resource_name);
// "web" -> "ports/web"; a resource name stays as it is.
std::string full_name(const std::string& collection, const std::string& name);

}  // namespace vswitch::ctl
