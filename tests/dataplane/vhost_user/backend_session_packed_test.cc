// What packed rings change in the protocol, several queue pairs, and the MTU a front-end asks for.
#include "dataplane/vhost_user/backend_session.h"
#include "tests/dataplane/vhost_user/backend_session_fixture.h"

namespace vswitch::test {
namespace {

constexpr std::uint64_t kOffersPacked = kOffered | kRingPackedBit;
constexpr std::uint64_t kPacked = kVersion1Bit | kRingPackedBit | kProtocolFeaturesBit;
constexpr std::uint64_t kSplit = kVersion1Bit | kProtocolFeaturesBit;
constexpr std::uint64_t kUser = 0x7f0000000000;

class PackedSession : public BackendSessionFixture {
 protected:
  // A new connection that has negotiated `features`.
  void start(std::uint64_t features = kPacked) {
    connect(1, kOffersPacked);
    tell(message(kSetFeatures, u64(features)));
    tell(message(kSetProtocolFeatures, u64(kMqProtocol | kReplyAckProtocol)));
    expect_alive();
  }
  void expect_refused(const std::string& asking) {
    const auto answer = ask(asking);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->number(), 1u);
    expect_violation();
  }
};

// C28: any size up to 32768, where split rings need a power of two.
TEST_F(PackedSession, AnySize) {
  for (const std::uint32_t size : {1u, 2u, 3u, 5u, 255u, 256u, 1000u, 32767u, 32768u}) {
    start();
    EXPECT_EQ(ask(vring_message(kSetVringNum, 1, size, kNeedReply))->number(), 0u) << size;
    EXPECT_EQ(vring(1).size, size);
  }
  for (const std::uint32_t size : {0u, 32769u, 65536u, 0x80000003u}) {
    start();
    expect_refused(vring_message(kSetVringNum, 1, size, kNeedReply));
    start(kSplit);
    expect_refused(vring_message(kSetVringNum, 1, size, kNeedReply));
  }
  start(kSplit);
  expect_refused(vring_message(kSetVringNum, 1, 3, kNeedReply));
  start(kSplit);
  EXPECT_EQ(ask(vring_message(kSetVringNum, 1, 32768, kNeedReply))->number(), 0u);
}

// Virtio 1.2, 2.8.10.1: 16 bytes for the ring, 4 for either event suppression structure.
TEST_F(PackedSession, Alignment) {
  struct Case {
    std::uint64_t descriptors, used, available;
    bool packed, split;  // right for this layout
  };
  for (const Case& place :
       {Case{16, 0x3004, 0x2004, true, true}, Case{8, 0x3004, 0x2004, false, false},
        Case{16, 0x3002, 0x2004, false, false}, Case{16, 0x3004, 0x2002, false, true}}) {
    for (const bool packed : {true, false}) {
      SCOPED_TRACE(testing::Message() << place.descriptors << " " << place.available << packed);
      start(packed ? kPacked : kSplit);
      const auto answer = ask(vring_address_message(
          0, kUser + place.descriptors, kUser + place.used, kUser + place.available, kNeedReply));
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->number() == 0, packed ? place.packed : place.split);
      EXPECT_EQ(session->closed(), !(packed ? place.packed : place.split));
    }
  }
}

// The upper half, the used position, is not asked for: it equals the other whenever a ring rests,
// and DPDK's driver sends 0x8000, with an upper half of zero.
TEST_F(PackedSession, BaseIsTheLowerHalf) {
  for (const std::uint32_t base : {0x8000u, 0x80078007u, 0x00070007u, 0xffffffffu, 0x8001u}) {
    start();
    EXPECT_EQ(ask(vring_message(kSetVringBase, 0, base, kNeedReply))->number(), 0u);
    EXPECT_EQ(vring(0).position, static_cast<std::uint16_t>(base));
  }
}

// C29: both halves, with the wrap counters in bits 15 and 31; twice the same answer.
TEST_F(PackedSession, GetVringBaseAnswersBothHalves) {
  start();
  int stops = 0;
  delegate->on_quiesced = [&] {
    if (stops++ == 0) session->state().vrings[1].position = 0x8007;
  };
  const auto first = ask(vring_message(kGetVringBase, 1, 0));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->payload, std::string("\x01\x00\x00\x00\x07\x80\x07\x80", 8));
  EXPECT_EQ(ask(vring_message(kGetVringBase, 1, 0))->vring_value(), 0x80078007u);
  session->state().vrings[1].position = 0x00ff;
  EXPECT_EQ(ask(vring_message(kGetVringBase, 1, 0))->vring_value(), 0x00ff00ffu);
  // What was answered may be set again.
  EXPECT_EQ(ask(vring_message(kSetVringBase, 1, 0x80078007, kNeedReply))->number(), 0u);
  EXPECT_EQ(ask(vring_message(kGetVringBase, 1, 0))->vring_value(), 0x80078007u);
}

// C35 i: a position in one layout is none in the other; both wrap counters start at 1.
TEST_F(PackedSession, AChangeOfLayoutStartsAtItsBeginning) {
  start();
  EXPECT_EQ(ask(vring_message(kGetVringBase, 0, 0))->vring_value(), 0x80008000u);
  tell(vring_message(kSetVringBase, 0, 0x8123));
  tell(message(kSetFeatures, u64(kPacked | kMrgRxbufBit)));
  EXPECT_EQ(vring(0).position, 0x8123) << "the same layout";
  tell(message(kSetFeatures, u64(kSplit)));
  EXPECT_EQ(ask(vring_message(kGetVringBase, 0, 0))->vring_value(), 0u);
  tell(vring_message(kSetVringBase, 0, 256));
  tell(message(kSetFeatures, u64(kPacked)));
  EXPECT_EQ(ask(vring_message(kGetVringBase, 0, 0))->vring_value(), 0x80008000u);
  expect_alive();
}

class SessionMtu : public BackendSessionFixture {};

// The port's is 9000. Refused, where an answer is asked for; the connection goes on either way.
TEST_F(SessionMtu, ABiggerOneThanThePortsIsRefused) {
  negotiate_reply_ack();
  EXPECT_EQ(ask(message(kNetSetMtu, u64(9000), kNeedReply))->number(), 0u);
  const auto answer = ask(message(kNetSetMtu, u64(9001), kNeedReply));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->request, kNetSetMtu);
  EXPECT_EQ(answer->flags, kReply);
  EXPECT_EQ(answer->payload, u64(1));
  EXPECT_FALSE(front.receive()) << "one answer";
  tell(message(kNetSetMtu, u64(65535)));
  EXPECT_FALSE(front.receive()) << "nobody asked";
  EXPECT_EQ(ask(message(kNetSetMtu, u64(68), kNeedReply))->number(), 0u);
  expect_alive();
  EXPECT_EQ(delegate->masks.size(), 1u) << "no ring was touched but for the features";
}

}  // namespace
}  // namespace vswitch::test
