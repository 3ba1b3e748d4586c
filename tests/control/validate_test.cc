#include "control/validate.h"

#include <gtest/gtest.h>

#include "control/error.h"

namespace vswitch::control {
namespace {

PortSpec good_port() { return {"web", "br0", 1500, VhostUserServerSpec{"web.sock"}}; }

std::string reason_of(const absl::Status& status) { return error_detail(status).reason; }

TEST(ValidateId, TakesWhatADnsLabelTakes) {
  for (const char* id : {"a", "br0", "web-1", "a-b-c", "z9"}) EXPECT_TRUE(is_valid_id(id)) << id;
  EXPECT_TRUE(is_valid_id(std::string(63, 'a')));
}

TEST(ValidateId, RefusesTheRest) {
  for (const char* id : {"", "-", "-a", "a-", "0a", "A", "br_0", "br.0", "a b", "a/b", "ä"}) {
    EXPECT_FALSE(is_valid_id(id)) << id;
  }
  EXPECT_FALSE(is_valid_id(std::string(64, 'a')));
  const absl::Status status = validate_id("bridge", "Br 0");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(reason_of(status), "INVALID_ID");
  EXPECT_EQ(error_detail(status).metadata.at("field"), "bridge_id");
}

TEST(ValidateId, MessageStaysShort) {
  EXPECT_LT(message_of(validate_id("port", std::string(1 << 20, 'x'))).size(), 300u);
}

TEST(ValidatePort, MtuHasBounds) {
  PortSpec port = good_port();
  for (const std::uint32_t mtu : {68u, 1500u, 9000u, 65521u}) {
    port.mtu = mtu;
    EXPECT_TRUE(validate_port(port, "/run/vswitch").ok()) << mtu;
  }
  for (const std::uint32_t mtu : {0u, 67u, 65522u, 4294967295u}) {
    port.mtu = mtu;
    EXPECT_EQ(reason_of(validate_port(port, "/run/vswitch")), "INVALID_MTU") << mtu;
  }
}

TEST(ValidatePort, QueuePairsHaveBounds) {
  PortSpec port = good_port();
  EXPECT_EQ(port.queue_pairs, 1u);
  for (const std::uint32_t pairs : {1u, 2u, 15u, 16u}) {
    port.queue_pairs = pairs;
    EXPECT_TRUE(validate_port(port, "/run/vswitch").ok()) << pairs;
  }
  for (const std::uint32_t pairs : {0u, 17u, 4294967295u}) {
    port.queue_pairs = pairs;
    const absl::Status status = validate_port(port, "/run/vswitch");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(reason_of(status), "INVALID_QUEUE_PAIRS") << pairs;
    EXPECT_EQ(error_detail(status).metadata.at("field"), "queue_pairs");
  }
}

TEST(ValidatePort, NeedsAKind) {
  PortSpec port = good_port();
  port.kind = std::monostate();
  EXPECT_EQ(reason_of(validate_port(port, "/run/vswitch")), "PORT_KIND_UNSET");
}

TEST(SocketPath, RelativeOnesAreInTheRunDirectory) {
  EXPECT_EQ(*resolve_socket_path("/run/vswitch", "web.sock"), "/run/vswitch/web.sock");
  EXPECT_EQ(*resolve_socket_path("/run/vswitch", "./a/../web.sock"), "/run/vswitch/web.sock");
  EXPECT_EQ(*resolve_socket_path("/run/vswitch", "/tmp//x/./web.sock"), "/tmp/x/web.sock");
}

TEST(SocketPath, LengthCountsOnceResolved) {
  const std::string run_dir = "/run/vswitch";
  const std::string longest(107 - run_dir.size() - 1, 'a');
  EXPECT_EQ(resolve_socket_path(run_dir, longest)->size(), 107u);
  EXPECT_EQ(reason_of(resolve_socket_path(run_dir, longest + "a").status()), "INVALID_SOCKET_PATH");
}

TEST(SocketPath, MustNameAFile) {
  for (const char* path : {"", "/", "/tmp/", "..", "a/..", ".", "/tmp/."}) {
    EXPECT_EQ(reason_of(resolve_socket_path("/run", path).status()), "INVALID_SOCKET_PATH") << path;
  }
}

TEST(SocketPath, HoldsNoControlCharacters) {
  EXPECT_FALSE(resolve_socket_path("/run", "a\nb").ok());
  EXPECT_FALSE(resolve_socket_path("/run", std::string("a\0b", 3)).ok());
}

}  // namespace
}  // namespace vswitch::control
