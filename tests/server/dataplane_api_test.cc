// The API over the real data plane: what the fake one only plays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>

#include "dataplane/os/unique_fd.h"
#include "tests/server/test_switch.h"

namespace vswitch::server {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using vswitch::testing::read_file;
using vswitch::testing::reason_of;
using vswitch::testing::TestSwitch;
using vswitch::testing::write_file;

std::unique_ptr<dataplane::Dataplane> real_dataplane() {
  dataplane::Options options;
  options.hugepages = dataplane::HugepageMode::kOff;
  auto dataplane = dataplane::Dataplane::start(options);
  EXPECT_TRUE(dataplane.ok()) << dataplane.status();
  return dataplane.ok() ? *std::move(dataplane) : nullptr;
}

UniqueFd listen_on(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(fd.get(), 8), 0);
  return fd;
}

v1::Port get_port(TestSwitch& subject, const std::string& name) {
  grpc::ClientContext context;
  v1::GetPortRequest request;
  request.set_name(name);
  v1::Port port;
  const grpc::Status status = subject.ports().GetPort(&context, request, &port);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return port;
}

grpc::Status delete_port(TestSwitch& subject, const std::string& name) {
  grpc::ClientContext context;
  v1::DeletePortRequest request;
  request.set_name(name);
  google::protobuf::Empty empty;
  return subject.ports().DeletePort(&context, request, &empty);
}

// One test: the EAL starts once in a process.
TEST(DataplaneApi, PortsAndTheirSockets) {
  TestSwitch subject(real_dataplane());
  subject.make_ready();
  ASSERT_TRUE(subject.create_bridge("br0").ok());
  const std::string path = subject.dir() / "web.sock";

  write_file(path, "precious");
  grpc::Status status = subject.create_port("web");
  EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION) << status.error_message();
  EXPECT_EQ(reason_of(status), "SOCKET_PATH_OCCUPIED");
  EXPECT_EQ(read_file(path), "precious");
  std::filesystem::remove(path);

  {
    const UniqueFd live = listen_on(path);
    status = subject.create_port("web");
    EXPECT_EQ(status.error_code(), StatusCode::ALREADY_EXISTS) << status.error_message();
    EXPECT_EQ(reason_of(status), "SOCKET_PATH_IN_USE");
  }
  // Now it is stale.
  status = subject.create_port("web");
  ASSERT_TRUE(status.ok()) << status.error_message();
  struct stat info {};
  ASSERT_EQ(::lstat(path.c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));

  const v1::Port port = get_port(subject, "ports/web");
  EXPECT_EQ(port.state(), v1::Port::LISTENING);
  EXPECT_EQ(port.vhost_user().resolved_socket_path(), path);
  EXPECT_THAT(port.vhost_user_status().offered_features(),
              ElementsAre("VIRTIO_NET_F_MTU", "VIRTIO_NET_F_MRG_RXBUF", "VIRTIO_NET_F_STATUS",
                          "VIRTIO_NET_F_MQ", "VIRTIO_F_ANY_LAYOUT", "VIRTIO_F_INDIRECT_DESC",
                          "VIRTIO_F_EVENT_IDX", "VHOST_USER_F_PROTOCOL_FEATURES",
                          "VIRTIO_F_VERSION_1", "VIRTIO_F_RING_PACKED", "VIRTIO_F_IN_ORDER"));
  EXPECT_EQ(port.virtqueues_size(), 2);

  EXPECT_TRUE(delete_port(subject, "ports/web").ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(subject.create_port("web").ok());
    ASSERT_TRUE(delete_port(subject, "ports/web").ok());
  }

  grpc::ClientContext workers_context;
  v1::ListWorkersResponse workers;
  ASSERT_TRUE(subject.system().ListWorkers(&workers_context, {}, &workers).ok());
  EXPECT_EQ(workers.workers_size(), 1);

  grpc::ClientContext bridge_context;
  v1::DeleteBridgeRequest request;
  request.set_name("bridges/br0");
  google::protobuf::Empty empty;
  EXPECT_TRUE(subject.bridges().DeleteBridge(&bridge_context, request, &empty).ok());
}

}  // namespace
}  // namespace vswitch::server
