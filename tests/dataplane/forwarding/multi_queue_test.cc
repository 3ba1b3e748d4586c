// Several receive queues of one guest: which flow goes where, in which order, and what is counted.
#include <array>
#include <bit>
#include <map>
#include <set>
#include <thread>

#include "dataplane/forwarding/forwarder.h"
#include "dataplane/net_header/flow_hash.h"
#include "tests/dataplane/forwarding/switch_fixture.h"

namespace vswitch::test {
namespace {

using testing::IsEmpty;

constexpr Mac kA = 0x020000000001;
constexpr Mac kB = 0x020000000002;
constexpr std::size_t kTagAt = 14 + 20 + 8;

// UDP over IPv4, with a number of its own in its payload.
std::string make_flow(Mac destination, Mac source, std::uint16_t port, std::uint32_t tag) {
  std::string frame = mac_text(destination) + mac_text(source);
  frame += std::string("\x08\x00\x45\x00\x00\x20\x00\x00\x00\x00\x40\x11\x00\x00", 14);
  frame += std::string("\x0a\x00\x00\x01\x0a\x00\x00\x02", 8);
  frame += static_cast<char>(port >> 8);
  frame += static_cast<char>(port & 0xff);
  frame += std::string("\x10\x00\x00\x0c\x00\x00", 6);
  for (int shift = 0; shift < 32; shift += 8) frame += static_cast<char>(tag >> shift & 0xff);
  return frame + std::string(64 - kTagAt - 4, 'x');
}
std::uint16_t port_of(const std::string& frame) {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(frame[34]) << 8 |
                                    static_cast<unsigned char>(frame[35]));
}
std::uint32_t tag_of(const std::string& frame) {
  std::uint32_t tag = 0;
  std::memcpy(&tag, frame.data() + kTagAt, sizeof(tag));
  return tag;
}
std::size_t queue_of(const std::string& frame, std::uint32_t queues) {
  const auto* const header = reinterpret_cast<const std::byte*>(frame.data());
  return flow_queue(flow_hash(header, static_cast<std::uint32_t>(frame.size())), queues);
}

class MultiQueue : public SwitchFixture {
 protected:
  TestPort& add_receiver(unsigned pairs, std::size_t buffers = 256) {
    TestPort& port = add_port(1500, 2048, pairs);
    for (unsigned pair = 0; pair < pairs; ++pair) port.guest.post(buffers, pair);
    return port;
  }
  static std::vector<std::vector<std::string>> receive_all(TestPort& port, unsigned pairs) {
    std::vector<std::vector<std::string>> by_pair;
    for (unsigned pair = 0; pair < pairs; ++pair) by_pair.push_back(port.guest.receive(pair));
    return by_pair;
  }
};

TEST_F(MultiQueue, FlowsHaveTheirQueues) {
  add_port();
  TestPort& to = add_receiver(4);
  learn(1, kB);
  std::array<std::uint64_t, 4> expected{};
  for (std::uint16_t flow = 0; flow < 64; ++flow) {
    for (std::uint32_t tag = 0; tag < 3; ++tag) {
      const std::string frame = make_flow(kB, kA, flow, tag);
      ++expected.at(queue_of(frame, 4));
      ASSERT_TRUE(guest(0).send(frame));
    }
  }
  run();
  const auto received = receive_all(to, 4);
  for (std::size_t pair = 0; pair < 4; ++pair) {
    EXPECT_GE(expected.at(pair), 15u) << "of 192: every queue has work";
    ASSERT_EQ(received[pair].size(), expected.at(pair));
    std::map<std::uint16_t, std::uint32_t> next;
    for (const std::string& frame : received[pair]) {
      EXPECT_EQ(frame, make_flow(kB, kA, port_of(frame), tag_of(frame)));
      EXPECT_EQ(queue_of(frame, 4), pair);
      EXPECT_EQ(tag_of(frame), next[port_of(frame)]++) << "in order";
    }
    const QueueCounters& counters = pair == 0 ? to.transmit[0] : to.more_rx[pair - 1].transmit[0];
    EXPECT_EQ(counters.packets.value(), expected.at(pair));
    EXPECT_EQ(counters.bytes.value(), 64 * expected.at(pair));
  }
  EXPECT_EQ(to.all_dropped(), 0u);
}

// A queue is written, and its guest told, once a burst however its frames are mixed with others.
TEST_F(MultiQueue, OneNotificationPerQueueAndBurst) {
  add_port();
  TestPort& to = add_receiver(2);
  learn(1, kB);
  for (std::uint16_t flow = 0; flow < 32; ++flow) {
    ASSERT_TRUE(guest(0).send(make_flow(kB, kA, flow, 0)));
  }
  EXPECT_EQ(run(), 1);
  EXPECT_EQ(TestPort::rung(to.call), 2u) << "both queues share this doorbell";
  EXPECT_EQ(to.transmit[0].notifications_sent.value(), 1u);
  EXPECT_EQ(to.more_rx[0].transmit[0].notifications_sent.value(), 1u);
  to.guest.rx(1).set_no_interrupt(true);
  for (std::uint16_t flow = 0; flow < 32; ++flow) {
    ASSERT_TRUE(guest(0).send(make_flow(kB, kA, flow, 1)));
  }
  EXPECT_EQ(run(), 1);
  EXPECT_EQ(TestPort::rung(to.call), 1u);
  EXPECT_EQ(to.more_rx[0].transmit[0].notifications_suppressed.value(), 1u);
}

// C36: a guest that enables one pair of four has all its frames there.
TEST_F(MultiQueue, OneRunningQueueTakesAll) {
  add_port();
  TestPort& to = add_receiver(4);
  to.more_rx.clear();
  connect();
  learn(1, kB);
  for (std::uint16_t flow = 0; flow < 64; ++flow) {
    ASSERT_TRUE(guest(0).send(make_flow(kB, kA, flow, 0)));
  }
  run();
  const auto received = receive_all(to, 4);
  EXPECT_EQ(received[0].size(), 64u);
  for (std::size_t pair = 1; pair < 4; ++pair) EXPECT_THAT(received[pair], IsEmpty());
  EXPECT_EQ(to.all_dropped(), 0u);
}

TEST_F(MultiQueue, FloodingReachesOneQueueOfEachPort) {
  add_port();
  TestPort& two = add_receiver(2);
  TestPort& one = add_receiver(1);
  TestPort& sixteen = add_receiver(16, 8);
  std::vector<std::string> sent;
  for (std::uint16_t flow = 0; flow < 40; ++flow) {
    sent.push_back(make_flow(kBroadcast, kA, flow, flow));
    ASSERT_TRUE(guest(0).send(sent.back()));
  }
  run();
  EXPECT_EQ(one.guest.receive(), sent);
  for (TestPort* port : {&two, &sixteen}) {
    const auto pairs = static_cast<unsigned>(port->more_rx.size()) + 1;
    const auto received = receive_all(*port, pairs);
    std::size_t total = 0;
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      for (const std::string& frame : received[pair]) EXPECT_EQ(queue_of(frame, pairs), pair);
      total += received[pair].size();
    }
    EXPECT_EQ(total, sent.size());
    EXPECT_EQ(port->all_dropped(), 0u);
  }
}

// A queue without buffers loses its flows, the other loses nothing.
TEST_F(MultiQueue, AFullQueueCostsOnlyItsOwnFlows) {
  add_port();
  TestPort& to = add_receiver(2, 0);
  to.guest.post(64, 1);
  learn(1, kB);
  std::uint64_t lost = 0;
  for (std::uint16_t flow = 0; flow < 64; ++flow) {
    const std::string frame = make_flow(kB, kA, flow, 0);
    lost += queue_of(frame, 2) == 0;
    ASSERT_TRUE(guest(0).send(frame));
  }
  run();
  EXPECT_EQ(to.guest.receive(1).size(), 64 - lost);
  EXPECT_GT(lost, 0u);
  EXPECT_EQ(to.dropped(to.transmit, DropReason::kNoRxBuffer), lost);
  EXPECT_EQ(to.dropped(to.more_rx[0].transmit, DropReason::kNoRxBuffer), 0u);
}

// Two workers, two senders, one receiver with two queues: all frames once, each flow in order.
TEST_F(MultiQueue, TwoWorkersWriteToTheSameQueues) {
  constexpr std::uint32_t kFrames = 20'000;
  constexpr std::uint32_t kFlows = 16;
  add_port();
  add_port();
  TestPort& to = add_receiver(2);
  learn(2, kB);
  topology.workers = {{topology.workers[0][0]}, {topology.workers[0][1]}};

  std::atomic<int> senders{2};
  std::vector<std::thread> threads;
  for (unsigned worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&, worker] {  // a guest and the worker that polls it
      const auto mine = std::make_unique<forwarding::Forwarder>(worker, now);
      std::uint32_t sent = 0;
      while (sent < kFrames || guest(worker).reclaim() > 0) {
        for (int i = 0; i < 16 && sent < kFrames; ++i) {
          const auto flow = static_cast<std::uint16_t>(worker * 1000 + sent % kFlows);
          if (!guest(worker).send(make_flow(kB, kA + 0x10 + worker, flow, sent))) break;
          ++sent;
        }
        bool found = false;
        mine->poll(topology, topology.workers[worker][0], found);
        std::this_thread::yield();
      }
      --senders;
    });
  }
  std::array<std::uint64_t, 2> received{};
  std::map<std::uint16_t, std::int64_t> last;
  const auto take = [&] {
    for (std::size_t pair = 0; pair < 2; ++pair) {
      for (const std::string& frame : to.guest.receive(pair)) {
        const std::uint16_t flow = port_of(frame);
        ASSERT_EQ(frame, make_flow(kB, kA + 0x10 + flow / 1000, flow, tag_of(frame)));
        ASSERT_EQ(queue_of(frame, 2), pair);
        const auto [place, is_new] = last.emplace(flow, -1);
        EXPECT_GT(tag_of(frame), place->second);
        place->second = tag_of(frame);
        ++received.at(pair);
      }
      to.guest.post(256, pair);
    }
  };
  while (senders > 0 && !HasFatalFailure()) {
    take();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  take();
  EXPECT_EQ(received[0] + received[1] + to.dropped_out(DropReason::kNoRxBuffer), 2u * kFrames);
  EXPECT_EQ(to.transmit[0].packets.value() + to.transmit[1].packets.value(), received[0]);
  EXPECT_GT(received[0], kFrames / 20);
  EXPECT_GT(received[1], kFrames / 20);
  EXPECT_EQ(last.size(), 2 * kFlows);
}

}  // namespace
}  // namespace vswitch::test
