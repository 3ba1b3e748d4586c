#include "tests/server/test_switch.h"

#include <cstdio>
#include <cstdlib>
#include <future>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace vswitch::testing {
namespace {

template <typename T>
T require(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

}  // namespace

TestSwitch::TestSwitch(std::unique_ptr<dataplane::Dataplane> dataplane)
    : dataplane_(std::move(dataplane)) {
  if (dataplane_ == nullptr) {
    auto fake = std::make_unique<FakeDataplane>();
    fake_ = fake.get();
    dataplane_ = std::move(fake);
  }
  std::filesystem::create_directory(dir_ / "state");
  store_ = require(control::Store::open(dir_ / "state"));
  controller_ = std::make_unique<control::Controller>(*dataplane_, *store_, dir_.path());
  const api::Endpoint endpoint = require(api::parse_endpoint(api_path()));
  server_ = require(server::ApiServer::start(*controller_, {endpoint}));
  channel_ = grpc::CreateChannel(endpoint.grpc_target(), grpc::InsecureChannelCredentials());
  bridges_ = v1::BridgeService::NewStub(channel_);
  ports_ = v1::PortService::NewStub(channel_);
  fdb_ = v1::FdbService::NewStub(channel_);
  system_ = v1::SystemService::NewStub(channel_);
}

TestSwitch::~TestSwitch() {
  controller_->stop();
  server_->stop(absl::Seconds(1));
}

void TestSwitch::make_ready() {
  std::promise<void> done;
  controller_->restore(require(store_->load(dir_.path())),
                       [&](const absl::Status&) { done.set_value(); });
  done.get_future().get();
  server_->set_serving(true);
}

grpc::Status TestSwitch::create_bridge(const std::string& id) {
  grpc::ClientContext context;
  v1::CreateBridgeRequest request;
  request.set_bridge_id(id);
  v1::Bridge bridge;
  return bridges_->CreateBridge(&context, request, &bridge);
}

grpc::Status TestSwitch::create_port(const std::string& id, const std::string& bridge,
                                     const std::string& path) {
  grpc::ClientContext context;
  v1::CreatePortRequest request;
  request.set_port_id(id);
  request.mutable_port()->set_bridge(bridge);
  request.mutable_port()->mutable_vhost_user()->set_socket_path(path.empty() ? id + ".sock" : path);
  v1::Port port;
  return ports_->CreatePort(&context, request, &port);
}

std::string reason_of(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details()) || details.details_size() != 1 ||
      !details.details(0).UnpackTo(&info) || info.domain() != "vswitch.v1" ||
      details.code() != status.error_code() || details.message() != status.error_message()) {
    return "";
  }
  return info.reason();
}

}  // namespace vswitch::testing
