// A queue in service: its doorbell, its position, what breaks it, and several workers writing to
// it.
#include "dataplane/forwarding/port_queue.h"

#include <array>
#include <chrono>
#include <set>
#include <thread>

#include "tests/dataplane/forwarding/switch_fixture.h"

namespace vswitch::test {
namespace {

constexpr Mac kA = 0x020000000001;
constexpr Mac kB = 0x020000000002;

class PortQueueTest : public SwitchFixture {};

TEST_F(PortQueueTest, RingsOnceABurstAndOnlyIfAsked) {
  add_port();
  add_port().guest.post(64);
  learn(1, kB);
  for (std::uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(guest(0).send(make_frame(kB, kA, 64, i)));
  run();
  EXPECT_EQ(TestPort::rung(ports[0]->call), 1u) << "B21: the sender is told of its completions";
  EXPECT_EQ(TestPort::rung(ports[1]->call), 1u);
  EXPECT_EQ(ports[1]->transmit[0].notifications_sent.value(), 1u);
  guest(0).tx().set_no_interrupt(true);
  guest(1).rx().set_no_interrupt(true);
  ASSERT_TRUE(guest(0).send(make_frame(kB, kA, 64)));
  run();
  EXPECT_EQ(TestPort::rung(ports[0]->call), 0u);
  EXPECT_EQ(TestPort::rung(ports[1]->call), 0u);
  EXPECT_EQ(ports[1]->transmit[0].notifications_suppressed.value(), 1u);
  EXPECT_EQ(guest(1).receive().size(), 9u);
}

TEST_F(PortQueueTest, AFullDoorbellIsNoErrorAndNeverBlocks) {
  add_port();
  add_port().guest.post(64);
  learn(1, kB);
  const std::uint64_t most = 0xfffffffffffffffe;
  ASSERT_EQ(::write(ports[1]->call.get(), &most, sizeof(most)), 8);
  ASSERT_TRUE(guest(0).send(make_frame(kB, kA, 64)));
  run();
  EXPECT_EQ(guest(1).receive().size(), 1u);
  EXPECT_EQ(ports[1]->transmit[0].notifications_full.value(), 1u);
  EXPECT_EQ(ports[1]->transmit[0].notifications_sent.value(), 0u);
}

// Chains that go round all 32768 descriptors of their ring.
void offer_loops(FakeRing& ring, std::uint16_t write_flag, int count) {
  for (std::uint32_t i = 0; i < ring.size(); ++i) {
    const auto index = static_cast<std::uint16_t>(i);
    ring.set_descriptor(index, ring.buffer_address(0), 1,
                        static_cast<std::uint16_t>(1 | write_flag),
                        static_cast<std::uint16_t>((i + 1) % ring.size()));
  }
  for (int i = 0; i < count; ++i) ring.offer(0);
}

TEST_F(PortQueueTest, ATransmitQueueOfEndlessChainsRests) {
  TestPort port(1500, 64, 32768);
  offer_loops(port.guest.tx(), 0, 8);
  FrameBurst burst;
  EXPECT_EQ(port.tx->read(burst, port.receive[0]), 1u) << "one is more than a poll's share";
  EXPECT_TRUE(port.tx->release());
  EXPECT_EQ(port.dropped_in(DropReason::kDescriptorLoop), 1u);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(port.tx->read(burst, port.receive[0]), 0u);
  while (port.tx->read(burst, port.receive[0]) == 0) {
  }
  EXPECT_TRUE(port.tx->release());
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::microseconds(500));
  EXPECT_EQ(port.dropped_in(DropReason::kDescriptorLoop), 2u) << "then it is polled again";
}

TEST_F(PortQueueTest, AReceiveQueueOfEndlessChainsRests) {
  TestPort port(1500, 64, 32768);
  offer_loops(port.guest.rx(), 2, 8);
  FrameBurst burst;
  std::array<const Frame*, 4> frames;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    burst.frames[i].header = burst.header_of(static_cast<std::uint32_t>(i));
    burst.frames[i].header_bytes = 60;
    frames[i] = &burst.frames[i];
  }
  EXPECT_TRUE(port.rx->write(frames.data(), 4, port.transmit[0])) << "for what was returned";
  EXPECT_EQ(port.guest.rx().used(), 1);
  EXPECT_FALSE(port.rx->write(frames.data(), 4, port.transmit[0]));
  EXPECT_EQ(port.guest.rx().used(), 1) << "nothing is walked while it rests";
  EXPECT_EQ(port.dropped_out(DropReason::kNoRxBuffer), 8u) << "every frame is accounted for";
}

TEST_F(PortQueueTest, KnowsItsPositionAndBacklog) {
  add_port();
  add_port().guest.post(10);
  learn(1, kB);
  EXPECT_EQ(ports[1]->rx->available(), 10u);
  EXPECT_EQ(ports[1]->rx->position(), 0);
  for (std::uint32_t i = 0; i < 7; ++i) ASSERT_TRUE(guest(0).send(make_frame(kB, kA, 64, i)));
  EXPECT_EQ(ports[0]->tx->available(), 7u);
  run();
  EXPECT_EQ(ports[0]->tx->position(), 7);
  EXPECT_EQ(ports[0]->tx->available(), 0u);
  EXPECT_EQ(ports[1]->rx->position(), 7);
  EXPECT_EQ(ports[1]->rx->available(), 3u);
  EXPECT_EQ(guest(0).tx().used_flags(), 1) << "polled rings need no kicks";
}

// R2: the position is lost. Signalled once; nothing more is taken, nothing spins.
TEST_F(PortQueueTest, ABrokenSender) {
  add_port();
  add_port().guest.post(64);
  learn(1, kB);
  ASSERT_TRUE(guest(0).send(make_frame(kB, kA, 64)));
  run();
  guest(0).tx().set_available(301);
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(ports[0]->tx->broken(), virtq::BrokenRing::kIndexJump);
  EXPECT_EQ(TestPort::rung(ports[0]->broken), 1u);
  EXPECT_EQ(ports[0]->tx->available(), 0u);
  EXPECT_EQ(guest(0).tx().used(), 1);
  EXPECT_EQ(guest(1).receive().size(), 1u);
  EXPECT_EQ(ports[1]->rx->broken(), virtq::BrokenRing::kNone);
}

TEST_F(PortQueueTest, ABrokenReceiver) {
  add_port();
  add_port().guest.post(4);
  learn(1, kB);
  guest(1).rx().offer(300);  // no such descriptor
  for (std::uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(guest(0).send(make_frame(kB, kA, 64, i)));
  run();
  EXPECT_EQ(guest(0).reclaim(), 0u);
  EXPECT_EQ(guest(1).receive().size(), 4u) << "what was good in front of it is used";
  EXPECT_EQ(ports[1]->rx->broken(), virtq::BrokenRing::kHeadOutOfRange);
  EXPECT_EQ(TestPort::rung(ports[1]->broken), 1u);
  EXPECT_EQ(ports[1]->dropped_out(DropReason::kNoRxBuffer), 4u);
}

// Two workers, two senders, one receiver: all frames once, in the order of each sender.
TEST_F(PortQueueTest, TwoWorkersWriteToOneGuest) {
  constexpr std::uint32_t kFrames = 40'000;
  add_port();
  add_port();
  add_port();
  learn(2, kB);
  topology.workers = {{topology.workers[0][0]}, {topology.workers[0][1]}};
  guest(2).post(256);

  std::atomic<int> senders{2};
  std::vector<std::thread> threads;
  for (unsigned worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&, worker] {  // a guest and the worker that polls it
      const auto mine = std::make_unique<forwarding::Forwarder>(worker, now);
      std::uint32_t sent = 0;
      while (sent < kFrames || guest(worker).reclaim() > 0) {
        for (int i = 0; i < 16 && sent < kFrames; ++i) {
          if (!guest(worker).send(make_frame(kB, kA + 0x10 + worker, 64, sent))) break;
          ++sent;
        }
        bool found = false;
        mine->poll(topology, topology.workers[worker][0], found);
        std::this_thread::yield();
      }
      --senders;
    });
  }
  std::uint64_t received = 0;
  std::int64_t last[2] = {-1, -1};
  const auto take = [&] {
    for (const std::string& frame : guest(2).receive()) {
      ASSERT_EQ(frame.size(), 64u);
      const auto sender = static_cast<std::size_t>(frame[11] & 1 ? 0 : 1);
      const std::int64_t tag = frame_tag(frame);
      EXPECT_EQ(frame, make_frame(kB, kA + 0x10 + sender, 64, static_cast<std::uint32_t>(tag)));
      EXPECT_GT(tag, last[sender]);
      last[sender] = tag;
      ++received;
    }
    guest(2).post(256);
  };
  while (senders > 0 && !HasFatalFailure()) {
    take();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  take();
  const std::uint64_t lost = ports[2]->dropped_out(DropReason::kNoRxBuffer);
  EXPECT_EQ(received + lost, 2u * kFrames);
  EXPECT_EQ(ports[2]->transmit[0].packets.value() + ports[2]->transmit[1].packets.value(),
            received);
  EXPECT_GT(received, kFrames / 10);
}

}  // namespace
}  // namespace vswitch::test
