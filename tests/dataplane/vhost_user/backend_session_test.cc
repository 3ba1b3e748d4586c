// Whole handshakes, in the orders that front-ends really use.
#include "dataplane/vhost_user/backend_session.h"

#include "tests/dataplane/vhost_user/backend_session_fixture.h"

namespace vswitch::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Handshake : public BackendSessionFixture {
 protected:
  static constexpr std::uint64_t kBytes = 1 << 20;
  static constexpr std::uint64_t kUser = 0x7f0000000000;

  UniqueFd memory = make_memory(kBytes);
  UniqueFd kick = make_event();
  UniqueFd call = make_event();
};

TEST_F(Handshake, OffersExactBytes) {
  const auto features = ask(message(kGetFeatures));
  ASSERT_TRUE(features);
  EXPECT_EQ(features->request, 1u);
  EXPECT_EQ(features->flags, kReply);
  EXPECT_EQ(features->payload, std::string("\x00\x80\x00\x58\x01\x00\x00\x00", 8));

  const auto protocol = ask(message(kGetProtocolFeatures));
  ASSERT_TRUE(protocol);
  EXPECT_EQ(protocol->request, 15u);
  EXPECT_EQ(protocol->flags, kReply);
  EXPECT_EQ(protocol->payload, std::string("\x19\x00\x00\x00\x00\x00\x00\x00", 8));

  const auto queues = ask(message(kGetQueueNum));
  ASSERT_TRUE(queues);
  EXPECT_EQ(queues->payload, std::string("\x01\x00\x00\x00\x00\x00\x00\x00", 8));
  expect_alive();
  EXPECT_THAT(delegate->masks, IsEmpty());
}

// QEMU: protocol features before SET_FEATURES, call descriptors and ENABLE before the rings exist.
TEST_F(Handshake, QemuOrder) {
  EXPECT_EQ(ask(message(kGetFeatures))->number(), kOffered);
  EXPECT_EQ(ask(message(kGetProtocolFeatures))->number(), 0x19u);
  tell(message(kSetProtocolFeatures, u64(9)));
  EXPECT_EQ(ask(message(kGetQueueNum))->number(), 1u);
  tell(message(kSetOwner));
  EXPECT_EQ(ask(message(kGetFeatures))->number(), kOffered);
  for (std::uint32_t i = 0; i < 2; ++i) {
    tell(message(kSetVringCall, u64(i)), {call.get()});
    tell(message(kSetVringErr, u64(i)), {call.get()});
  }
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(ask(vring_message(kSetVringEnable, i, 1, kNeedReply))->number(), 0u);
    EXPECT_TRUE(vring(i).enabled);
    EXPECT_FALSE(vring(i).started);
  }
  EXPECT_FALSE(session->state().features_set);
  tell(message(kSetFeatures, u64(kVersion1Bit | kMrgRxbufBit | kProtocolFeaturesBit)));
  EXPECT_TRUE(vring(0).enabled);
  EXPECT_TRUE(vring(1).enabled);
  const auto mapped =
      ask(memory_table_message(
              {{0, kBytes / 2, kUser}, {1ull << 32, kBytes / 2, kUser + kBytes / 2, kBytes / 2}},
              kNeedReply),
          {memory.get(), memory.get()});
  EXPECT_EQ(mapped->number(), 0u);
  for (std::uint32_t i = 0; i < 2; ++i) {
    tell(vring_message(kSetVringNum, i, 256));
    tell(vring_message(kSetVringBase, i, 41 + i));
    tell(vring_address_message(i, kUser + 0x1000, kUser + 0x3000, kUser + 0x2000));
    tell(message(kSetVringKick, u64(i)), {kick.get()});
    tell(message(kSetVringCall, u64(i)), {call.get()});
  }
  expect_alive();
  EXPECT_EQ(session->state().features, kVersion1Bit | kMrgRxbufBit | kProtocolFeaturesBit);
  EXPECT_EQ(session->state().protocol_features, 9u);
  ASSERT_NE(session->state().memory, nullptr);
  EXPECT_EQ(session->state().memory->regions().size(), 2u);
  EXPECT_EQ(session->state().memory->total_bytes(), kBytes);
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(vring(i).size, 256u);
    EXPECT_EQ(vring(i).position, 41 + i);
    EXPECT_TRUE(vring(i).addressed);
    EXPECT_EQ(vring(i).descriptors, kUser + 0x1000);
    EXPECT_EQ(vring(i).available, kUser + 0x2000);
    EXPECT_EQ(vring(i).used, kUser + 0x3000);
    EXPECT_TRUE(vring(i).started);
    EXPECT_TRUE(vring(i).enabled);
    EXPECT_TRUE(vring(i).kick.valid());
    EXPECT_TRUE(vring(i).call.valid());
    EXPECT_TRUE(vring(i).error.valid());
  }
  EXPECT_EQ(session->last_request(), "SET_VRING_CALL");
  EXPECT_FALSE(front.receive()) << "an answer nobody asked for";
}

// DPDK's virtio-user: rings start disabled; ENABLE 0, SET_MEM_TABLE, ENABLE 1 while they run; all
// bases 0.
TEST_F(Handshake, VirtioUserOrder) {
  tell(message(kSetOwner));
  ask(message(kGetFeatures));
  ask(message(kGetProtocolFeatures));
  tell(message(kSetProtocolFeatures, u64(kReplyAckProtocol)));
  for (std::uint32_t i = 0; i < 2; ++i) tell(message(kSetVringCall, u64(i)), {call.get()});
  tell(message(kSetFeatures, u64(kVersion1Bit | kProtocolFeaturesBit)));
  EXPECT_EQ(ask(memory_table_message({{0, kBytes, kUser}}, kNeedReply), {memory.get()})->number(),
            0u);
  for (std::uint32_t i = 0; i < 2; ++i) {
    tell(vring_message(kSetVringNum, i, 256));
    tell(vring_message(kSetVringBase, i, 0));
    tell(vring_address_message(i, kUser, kUser + 0x3000, kUser + 0x2000));
    tell(message(kSetVringKick, u64(i)), {kick.get()});
  }
  EXPECT_FALSE(vring(0).enabled) << "with protocol features a ring waits for ENABLE";
  tell(vring_message(kSetVringEnable, 0, 1));
  tell(vring_message(kSetVringEnable, 1, 1));
  EXPECT_TRUE(vring(0).enabled && vring(1).enabled);

  delegate->masks.clear();
  const auto before = session->state().memory;
  tell(vring_message(kSetVringEnable, 0, 0));
  EXPECT_FALSE(vring(0).enabled);
  EXPECT_TRUE(vring(0).started) << "disabled is not stopped";
  EXPECT_EQ(ask(memory_table_message({{0, kBytes, kUser}}, kNeedReply), {memory.get()})->number(),
            0u);
  EXPECT_NE(session->state().memory, before);
  tell(vring_message(kSetVringEnable, 0, 1));
  EXPECT_TRUE(vring(0).enabled && vring(0).started);
  EXPECT_THAT(delegate->masks, ElementsAre(1u, 3u, 1u));
  expect_alive();
}

// "Ring states": without VHOST_USER_F_PROTOCOL_FEATURES rings start enabled (C30 ii).
TEST_F(Handshake, WithoutProtocolFeaturesRingsStartEnabled) {
  tell(message(kSetOwner));
  tell(message(kSetFeatures, u64(kVersion1Bit)));
  EXPECT_TRUE(vring(0).enabled);
  EXPECT_TRUE(vring(1).enabled);
  expect_alive();
}

// C61.
TEST_F(Handshake, OldAndRareForms) {
  negotiate_reply_ack();
  EXPECT_EQ(ask(message(kResetOwner, "", kNeedReply))->number(), 0u);
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(ask(message(kSetVringCall, u64(i | kNoFd), kNeedReply))->number(), 0u);
    EXPECT_EQ(ask(message(kSetVringErr, u64(i | kNoFd), kNeedReply))->number(), 0u);
    EXPECT_EQ(ask(message(kSetVringKick, u64(i | kNoFd), kNeedReply))->number(), 0u);
    EXPECT_TRUE(vring(i).started) << "a ring without a kick descriptor is polled";
    EXPECT_FALSE(vring(i).kick.valid());
    EXPECT_FALSE(vring(i).call.valid());
    EXPECT_FALSE(vring(i).error.valid());
  }
  expect_alive();
}

// A doorbell may be taken back, and its descriptor is closed.
TEST_F(Handshake, DoorbellsAreReplacedAndClosed) {
  const int before = open_fds();
  for (int round = 0; round < 100; ++round) {
    tell(message(kSetVringCall, u64(0)), {call.get()});
    tell(message(kSetVringKick, u64(0)), {kick.get()});
    tell(message(kSetVringErr, u64(0)), {kick.get()});
  }
  EXPECT_EQ(open_fds(), before + 3);
  tell(message(kSetVringCall, u64(kNoFd)));
  tell(message(kSetVringKick, u64(kNoFd)));
  tell(message(kSetVringErr, u64(kNoFd)));
  EXPECT_EQ(open_fds(), before);
  expect_alive();
}

TEST_F(Handshake, DoorbellsAreMadeNonBlocking) {
  tell(message(kSetVringCall, u64(0)), {call.get()});
  EXPECT_NE(::fcntl(call.get(), F_GETFL) & O_NONBLOCK, 0);
}

// A stopping QEMU: ENABLE 0 for both, then GET_VRING_BASE for both; a new start with new features.
TEST_F(Handshake, StopAndStartAgain) {
  negotiate_reply_ack();
  tell(memory_table_message({{0, kBytes, kUser}}), {memory.get()});
  for (std::uint32_t i = 0; i < 2; ++i) {
    tell(vring_message(kSetVringNum, i, 256));
    tell(vring_message(kSetVringBase, i, 0));
    tell(vring_address_message(i, kUser, kUser + 0x3000, kUser + 0x2000));
    tell(message(kSetVringKick, u64(i)), {kick.get()});
    tell(vring_message(kSetVringEnable, i, 1));
  }
  delegate->on_quiesced = [&] { session->state().vrings[0].position = 0xfff7; };
  const auto base = ask(vring_message(kGetVringBase, 0, 0));
  ASSERT_TRUE(base);
  EXPECT_EQ(base->request, 11u);
  EXPECT_EQ(base->flags, kReply);
  EXPECT_EQ(base->payload, std::string("\x00\x00\x00\x00\xf7\xff\x00\x00", 8));
  EXPECT_FALSE(vring(0).started);
  EXPECT_TRUE(vring(1).started) << "only the ring that was asked for stops";
  tell(message(kSetFeatures, u64(kVersion1Bit | kMrgRxbufBit | kProtocolFeaturesBit)));
  EXPECT_TRUE(vring(0).enabled) << "a change of features disables nothing";
  tell(vring_message(kSetVringBase, 0, 0xfff7));
  tell(message(kSetVringKick, u64(0)), {kick.get()});
  EXPECT_TRUE(vring(0).started);
  EXPECT_EQ(vring(0).position, 0xfff7);
  expect_alive();
}

// C29: twice the same answer, ENABLE alone does not restart, a new kick does.
TEST_F(Handshake, GetVringBaseStopsUntilANewKick) {
  negotiate_reply_ack();
  tell(vring_message(kSetVringEnable, 1, 1));
  tell(message(kSetVringKick, u64(1)), {kick.get()});
  int stops = 0;
  delegate->on_quiesced = [&] {
    if (stops++ == 0) session->state().vrings[1].position = 7;
  };
  EXPECT_EQ(ask(vring_message(kGetVringBase, 1, 0))->vring_value(), 7u);
  EXPECT_EQ(ask(vring_message(kGetVringBase, 1, 0))->vring_value(), 7u);
  EXPECT_FALSE(vring(1).started);
  tell(vring_message(kSetVringEnable, 1, 0));
  tell(vring_message(kSetVringEnable, 1, 1));
  EXPECT_FALSE(vring(1).started);
  tell(vring_message(kSetVringBase, 1, 7));
  tell(vring_message(kSetVringNum, 1, 128));
  EXPECT_FALSE(vring(1).started);
  tell(message(kSetVringKick, u64(1)), {kick.get()});
  EXPECT_TRUE(vring(1).started);
  EXPECT_EQ(vring(1).position, 7);
  expect_alive();
}

// C30 i: what front-ends send at every start must not disturb rings that run.
TEST_F(Handshake, TheSameFeaturesAgainTouchNoRing) {
  negotiate_reply_ack();
  delegate->masks.clear();
  EXPECT_EQ(
      ask(message(kSetFeatures, u64(kVersion1Bit | kProtocolFeaturesBit), kNeedReply))->number(),
      0u);
  EXPECT_EQ(ask(message(kSetOwner, "", kNeedReply))->number(), 0u);
  for (const std::uint64_t mask : delegate->masks) EXPECT_EQ(mask, 0u);
  delegate->masks.clear();
  tell(message(kSetFeatures, u64(kVersion1Bit | kMrgRxbufBit | kProtocolFeaturesBit)));
  EXPECT_THAT(delegate->masks, ElementsAre(3u)) << "other features change running rings";
  expect_alive();
}

// Every byte on its own, with the descriptors on the first byte of their message.
TEST_F(Handshake, ByteByByte) {
  const auto dribble = [&](const std::string& bytes, const std::vector<int>& fds = {}) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      ASSERT_TRUE(front.send(bytes.substr(i, 1), i == 0 ? fds : std::vector<int>{}));
      run();
      EXPECT_EQ(session->peer_owes_bytes(), i + 1 < bytes.size());
    }
  };
  dribble(message(kGetFeatures));
  EXPECT_EQ(front.receive()->number(), kOffered);
  dribble(message(kSetFeatures, u64(kVersion1Bit | kProtocolFeaturesBit)));
  dribble(message(kSetProtocolFeatures, u64(9)));
  dribble(memory_table_message({{0, kBytes, kUser}}, kNeedReply), {memory.get()});
  EXPECT_EQ(front.receive()->number(), 0u);
  for (std::uint32_t i = 0; i < 2; ++i) {
    dribble(vring_message(kSetVringNum, i, 256));
    dribble(vring_address_message(i, kUser, kUser + 0x3000, kUser + 0x2000));
    dribble(message(kSetVringCall, u64(i)), {call.get()});
    dribble(message(kSetVringKick, u64(i)), {kick.get()});
    dribble(vring_message(kSetVringEnable, i, 1));
    EXPECT_TRUE(vring(i).started && vring(i).enabled && vring(i).addressed);
  }
  dribble(vring_message(kGetVringBase, 0, 0));
  EXPECT_EQ(front.receive()->vring_value(), 0u);
  expect_alive();
}

// The whole handshake in one piece; descriptors end the pieces of a stream, so those without.
TEST_F(Handshake, AllAtOnce) {
  std::string all = message(kSetOwner) + message(kGetFeatures) +
                    message(kSetFeatures, u64(kVersion1Bit | kProtocolFeaturesBit)) +
                    message(kSetProtocolFeatures, u64(9));
  for (std::uint32_t i = 0; i < 2; ++i) {
    all += vring_message(kSetVringNum, i, 256) + vring_message(kSetVringBase, i, 0) +
           message(kSetVringKick, u64(i | kNoFd)) + vring_message(kSetVringEnable, i, 1);
  }
  tell(all);
  expect_alive();
  EXPECT_EQ(front.receive()->number(), kOffered);
  EXPECT_TRUE(vring(1).started && vring(1).enabled);
  // More than one turn's worth.
  std::string many;
  for (int i = 0; i < 500; ++i) many += message(kSetOwner);
  tell(many + message(kGetQueueNum));
  EXPECT_EQ(front.receive()->number(), 1u);
  expect_alive();
}

TEST_F(Handshake, AGoodbyeIsNoViolation) {
  tell(message(kSetOwner));
  front.hang_up();
  run();
  ASSERT_EQ(delegate->endings.size(), 1u);
  EXPECT_TRUE(delegate->endings[0].ok()) << delegate->endings[0];
}

}  // namespace
}  // namespace vswitch::test
