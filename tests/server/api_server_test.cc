#include "server/api_server.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <future>
#include <mutex>

#include "control/error.h"
#include "grpc_wire.pb.h"
#include "tests/server/test_switch.h"

namespace vswitch::server {
namespace {

using control::message_of;
using grpc::StatusCode;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using vswitch::testing::reason_of;
using vswitch::testing::TestSwitch;

// -1: the service is unknown; else 1 serving, 2 not serving.
int health(TestSwitch& subject, const std::string& service) {
  grpc::TemplatedGenericStub<vswitch::testing::HealthCheckRequest,
                             vswitch::testing::HealthCheckResponse>
      stub(subject.channel());
  grpc::ClientContext context;
  vswitch::testing::HealthCheckRequest request;
  request.set_service(service);
  vswitch::testing::HealthCheckResponse response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&](grpc::Status status) { done.set_value(status); });
  return done.get_future().get().ok() ? response.status() : -1;
}

class ReflectionCall : public grpc::ClientBidiReactor<vswitch::testing::ServerReflectionRequest,
                                                      vswitch::testing::ServerReflectionResponse> {
 public:
  ReflectionCall(TestSwitch& subject, vswitch::testing::ServerReflectionRequest request)
      : stub_(subject.channel()), request_(std::move(request)) {
    stub_.PrepareBidiStreamingCall(
        &context_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {}, this);
    StartWriteLast(&request_, {});
    StartRead(&response_);
    StartCall();
  }

  void OnDone(const grpc::Status& status) override { done_.set_value(status); }

  vswitch::testing::ServerReflectionResponse wait() {
    EXPECT_TRUE(done_.get_future().get().ok());
    return response_;
  }

 private:
  grpc::TemplatedGenericStub<vswitch::testing::ServerReflectionRequest,
                             vswitch::testing::ServerReflectionResponse>
      stub_;
  grpc::ClientContext context_;
  vswitch::testing::ServerReflectionRequest request_;
  vswitch::testing::ServerReflectionResponse response_;
  std::promise<grpc::Status> done_;
};

TEST(ApiServer, EverythingButHealthIsUnavailableUntilReady) {
  TestSwitch subject;
  EXPECT_EQ(health(subject, ""), 2);
  EXPECT_EQ(health(subject, "vswitch.v1"), 2);

  const auto expect = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
    EXPECT_EQ(reason_of(status), "SWITCH_STARTING");
  };
  const auto call = [](auto& stub, auto method, const auto& request, auto response) {
    grpc::ClientContext context;
    return (stub.*method)(&context, request, &response);
  };
  google::protobuf::Empty empty;
  using Bridges = v1::BridgeService::Stub;
  using Ports = v1::PortService::Stub;
  using Fdb = v1::FdbService::Stub;
  using System = v1::SystemService::Stub;
  expect(call(subject.bridges(), &Bridges::CreateBridge, v1::CreateBridgeRequest(), v1::Bridge()));
  expect(call(subject.bridges(), &Bridges::GetBridge, v1::GetBridgeRequest(), v1::Bridge()));
  expect(call(subject.bridges(), &Bridges::ListBridges, v1::ListBridgesRequest(),
              v1::ListBridgesResponse()));
  expect(call(subject.bridges(), &Bridges::DeleteBridge, v1::DeleteBridgeRequest(), empty));
  expect(call(subject.ports(), &Ports::CreatePort, v1::CreatePortRequest(), v1::Port()));
  expect(call(subject.ports(), &Ports::GetPort, v1::GetPortRequest(), v1::Port()));
  expect(call(subject.ports(), &Ports::ListPorts, v1::ListPortsRequest(), v1::ListPortsResponse()));
  expect(call(subject.ports(), &Ports::DeletePort, v1::DeletePortRequest(), empty));
  expect(call(subject.fdb(), &Fdb::ListFdbEntries, v1::ListFdbEntriesRequest(),
              v1::ListFdbEntriesResponse()));
  expect(
      call(subject.system(), &System::GetSystemInfo, v1::GetSystemInfoRequest(), v1::SystemInfo()));
  expect(call(subject.system(), &System::ListWorkers, v1::ListWorkersRequest(),
              v1::ListWorkersResponse()));

  subject.make_ready();
  EXPECT_EQ(health(subject, ""), 1);
  EXPECT_EQ(health(subject, "vswitch.v1"), 1);
  EXPECT_EQ(health(subject, "nobody"), -1);
  EXPECT_TRUE(subject.create_bridge("br0").ok());
}

TEST(ApiServer, StoppingIsUnavailable) {
  TestSwitch subject;
  subject.make_ready();
  subject.controller().stop();
  const grpc::Status status = subject.create_bridge("br0");
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(reason_of(status), "SWITCH_STOPPING");
}

TEST(ApiServer, ReflectionListsTheServices) {
  TestSwitch subject;
  vswitch::testing::ServerReflectionRequest request;
  request.set_list_services("*");
  ReflectionCall call(subject, request);
  const auto response = call.wait();
  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names, IsSupersetOf({"vswitch.v1.BridgeService", "vswitch.v1.PortService",
                                   "vswitch.v1.FdbService", "vswitch.v1.SystemService",
                                   "grpc.health.v1.Health"}));
}

TEST(ApiServer, ReflectionDescribesAService) {
  TestSwitch subject;
  vswitch::testing::ServerReflectionRequest request;
  request.set_file_containing_symbol("vswitch.v1.PortService");
  ReflectionCall call(subject, request);
  const auto response = call.wait();
  std::vector<std::string> files;
  for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(bytes));
    files.push_back(file.name());
  }
  EXPECT_THAT(files, IsSupersetOf({"vswitch/v1/port.proto", "google/protobuf/timestamp.proto"}));
}

TEST(ApiServer, SocketHasItsModeAndGoesWithTheServer) {
  std::string path;
  {
    TestSwitch subject;
    path = subject.api_path();
    struct stat info {};
    ASSERT_EQ(::lstat(path.c_str(), &info), 0);
    EXPECT_TRUE(S_ISSOCK(info.st_mode));
    EXPECT_EQ(info.st_mode & 0777u, 0660u);
    for (const auto& entry : std::filesystem::directory_iterator(subject.dir().path())) {
      EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
    }
    subject.api_server().stop(absl::Seconds(1));
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

TEST(ApiServer, SecondOneOnTheSameSocketIsRefused) {
  TestSwitch subject;
  const absl::Status status =
      ApiServer::start(subject.controller(), {*api::parse_endpoint(subject.api_path())}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  subject.make_ready();
  EXPECT_TRUE(subject.create_bridge("br0").ok()) << "the first one is not disturbed";
}

TEST(ApiServer, ListensOnLoopbackTcpToo) {
  TestSwitch subject;
  subject.make_ready();
  auto tcp = ApiServer::start(subject.controller(), {*api::parse_endpoint("127.0.0.1:0"),
                                                     *api::parse_endpoint(subject.dir() / "b")});
  ASSERT_TRUE(tcp.ok()) << tcp.status();
  const api::Endpoint endpoint = (*tcp)->endpoints().front();
  EXPECT_NE(endpoint.port, 0);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto stub = v1::SystemService::NewStub(grpc::CreateCustomChannel(
      endpoint.grpc_target(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  v1::SystemInfo info;
  EXPECT_TRUE(stub->GetSystemInfo(&context, {}, &info).ok());

  const absl::Status second = ApiServer::start(subject.controller(), {endpoint}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(second), HasSubstr(endpoint.to_string()));
}

TEST(ApiServer, RefusesOtherTcpAddresses) {
  for (const char* address :
       {"0.0.0.0:0", "[::]:0", "192.0.2.1:50051", "example.org:50051", "127.example.org:50051"}) {
    const absl::Status status = ApiServer::check({*api::parse_endpoint(address)});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(message_of(status), HasSubstr("TLS"));
  }
  for (const char* address : {"127.0.0.1:0", "127.1.2.3:0", "[::1]:0", "localhost:0"}) {
    EXPECT_TRUE(ApiServer::check({*api::parse_endpoint(address)}).ok()) << address;
  }
}

}  // namespace
}  // namespace vswitch::server
