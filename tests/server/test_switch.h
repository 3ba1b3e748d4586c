// A whole switch in this process but for its data plane: store, controller, API server on a unix
// socket in a directory of its own.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "control/controller.h"
#include "control/store.h"
#include "server/api_server.h"
#include "tests/control/temp_dir.h"
#include "tests/server/fake_dataplane.h"
#include "vswitch/v1/bridge.grpc.pb.h"
#include "vswitch/v1/fdb.grpc.pb.h"
#include "vswitch/v1/port.grpc.pb.h"
#include "vswitch/v1/system.grpc.pb.h"

namespace vswitch::testing {

class TestSwitch {
 public:
  // With a fake data plane where none is given.
  explicit TestSwitch(std::unique_ptr<dataplane::Dataplane> dataplane = nullptr);
  ~TestSwitch();

  // Restores the (empty) stored state, and makes health SERVING.
  void make_ready();

  FakeDataplane& fake() { return *fake_; }
  control::Controller& controller() { return *controller_; }
  server::ApiServer& api_server() { return *server_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  std::string api_path() const { return dir_ / "api.sock"; }
  const TempDir& dir() const { return dir_; }

  v1::BridgeService::Stub& bridges() { return *bridges_; }
  v1::PortService::Stub& ports() { return *ports_; }
  v1::FdbService::Stub& fdb() { return *fdb_; }
  v1::SystemService::Stub& system() { return *system_; }

  grpc::Status create_bridge(const std::string& id);
  grpc::Status create_port(const std::string& id, const std::string& bridge = "bridges/br0",
                           const std::string& path = "");

 private:
  TempDir dir_;
  FakeDataplane* fake_ = nullptr;
  std::unique_ptr<control::Store> store_;
  std::unique_ptr<dataplane::Dataplane> dataplane_;
  std::unique_ptr<control::Controller> controller_;
  std::unique_ptr<server::ApiServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::BridgeService::Stub> bridges_;
  std::unique_ptr<v1::PortService::Stub> ports_;
  std::unique_ptr<v1::FdbService::Stub> fdb_;
  std::unique_ptr<v1::SystemService::Stub> system_;
};

// The reason in the ErrorInfo of a failed call; "" where there is none of our domain.
std::string reason_of(const grpc::Status& status);

}  // namespace vswitch::testing
