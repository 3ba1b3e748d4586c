// Ports with several queue pairs on a switch with two workers.
#include <map>

#include "tests/dataplane/runtime/dataplane_fixture.h"

namespace vswitch::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Mac kA = 0x020000000001;
constexpr Mac kB = 0x020000000002;

class MultiQueuePorts : public DataplaneFixture {
 protected:
  MultiQueuePorts() { worker_count = 2; }

  std::vector<int> workers_of(const std::string& id) {
    std::vector<int> workers;
    for (const dataplane::QueueStatus& queue : port(id).queues) {
      if (queue.index % 2 == 1) workers.push_back(queue.worker);
    }
    return workers;
  }
  // Of more than one MAC address, so that there is more than one flow.
  static std::string frame_of(std::uint32_t flow, std::uint32_t tag) {
    return make_frame(kB, kA + 0x100 + flow, 60, tag, std::string_view("\x88\xb5", 2));
  }
};

// Pair i goes to the next worker after that of pair i - 1; a port starts where the fewest are.
TEST_F(MultiQueuePorts, TransmitQueuesAreSpreadOverTheWorkers) {
  ASSERT_TRUE(create_port("a", 3).ok());
  ASSERT_TRUE(create_port("b", 1).ok());
  ASSERT_TRUE(create_port("c", 16).ok());
  SocketGuest a(kA, 3), b(kB), c(kB + 1, 16);
  EXPECT_EQ(port("c").queues.size(), 32u);
  EXPECT_THAT(workers_of("a"), ElementsAre(-1, -1, -1));
  ASSERT_TRUE(a.attach(path("a")) && b.attach(path("b")) && c.attach(path("c")));
  EXPECT_THAT(workers_of("a"), ElementsAre(0, 1, 0));
  EXPECT_THAT(workers_of("b"), ElementsAre(1)) << "one has a queue less";
  EXPECT_THAT(workers_of("c"), ElementsAre(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1));
  const auto workers = plane->workers(absl::Now() + absl::Seconds(5));
  ASSERT_TRUE(workers.ok());
  EXPECT_EQ(workers->at(0).queues, 10u);
  EXPECT_EQ(workers->at(1).queues, 10u);
  EXPECT_EQ(port("c").state, PortState::kUp);
}

// Frames of both workers, sent on three queues, arrive once and each flow in order.
TEST_F(MultiQueuePorts, FramesOfManyFlowsWithoutLoss) {
  ASSERT_TRUE(create_port("a", 3).ok());
  ASSERT_TRUE(create_port("b", 4).ok());
  SocketGuest a(kA, 3), b(kB, 4);
  ASSERT_TRUE(a.attach(path("a")) && b.attach(path("b")));
  for (unsigned pair = 0; pair < 4; ++pair) b.memory.post(256, pair);
  announce(b);
  constexpr std::uint32_t kFlows = 24;
  constexpr std::uint32_t kFrames = 2400;
  std::array<std::uint64_t, 4> received{};
  std::map<std::string, std::uint32_t> next;  // by source address
  const auto take = [&] {
    for (std::size_t pair = 0; pair < 4; ++pair) {
      for (const std::string& frame : b.memory.receive(pair)) {
        std::uint32_t& expected = next[frame.substr(6, 6)];
        EXPECT_EQ(frame_tag(frame), expected) << "lost, twice, or out of order";
        expected = frame_tag(frame) + 1;
        ++received.at(pair);
      }
      b.memory.post(256, pair);
    }
  };
  for (std::uint32_t sent = 0; sent < kFrames;) {
    // A flow always leaves by the same queue. No more under way than each queue has buffers for.
    for (std::uint32_t flow = 0; flow < kFlows; ++flow, ++sent) {
      ASSERT_TRUE(a.memory.send(frame_of(flow, sent / kFlows), flow % 3));
    }
    ASSERT_TRUE(eventually(
        [&] { return a.memory.reclaim(0) + a.memory.reclaim(1) + a.memory.reclaim(2) == 0; }));
    take();
  }
  EXPECT_EQ(next.size(), kFlows);
  const PortStatus status = port("b");
  EXPECT_EQ(received[0] + received[1] + received[2] + received[3], kFrames);
  EXPECT_EQ(status.transmit.packets, kFrames);
  EXPECT_EQ(status.transmit.dropped_total(), 0u);
  EXPECT_EQ(port("a").receive.packets, kFrames);
  for (std::uint32_t pair = 0; pair < 4; ++pair) {
    EXPECT_EQ(status.queues.at(2 * pair).packets, received.at(pair));
    EXPECT_GT(received.at(pair), 0u);
    EXPECT_GT(status.queues.at(2 * pair).notifications_sent, 0u);
  }
  for (std::uint32_t pair = 0; pair < 3; ++pair) {
    EXPECT_EQ(port("a").queues.at(2 * pair + 1).packets, kFrames / 3);
  }
}

// C36: a port of one pair ends the connection of a front-end that sets up another.
TEST_F(MultiQueuePorts, OnePairIsOnePair) {
  ASSERT_TRUE(create_port("a").ok());
  SocketGuest guest(kA, 2);
  ASSERT_TRUE(guest.connect(path("a")) && guest.negotiate());
  ASSERT_TRUE(guest.front.send(message(kGetQueueNum)));
  EXPECT_EQ(guest.front.receive(SocketGuest::kPatience)->number(), 1u);
  ASSERT_TRUE(guest.set_memory() && guest.set_ring(0) && guest.set_ring(1));
  ASSERT_TRUE(guest.enable(0, true) && guest.enable(1, true));
  EXPECT_EQ(port("a").state, PortState::kUp);
  EXPECT_FALSE(guest.set(vring_message(kSetVringNum, 2, 256)));
  EXPECT_TRUE(guest.front.closed(SocketGuest::kPatience));
  ASSERT_TRUE(becomes("a", PortState::kListening));
  EXPECT_EQ(port("a").protocol_violations, 1u);
  EXPECT_THAT(port("a").state_reason, HasSubstr("SET_VRING_NUM: vring 2 of 2"));
  SocketGuest next(kA);
  EXPECT_TRUE(next.attach(path("a"))) << "the port is there for the next one";
}

// C36: four pairs are set up, as QEMU does, one is enabled: it gets all frames. Then all four.
TEST_F(MultiQueuePorts, OneEnabledPairOfFour) {
  const auto a = add_guest("a", kA);
  ASSERT_TRUE(create_port("b", 4).ok());
  SocketGuest b(kB, 4);
  ASSERT_TRUE(b.connect(path("b")) && b.negotiate());
  ASSERT_TRUE(b.front.send(message(kGetQueueNum)));
  EXPECT_EQ(b.front.receive(SocketGuest::kPatience)->number(), 4u);
  ASSERT_TRUE(b.set_memory());
  for (std::uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(b.set_ring(i) && b.enable(i, i < 2));
  for (unsigned pair = 0; pair < 4; ++pair) b.memory.post(256, pair);
  EXPECT_EQ(port("b").state, PortState::kUp);
  EXPECT_EQ(port("b").state_reason, "");
  announce(b);
  const auto send_flows = [&] {
    workers_follow();
    for (std::uint32_t flow = 0; flow < 64; ++flow) {
      ASSERT_TRUE(a->memory.send(frame_of(flow, flow)));
    }
    ASSERT_TRUE(eventually([&] { return a->memory.reclaim() == 0; }));
  };
  const auto received = [&] {
    std::vector<std::size_t> counts;
    for (unsigned pair = 0; pair < 4; ++pair) counts.push_back(b.memory.receive(pair).size());
    return counts;
  };
  send_flows();
  EXPECT_THAT(received(), ElementsAre(64, 0, 0, 0));
  for (std::uint32_t i = 2; i < 8; ++i) ASSERT_TRUE(b.enable(i, true));
  send_flows();
  const std::vector<std::size_t> spread = received();
  EXPECT_THAT(spread, testing::Each(testing::Gt(0u)));
  EXPECT_EQ(spread[0] + spread[1] + spread[2] + spread[3], 64u);
  for (std::uint32_t i = 2; i < 8; ++i) ASSERT_TRUE(b.enable(i, false));
  send_flows();
  EXPECT_THAT(received(), ElementsAre(64, 0, 0, 0));
  EXPECT_EQ(port("b").transmit.dropped_total(), 0u);
}

// A ring of a further pair that cannot run takes nothing from the port, and is explained.
TEST_F(MultiQueuePorts, TroubleOfAFurtherPair) {
  const auto a = add_guest("a", kA);
  ASSERT_TRUE(create_port("b", 2).ok());
  SocketGuest b(kB, 2);
  ASSERT_TRUE(b.attach(path("b")));
  ASSERT_TRUE(b.set(vring_address_message(2, 0x1000, 0x2000, 0x3000)));
  b.memory.post(64);
  PortStatus status = port("b");
  EXPECT_EQ(status.state, PortState::kUp);
  EXPECT_THAT(status.state_reason, HasSubstr("ring 2 lies outside the shared memory"));
  EXPECT_FALSE(status.queues.at(2).running);
  announce(b);
  for (std::uint32_t flow = 0; flow < 32; ++flow) {
    ASSERT_TRUE(a->memory.send(frame_of(flow, flow)));
  }
  ASSERT_TRUE(eventually([&] { return a->memory.reclaim() == 0; }));
  EXPECT_EQ(b.memory.receive().size(), 32u);
  // One that breaks is quarantined alone.
  b.memory.tx(1).offer(300);
  ASSERT_TRUE(becomes("b", PortState::kQuarantined));
  status = port("b");
  EXPECT_TRUE(status.queues.at(3).quarantined);
  EXPECT_TRUE(status.queues.at(0).running);
  EXPECT_TRUE(status.queues.at(1).running);
}

}  // namespace
}  // namespace vswitch::test
