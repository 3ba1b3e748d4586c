#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>

#include "dataplane/os/unique_fd.h"
#include "dataplane/virtq/features.h"
#include "tests/server/test_switch.h"

namespace vswitch::server {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using vswitch::testing::read_file;
using vswitch::testing::reason_of;
using vswitch::testing::TestSwitch;
using vswitch::testing::write_file;

class PortApi : public ::testing::Test {
 protected:
  PortApi() {
    switch_.make_ready();
    EXPECT_TRUE(switch_.create_bridge("br0").ok());
  }

  static v1::CreatePortRequest request_for(const std::string& id) {
    v1::CreatePortRequest request;
    request.set_port_id(id);
    request.mutable_port()->set_bridge("bridges/br0");
    request.mutable_port()->mutable_vhost_user()->set_socket_path(id + ".sock");
    return request;
  }

  grpc::Status create(const v1::CreatePortRequest& request, v1::Port& port) {
    grpc::ClientContext context;
    return switch_.ports().CreatePort(&context, request, &port);
  }
  grpc::Status create(const v1::CreatePortRequest& request) {
    v1::Port port;
    return create(request, port);
  }

  grpc::Status get(const std::string& name, v1::Port& port) {
    grpc::ClientContext context;
    v1::GetPortRequest request;
    request.set_name(name);
    return switch_.ports().GetPort(&context, request, &port);
  }

  grpc::Status remove(const std::string& name) {
    grpc::ClientContext context;
    v1::DeletePortRequest request;
    request.set_name(name);
    google::protobuf::Empty empty;
    return switch_.ports().DeletePort(&context, request, &empty);
  }

  void expect(const grpc::Status& status, StatusCode code, const std::string& reason) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(reason_of(status), reason);
    EXPECT_FALSE(status.error_message().empty());
  }

  TestSwitch switch_;
};

// Leaves a socket file behind that nobody listens on.
void make_stale_socket(const std::string& path, UniqueFd* keep = nullptr) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(fd.get(), 1), 0);
  if (keep != nullptr) *keep = std::move(fd);
}

TEST_F(PortApi, CreatesGetsAndDeletes) {
  v1::Port port;
  ASSERT_TRUE(create(request_for("web"), port).ok());
  EXPECT_EQ(port.name(), "ports/web");
  EXPECT_EQ(port.bridge(), "bridges/br0");
  EXPECT_EQ(port.mtu(), 1500u);
  EXPECT_EQ(port.queue_pairs(), 1u);
  EXPECT_EQ(port.state(), v1::Port::LISTENING);
  EXPECT_EQ(port.vhost_user().socket_path(), "web.sock");
  EXPECT_EQ(port.vhost_user().resolved_socket_path(), switch_.dir() / "web.sock");
  EXPECT_GT(port.state_since().seconds(), 0);
  ASSERT_TRUE(get("ports/web", port).ok());
  EXPECT_EQ(port.name(), "ports/web");
  EXPECT_TRUE(remove("ports/web").ok());
  expect(get("ports/web", port), StatusCode::NOT_FOUND, "PORT_NOT_FOUND");
  EXPECT_FALSE(std::filesystem::exists(switch_.dir() / "web.sock"));
}

TEST_F(PortApi, ShowsWhatTheDataPlaneKnows) {
  ASSERT_TRUE(create(request_for("web")).ok());
  switch_.fake().set_status("web", [](dataplane::PortStatus& status) {
    status.state = dataplane::PortState::kQuarantined;
    status.state_reason = "queue 1: available index moved by 300";
    status.negotiated_features = virtq::kFeatureVersion1 | virtq::kFeatureMrgRxbuf;
    status.receive.packets = 10;
    status.receive.bytes = 640;
    status.receive.dropped[static_cast<std::size_t>(DropReason::kRunt)] = 2;
    status.receive.dropped[static_cast<std::size_t>(DropReason::kOversize)] = 3;
    dataplane::QueueStatus queue;
    queue.index = 1;
    queue.size = 256;
    queue.quarantined = true;
    queue.worker = 0;
    queue.packets = 77;
    status.queues = {queue};
  });
  v1::Port port;
  ASSERT_TRUE(get("ports/web", port).ok());
  EXPECT_EQ(port.state(), v1::Port::QUARANTINED);
  EXPECT_EQ(port.state_reason(), "queue 1: available index moved by 300");
  EXPECT_THAT(port.vhost_user_status().negotiated_features(),
              ElementsAre("VIRTIO_NET_F_MRG_RXBUF", "VIRTIO_F_VERSION_1"));
  EXPECT_EQ(port.receive().packets(), 10u);
  EXPECT_EQ(port.receive().bytes(), 640u);
  EXPECT_EQ(port.receive().dropped_packets(), 5u);
  ASSERT_EQ(port.receive().drops_size(), 2);
  EXPECT_EQ(port.receive().drops(0).reason(), "runt");
  EXPECT_EQ(port.receive().drops(1).packets(), 3u);
  ASSERT_EQ(port.virtqueues_size(), 1);
  EXPECT_EQ(port.virtqueues(0).size(), 256u);
  EXPECT_TRUE(port.virtqueues(0).quarantined());
  EXPECT_EQ(port.virtqueues(0).worker(), "workers/0");
  EXPECT_EQ(port.virtqueues(0).packets(), 77u);
}

TEST_F(PortApi, RefusesABadId) {
  for (const char* id : {"", "Web", "web_1", "1web", "web-"}) {
    v1::CreatePortRequest request = request_for("web");
    request.set_port_id(id);
    expect(create(request), StatusCode::INVALID_ARGUMENT, "INVALID_ID");
  }
}

TEST_F(PortApi, RefusesABadBridgeName) {
  for (const char* bridge : {"", "br0", "ports/br0", "bridges/", "bridges/Br0"}) {
    expect(switch_.create_port("web", bridge), StatusCode::INVALID_ARGUMENT,
           "INVALID_RESOURCE_NAME");
  }
}

TEST_F(PortApi, RefusesAnUnsetKind) {
  v1::CreatePortRequest request = request_for("web");
  request.mutable_port()->clear_kind();
  expect(create(request), StatusCode::INVALID_ARGUMENT, "PORT_KIND_UNSET");
}

TEST_F(PortApi, RefusesAnMtuOutOfRange) {
  v1::CreatePortRequest request = request_for("web");
  for (const std::uint32_t mtu : {1u, 67u, 65522u, 4294967295u}) {
    request.mutable_port()->set_mtu(mtu);
    expect(create(request), StatusCode::INVALID_ARGUMENT, "INVALID_MTU");
  }
  v1::Port port;
  request.mutable_port()->set_mtu(9000);
  ASSERT_TRUE(create(request, port).ok());
  EXPECT_EQ(port.mtu(), 9000u);
}

TEST_F(PortApi, RefusesQueuePairsOutOfRange) {
  v1::CreatePortRequest request = request_for("web");
  for (const std::uint32_t pairs : {17u, 256u, 4294967295u}) {
    request.mutable_port()->set_queue_pairs(pairs);
    expect(create(request), StatusCode::INVALID_ARGUMENT, "INVALID_QUEUE_PAIRS");
  }
  for (const std::uint32_t pairs : {1u, 16u}) {
    v1::Port port;
    request.mutable_port()->set_queue_pairs(pairs);
    ASSERT_TRUE(create(request, port).ok());
    EXPECT_EQ(port.queue_pairs(), pairs);
    ASSERT_TRUE(get("ports/web", port).ok());
    EXPECT_EQ(port.queue_pairs(), pairs);
    ASSERT_TRUE(remove("ports/web").ok());
  }
}

TEST_F(PortApi, RefusesABadPath) {
  v1::CreatePortRequest request = request_for("web");
  for (const std::string& path : {std::string(), std::string("/tmp/"), std::string("a\nb"),
                                  "/tmp/" + std::string(103, 'x')}) {
    request.mutable_port()->mutable_vhost_user()->set_socket_path(path);
    expect(create(request), StatusCode::INVALID_ARGUMENT, "INVALID_SOCKET_PATH");
  }
  request.mutable_port()->mutable_vhost_user()->set_socket_path("/tmp/" + std::string(102, 'x'));
  EXPECT_TRUE(create(request).ok()) << "107 bytes are allowed";
  EXPECT_TRUE(remove("ports/web").ok());
}

TEST_F(PortApi, UnknownBridgeIsNotFound) {
  const grpc::Status status = switch_.create_port("web", "bridges/br9");
  expect(status, StatusCode::NOT_FOUND, "BRIDGE_NOT_FOUND");
  EXPECT_EQ(status.error_message(), "no such bridge \"br9\"; there are: br0");
}

TEST_F(PortApi, RefusesADuplicateIdOrPath) {
  ASSERT_TRUE(switch_.create_port("web").ok());
  expect(switch_.create_port("web", "bridges/br0", "other.sock"), StatusCode::ALREADY_EXISTS,
         "PORT_ALREADY_EXISTS");
  expect(switch_.create_port("other", "bridges/br0", "web.sock"), StatusCode::ALREADY_EXISTS,
         "SOCKET_PATH_IN_USE");
  expect(switch_.create_port("other", "bridges/br0", switch_.dir() / "./web.sock"),
         StatusCode::ALREADY_EXISTS, "SOCKET_PATH_IN_USE");
}

TEST_F(PortApi, LeavesARegularFileAlone) {
  write_file(switch_.dir() / "web.sock", "precious");
  expect(switch_.create_port("web"), StatusCode::FAILED_PRECONDITION, "SOCKET_PATH_OCCUPIED");
  EXPECT_EQ(read_file(switch_.dir() / "web.sock"), "precious");
}

TEST_F(PortApi, ReplacesAStaleSocketAndNotALiveOne) {
  make_stale_socket(switch_.dir() / "stale.sock");
  EXPECT_TRUE(switch_.create_port("stale").ok());
  UniqueFd live;
  make_stale_socket(switch_.dir() / "live.sock", &live);
  expect(switch_.create_port("live"), StatusCode::ALREADY_EXISTS, "SOCKET_PATH_IN_USE");
}

TEST_F(PortApi, NamesAMissingDirectory) {
  const grpc::Status status = switch_.create_port("web", "bridges/br0", "sub/web.sock");
  expect(status, StatusCode::FAILED_PRECONDITION, "SOCKET_DIRECTORY_MISSING");
  EXPECT_THAT(status.error_message(), HasSubstr("mkdir -p"));
}

TEST_F(PortApi, RefusesABadName) {
  v1::Port port;
  for (const char* name : {"", "web", "bridges/web", "ports/", "ports/-"}) {
    expect(get(name, port), StatusCode::INVALID_ARGUMENT, "INVALID_RESOURCE_NAME");
    expect(remove(name), StatusCode::INVALID_ARGUMENT, "INVALID_RESOURCE_NAME");
  }
}

TEST_F(PortApi, UnknownOnesAreNotFound) {
  v1::Port port;
  expect(get("ports/nobody", port), StatusCode::NOT_FOUND, "PORT_NOT_FOUND");
  expect(remove("ports/nobody"), StatusCode::NOT_FOUND, "PORT_NOT_FOUND");
}

TEST_F(PortApi, FullDataPlaneIsResourceExhausted) {
  switch_.fake().fail_next("create_port", absl::ResourceExhaustedError("no file descriptors"));
  expect(switch_.create_port("web"), StatusCode::RESOURCE_EXHAUSTED, "DATAPLANE_EXHAUSTED");
}

TEST_F(PortApi, UnwritableStoreIsInternal) {
  std::filesystem::create_directory(switch_.dir() / "state/state.yaml.tmp");
  expect(switch_.create_port("web"), StatusCode::INTERNAL, "STORE_WRITE_FAILED");
  EXPECT_FALSE(std::filesystem::exists(switch_.dir() / "web.sock"));
}

TEST_F(PortApi, CallerDeadlineHolds) {
  switch_.fake().hold();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  v1::Port port;
  EXPECT_EQ(switch_.ports().CreatePort(&context, request_for("web"), &port).error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  switch_.fake().release();
  expect(switch_.create_port("web"), StatusCode::ALREADY_EXISTS, "PORT_ALREADY_EXISTS");
}

TEST_F(PortApi, StuckReadIsDeadlineExceeded) {
  ASSERT_TRUE(switch_.create_port("web").ok());
  switch_.fake().set_reads_stuck(true);
  v1::Port port;
  expect(get("ports/web", port), StatusCode::DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED");
  // The change itself is made, so a reading that fails does not spoil it.
  EXPECT_TRUE(switch_.create_port("db").ok());
}

}  // namespace
}  // namespace vswitch::server
