#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/test_switch.h"

namespace vswitch::server {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;
using vswitch::testing::reason_of;
using vswitch::testing::TestSwitch;

class BridgeApi : public ::testing::Test {
 protected:
  BridgeApi() { switch_.make_ready(); }

  grpc::Status get(const std::string& name, v1::Bridge& bridge) {
    grpc::ClientContext context;
    v1::GetBridgeRequest request;
    request.set_name(name);
    return switch_.bridges().GetBridge(&context, request, &bridge);
  }

  grpc::Status remove(const std::string& name) {
    grpc::ClientContext context;
    v1::DeleteBridgeRequest request;
    request.set_name(name);
    google::protobuf::Empty empty;
    return switch_.bridges().DeleteBridge(&context, request, &empty);
  }

  void expect(const grpc::Status& status, StatusCode code, const std::string& reason) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(reason_of(status), reason);
    EXPECT_FALSE(status.error_message().empty());
  }

  TestSwitch switch_;
};

TEST_F(BridgeApi, CreatesGetsAndDeletes) {
  grpc::ClientContext context;
  v1::CreateBridgeRequest request;
  request.set_bridge_id("br0");
  v1::Bridge bridge;
  ASSERT_TRUE(switch_.bridges().CreateBridge(&context, request, &bridge).ok());
  EXPECT_EQ(bridge.name(), "bridges/br0");
  ASSERT_TRUE(get("bridges/br0", bridge).ok());
  EXPECT_EQ(bridge.name(), "bridges/br0");
  EXPECT_EQ(bridge.port_count(), 0u);
  EXPECT_TRUE(remove("bridges/br0").ok());
  expect(get("bridges/br0", bridge), StatusCode::NOT_FOUND, "BRIDGE_NOT_FOUND");
}

TEST_F(BridgeApi, RefusesABadId) {
  for (const char* id : {"", "-", "Br0", "br_0", "br0-", "a/b"}) {
    expect(switch_.create_bridge(id), StatusCode::INVALID_ARGUMENT, "INVALID_ID");
  }
  expect(switch_.create_bridge(std::string(64, 'a')), StatusCode::INVALID_ARGUMENT, "INVALID_ID");
}

TEST_F(BridgeApi, RefusesADuplicate) {
  ASSERT_TRUE(switch_.create_bridge("br0").ok());
  expect(switch_.create_bridge("br0"), StatusCode::ALREADY_EXISTS, "BRIDGE_ALREADY_EXISTS");
}

TEST_F(BridgeApi, RefusesABadName) {
  v1::Bridge bridge;
  for (const char* name : {"", "br0", "bridges/", "ports/br0", "bridges/br0/x", "bridges/BR"}) {
    expect(get(name, bridge), StatusCode::INVALID_ARGUMENT, "INVALID_RESOURCE_NAME");
    expect(remove(name), StatusCode::INVALID_ARGUMENT, "INVALID_RESOURCE_NAME");
  }
}

TEST_F(BridgeApi, UnknownOnesAreNotFound) {
  v1::Bridge bridge;
  expect(get("bridges/br9", bridge), StatusCode::NOT_FOUND, "BRIDGE_NOT_FOUND");
  expect(remove("bridges/br9"), StatusCode::NOT_FOUND, "BRIDGE_NOT_FOUND");
}

TEST_F(BridgeApi, KeepsABridgeWithPorts) {
  ASSERT_TRUE(switch_.create_bridge("br0").ok());
  ASSERT_TRUE(switch_.create_port("web").ok());
  const grpc::Status status = remove("bridges/br0");
  expect(status, StatusCode::FAILED_PRECONDITION, "BRIDGE_NOT_EMPTY");
  EXPECT_THAT(status.error_message(), HasSubstr("web"));
}

TEST_F(BridgeApi, HasALimit) {
  for (std::size_t i = 0; i < dataplane::kMaxBridges; ++i) {
    ASSERT_TRUE(switch_.create_bridge(std::string("b").append(std::to_string(i))).ok());
  }
  expect(switch_.create_bridge("one-more"), StatusCode::RESOURCE_EXHAUSTED, "TOO_MANY_BRIDGES");
}

}  // namespace
}  // namespace vswitch::server
