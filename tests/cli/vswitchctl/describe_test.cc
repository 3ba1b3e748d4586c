#include <gmock/gmock.h>

#include "dataplane/virtq/features.h"
#include "tests/cli/vswitchctl/ctl_fixture.h"

namespace vswitch::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CtlTest, DescribePortShowsStateFeaturesRingsAndDrops) {
  make_ports();
  switch_.fake().set_status("web", [](dataplane::PortStatus& status) {
    status.state = dataplane::PortState::kUp;
    status.state_reason = "both rings run";
    status.negotiated_features = virtq::kFeatureVersion1 | virtq::kFeatureMrgRxbuf;
    status.protocol_features = 1u << 3;
    status.memory_regions = 2;
    status.memory_bytes = 1u << 30;
    status.receive.packets = 1234;
    status.transmit.dropped[static_cast<std::size_t>(DropReason::kNoRxBuffer)] = 42;
    for (std::uint32_t index : {0u, 1u}) {
      dataplane::QueueStatus queue;
      queue.index = index;
      queue.size = 256;
      queue.enabled = queue.running = true;
      queue.packets = 5150 + index;
      status.queues.push_back(queue);
    }
  });
  const std::string text = output({"describe", "port", "web"});
  for (const char* part : {"web", "br0", "vhost-user", "Up since 20", "both rings run", "1500",
                           "VIRTIO_F_VERSION_1", "VIRTIO_NET_F_MRG_RXBUF", "REPLY_ACK",
                           "1 GiB in 2 regions", "256", "running", "1234", "no-rx-buffer", "42",
                           "guest has posted no", "5151", "PACKETS", "Queue pairs:         1\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("runt"))) << "reasons with no drops are left out";
}

TEST_F(CtlTest, DescribePortTellsHowToAttach) {
  make_ports();
  const std::string path = switch_.dir() / "web.sock";
  const std::string text = output({"describe", "port", "web"});
  for (const std::string& part : std::vector<std::string>{
           "-object memory-backend-memfd,id=mem,size=1G,share=on", "memory-backend=mem",
           "-chardev socket,id=chr-web,path=" + path,
           "-netdev vhost-user,id=net-web,chardev=chr-web",
           "-device virtio-net-pci,netdev=net-web,mac=02:", "romfile=", "mrg_rxbuf=on",
           "--vdev net_virtio_user0,path=" + path, "dpdk-testpmd"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  // Two guests must not get the same address.
  const auto mac_of = [](const std::string& description) {
    return description.substr(description.find("mac=02:"), 21);
  };
  EXPECT_NE(mac_of(text), mac_of(output({"describe", "port", "db"})));
  EXPECT_EQ(mac_of(text), mac_of(output({"describe", "port", "web"})));
}

// Vectors: one a queue, one for the configuration, one for the control queue.
TEST_F(CtlTest, DescribePortTellsHowToAttachToSeveralQueuePairs) {
  make_ports();
  const std::string one = output({"describe", "port", "web"});
  EXPECT_THAT(one, HasSubstr(",queues=1 "));
  for (const char* part : {"mq=on", "vectors=", "cq=1", "--rxq", "--txq"}) {
    EXPECT_THAT(one, Not(HasSubstr(part)));
  }
  output({"create", "port", "wide", "--bridge", "br0", "--vhost-user", "wide.sock", "--queue-pairs",
          "4"});
  const std::string text = output({"describe", "port", "wide"});
  for (const char* part :
       {"Queue pairs:         4\n", "-netdev vhost-user,id=net-wide,chardev=chr-wide,queues=4",
        ",mq=on,vectors=10", ",queues=4,cq=1", "--rxq=4 --txq=4", "--total-num-mbufs=16384"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(CtlTest, AttachArgumentsAreQuoted) {
  ASSERT_TRUE(switch_.create_bridge("br0").ok());
  ASSERT_TRUE(switch_.create_port("odd", "bridges/br0", "a, b.sock").ok());
  EXPECT_THAT(output({"describe", "port", "odd"}),
              HasSubstr("-chardev 'socket,id=chr-odd,path=" + (switch_.dir() / "a,, b.sock") +
                        ",reconnect=1'"));
}

TEST_F(CtlTest, DescribeBridgeListsItsPorts) {
  make_ports();
  ASSERT_TRUE(switch_.create_bridge("br1").ok());
  ASSERT_TRUE(switch_.create_port("lone", "bridges/br1").ok());
  const std::string text = output({"describe", "bridge", "br0"});
  EXPECT_THAT(text, HasSubstr("web"));
  EXPECT_THAT(text, HasSubstr("db"));
  EXPECT_THAT(text, Not(HasSubstr("lone")));
}

TEST_F(CtlTest, DescribeAsJsonIsTheResource) {
  make_ports();
  EXPECT_EQ(output({"describe", "port", "web", "-o", "json"}),
            output({"get", "port", "web", "-o", "json"}));
}

}  // namespace
}  // namespace vswitch::ctl
