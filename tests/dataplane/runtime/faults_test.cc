// Hostile and dying guests: whatever one of them does, it alone is affected.
#include <set>

#include "tests/dataplane/runtime/dataplane_fixture.h"

namespace vswitch::test {
namespace {

using testing::HasSubstr;

constexpr Mac kA = 0x020000000001;
constexpr Mac kB = 0x020000000002;
constexpr Mac kEvil = 0x0200000000e1;

class Faults : public DataplaneFixture {
 protected:
  void SetUp() override {
    DataplaneFixture::SetUp();
    a = add_guest("a", kA);
    b = add_guest("b", kB);
  }
  // The pair of well-behaved guests goes on, without any loss.
  void expect_others_unharmed() {
    Stream stream(*a, *b);
    for (int i = 0; i < 50; ++i) {
      stream.step();
      EXPECT_TRUE(stream.settle());
    }
    EXPECT_EQ(stream.received(), stream.sent());
    EXPECT_EQ(port("a").state, PortState::kUp);
    EXPECT_EQ(port("b").state, PortState::kUp);
    EXPECT_EQ(port("a").protocol_violations, 0u);
  }

  std::unique_ptr<SocketGuest> a, b;
};

// R2, and its release by a new start of the ring.
TEST_F(Faults, AnIndexJumpQuarantinesOnePort) {
  const auto evil = add_guest("evil", kEvil);
  const std::uint16_t at = evil->memory.tx().available();
  evil->memory.tx().set_available(static_cast<std::uint16_t>(at + 300));
  ASSERT_TRUE(becomes("evil", PortState::kQuarantined));
  const PortStatus status = port("evil");
  EXPECT_THAT(status.state_reason, HasSubstr("available index"));
  EXPECT_TRUE(status.queues.at(1).quarantined);
  EXPECT_FALSE(status.queues.at(1).running);
  EXPECT_TRUE(status.queues.at(0).running) << "every other queue goes on";
  EXPECT_EQ(status.protocol_violations, 0u);
  EXPECT_TRUE(evil->error_rung(1));
  EXPECT_FALSE(evil->error_rung(0));
  EXPECT_EQ(evil->memory.tx().used(), at) << "nothing was taken from it";
  expect_others_unharmed();

  // Neither time nor other messages release it.
  ASSERT_TRUE(evil->enable(1, false) && evil->enable(1, true));
  EXPECT_EQ(port("evil").state, PortState::kQuarantined);
  EXPECT_EQ(evil->stop(1), at);
  evil->memory.tx().reset();
  ASSERT_TRUE(evil->set_ring(1));
  EXPECT_EQ(port("evil").state, PortState::kUp);
  ASSERT_TRUE(evil->memory.send(make_frame(kA, kEvil, 60, 77)));
  ASSERT_TRUE(eventually([&] { return evil->memory.reclaim() == 0; }));
  const auto frames = a->memory.receive();
  ASSERT_FALSE(frames.empty());
  EXPECT_EQ(frame_tag(frames.back()), 77u);
}

TEST_F(Faults, ABrokenReceiveRing) {
  const auto evil = add_guest("evil", kEvil);
  for (int i = 0; i < 256; ++i) evil->memory.rx().offer(60'000);
  // It breaks when it is reached.
  for (int i = 0; i < 400; ++i) {
    while (!a->memory.send(make_frame(kEvil, kA, 60))) std::this_thread::yield();
  }
  ASSERT_TRUE(becomes("evil", PortState::kQuarantined));
  EXPECT_TRUE(port("evil").queues.at(0).quarantined);
  EXPECT_TRUE(evil->error_rung(0));
  ASSERT_TRUE(eventually([&] { return a->memory.reclaim() == 0; }));
  expect_others_unharmed();
}

// Disconnecting is a way out of quarantine too.
TEST_F(Faults, AQuarantinedGuestMayReconnect) {
  auto evil = add_guest("evil", kEvil);
  evil->memory.tx().set_available(9999);
  ASSERT_TRUE(becomes("evil", PortState::kQuarantined));
  evil->front.hang_up();
  ASSERT_TRUE(becomes("evil", PortState::kListening));
  SocketGuest fresh(kEvil);
  ASSERT_TRUE(fresh.attach(path("evil")));
  EXPECT_EQ(port("evil").state, PortState::kUp);
}

// R3.
TEST_F(Faults, AViolationEndsOneConnection) {
  const int fds = open_fds();
  auto evil = add_guest("evil", kEvil);
  EXPECT_EQ(port("evil").connections, 1u);
  ASSERT_TRUE(evil->front.send(vring_message(kSetVringNum, 0, 3, kNeedReply)));
  const auto answer = evil->front.receive(1000);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->number(), 1u);
  EXPECT_TRUE(evil->front.closed(1000));
  ASSERT_TRUE(becomes("evil", PortState::kListening));
  const PortStatus status = port("evil");
  EXPECT_EQ(status.protocol_violations, 1u);
  EXPECT_THAT(status.state_reason, HasSubstr("SET_VRING_NUM"));
  EXPECT_EQ(status.negotiated_features, 0u);
  EXPECT_EQ(status.memory_bytes, 0u);
  expect_others_unharmed();
  evil->memory.rx().reset();
  evil->memory.tx().reset();
  ASSERT_TRUE(evil->attach(path("evil"))) << "the port waits for a better guest";
  EXPECT_EQ(port("evil").state, PortState::kUp);
  EXPECT_EQ(port("evil").connections, 2u);
  evil->front.hang_up();
  ASSERT_TRUE(becomes("evil", PortState::kListening));
  EXPECT_EQ(port("evil").protocol_violations, 1u);
  evil.reset();
  EXPECT_EQ(open_fds(), fds + 1) << "the listener is all that is left";
}

// R4: the memory goes while it is in use.
TEST_F(Faults, MemoryVanishesUnderTraffic) {
  const auto evil = add_guest("evil", kEvil);
  std::atomic<bool> stop{false};
  // The good pair never stops, and another stream is aimed at the victim.
  Stream stream(*a, *b);
  std::thread good([&] {
    std::uint32_t i = 0;
    while (!stop) {
      stream.step();
      (void)b->memory.send(make_frame(kEvil, kB, 200, i++));
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(::ftruncate(evil->memory.memory(), 0), 0);
  EXPECT_TRUE(becomes("evil", PortState::kQuarantined));
  EXPECT_THAT(port("evil").state_reason, HasSubstr("memory"));
  EXPECT_TRUE(eventually([&] { return evil->error_rung(0) || evil->error_rung(1); }, 1));
  const std::uint32_t then = stream.received();
  EXPECT_TRUE(eventually([&] { return stream.received() > then + 1000; }));
  stop = true;
  good.join();
  EXPECT_TRUE(stream.settle());
  EXPECT_EQ(stream.sent(),
            stream.received() + dropped(port("b").transmit, DropReason::kNoRxBuffer));
  expect_others_unharmed();

  // What it has lost does not come back with a mere kick.
  ASSERT_TRUE(evil->kick(0) && evil->kick(1));
  EXPECT_NE(port("evil").state, PortState::kUp) << "rings in memory that nobody shares";
  // New memory and a new start.
  ASSERT_EQ(::ftruncate(evil->memory.memory(), static_cast<off_t>(evil->memory.bytes())), 0);
  evil->memory.rx().reset();
  evil->memory.tx().reset();
  ASSERT_TRUE(evil->set_memory() && evil->set_ring(0) && evil->set_ring(1));
  EXPECT_TRUE(becomes("evil", PortState::kUp)) << port("evil").state_reason;
  EXPECT_TRUE(delete_port("evil").ok());
}

// The memory was gone before the rings started.
TEST_F(Faults, MemoryVanishesBeforeTheStart) {
  ASSERT_TRUE(create_port("evil").ok());
  SocketGuest evil(kEvil);
  ASSERT_TRUE(evil.connect(path("evil")) && evil.negotiate() && evil.set_memory());
  ASSERT_EQ(::ftruncate(evil.memory.memory(), 0), 0);
  for (std::uint32_t i = 0; i < 2; ++i) {
    (void)evil.front.send(vring_message(kSetVringNum, i, 256));
    (void)evil.front.send(vring_address_message(
        i, evil.memory.user_address(i, 0), evil.memory.user_address(i, evil.memory.rx().used_at()),
        evil.memory.user_address(i, evil.memory.rx().available_at())));
    (void)evil.front.send(message(kSetVringKick, u64(i | kNoFd)));
    (void)evil.front.send(vring_message(kSetVringEnable, i, 1));
  }
  EXPECT_TRUE(becomes("evil", PortState::kQuarantined)) << port("evil").state_reason;
  expect_others_unharmed();
}

// Half a message, then silence: it has five seconds, and meanwhile delays nobody.
TEST_F(Faults, HalfAMessage) {
  ASSERT_TRUE(create_port("evil").ok());
  SocketGuest evil(kEvil);
  ASSERT_TRUE(evil.connect(path("evil")) && evil.negotiate());
  ASSERT_TRUE(evil.front.send(vring_message(kSetVringNum, 0, 256).substr(0, 13)));
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(create_port("c").ok());
  for (int i = 0; i < 10; ++i) {
    SocketGuest quick(kEvil + 1);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(quick.attach(path("c")));
    EXPECT_LT(seconds_since(begin), 0.1);
    quick.front.hang_up();
    ASSERT_TRUE(becomes("c", PortState::kListening));
  }
  EXPECT_EQ(port("evil").state, PortState::kNegotiating);
  ASSERT_TRUE(becomes("evil", PortState::kListening, 10));
  EXPECT_GT(seconds_since(start), 4.0);
  EXPECT_LT(seconds_since(start), 8.0);
  EXPECT_TRUE(evil.front.closed(100));
  EXPECT_FALSE(port("evil").state_reason.empty());
  EXPECT_EQ(port("evil").protocol_violations, 0u) << "slow is not wrong";
  expect_others_unharmed();
}

// A front-end that sends nothing is not on any clock.
TEST_F(Faults, SilenceBetweenMessagesIsFine) {
  ASSERT_TRUE(create_port("quiet").ok());
  SocketGuest quiet(kEvil);
  ASSERT_TRUE(quiet.connect(path("quiet")) && quiet.negotiate());
  std::this_thread::sleep_for(std::chrono::milliseconds(6500));
  EXPECT_EQ(port("quiet").state, PortState::kNegotiating);
  EXPECT_TRUE(quiet.set_memory());
}

}  // namespace
}  // namespace vswitch::test
