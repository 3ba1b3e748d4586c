// Changes that wait for the workers, and peers that stop in the middle, do not read, or leave.
#include "dataplane/vhost_user/backend_session.h"
#include "tests/dataplane/vhost_user/backend_session_fixture.h"

namespace vswitch::test {
namespace {

class Waiting : public BackendSessionFixture {};

TEST_F(Waiting, LaterMessagesWaitBehindAChange) {
  negotiate_reply_ack();
  delegate->deferred = true;
  tell(vring_message(kSetVringNum, 0, 256, kNeedReply) +
       vring_message(kSetVringNum, 0, 128, kNeedReply) + message(kGetQueueNum));
  EXPECT_EQ(delegate->waiting(), 1u);
  EXPECT_EQ(vring(0).size, 0u) << "nothing changes under a ring in use";
  EXPECT_FALSE(front.receive()) << "answered only after the workers let go";
  EXPECT_FALSE(delegate->readable);
  delegate->release();
  EXPECT_EQ(vring(0).size, 256u);
  EXPECT_EQ(front.receive()->payload, u64(0));
  EXPECT_EQ(delegate->waiting(), 1u);
  EXPECT_FALSE(front.receive());
  delegate->release();
  run();
  EXPECT_EQ(vring(0).size, 128u);
  EXPECT_EQ(front.receive()->payload, u64(0));
  EXPECT_EQ(front.receive()->number(), 1u);
  expect_alive();
}

TEST_F(Waiting, EveryChangeQuiescesWhatItChanges) {
  const UniqueFd memory = make_memory(4096);
  const UniqueFd event = make_event();
  negotiate_reply_ack();
  struct Case {
    std::string bytes;
    std::vector<int> fds;
    std::uint64_t mask;
  };
  const std::vector<Case> cases = {
      {message(kSetFeatures, u64(kVersion1Bit | kMrgRxbufBit | kProtocolFeaturesBit)), {}, 3},
      {memory_table_message({{0, 4096, 0x10000}}), {memory.get()}, 3},
      {vring_message(kSetVringNum, 1, 64), {}, 2},
      {vring_message(kSetVringBase, 1, 5), {}, 2},
      {vring_address_message(0, 0x10000, 0x10400, 0x10800), {}, 1},
      {message(kSetVringKick, u64(1)), {event.get()}, 2},
      {message(kSetVringCall, u64(0)), {event.get()}, 1},
      {message(kSetVringErr, u64(1)), {event.get()}, 2},
      {vring_message(kSetVringEnable, 0, 1), {}, 1},
      {vring_message(kGetVringBase, 1, 0), {}, 2},
  };
  delegate->deferred = true;
  for (const Case& change : cases) {
    SCOPED_TRACE(static_cast<int>(change.bytes[0]));
    delegate->masks.clear();
    const int changes = delegate->changes;
    tell(change.bytes, change.fds);
    ASSERT_EQ(delegate->masks, std::vector<std::uint64_t>{change.mask});
    EXPECT_EQ(delegate->changes, changes);
    delegate->release();
    run();
    EXPECT_EQ(delegate->changes, changes + 1) << "what can run is started again";
  }
  ASSERT_TRUE(front.receive());
  expect_alive();
}

TEST_F(Waiting, HangUpWhileAChangeWaits) {
  delegate->deferred = true;
  tell(vring_message(kSetVringNum, 0, 256));
  front.hang_up();
  EXPECT_EQ(run(), 0) << "a waiting session is left alone";
  delegate->release();
  run();
  ASSERT_EQ(delegate->endings.size(), 1u);
  EXPECT_TRUE(delegate->endings[0].ok()) << delegate->endings[0];
}

TEST_F(Waiting, HangUpWhileAnAcknowledgedChangeWaits) {
  negotiate_reply_ack();
  delegate->deferred = true;
  tell(vring_message(kSetVringNum, 0, 256, kNeedReply));
  front.hang_up();
  delegate->release();
  run();
  EXPECT_EQ(delegate->endings.size(), 1u);
  EXPECT_TRUE(session->closed());
}

TEST_F(Waiting, ALateContinuationDoesNothing) {
  const UniqueFd memory = make_memory(4096);
  const int before = open_fds();
  delegate->deferred = true;
  tell(memory_table_message({{0, 4096, 0x10000}}), {memory.get()});
  session->close();
  const int changes = delegate->changes;
  delegate->release();
  EXPECT_EQ(delegate->changes, changes);
  EXPECT_TRUE(delegate->endings.empty());
  EXPECT_EQ(session->state().memory, nullptr);
  EXPECT_EQ(open_fds(), before);
}

TEST_F(Waiting, TheLastOwnerMayBeTheContinuation) {
  const UniqueFd event = make_event();
  delegate->deferred = true;
  tell(message(kSetVringKick, u64(0)), {event.get()});
  session->close();
  session.reset();
  delegate->release();  // destroys the session on return
  EXPECT_TRUE(front.closed(100));
}

TEST_F(Waiting, HalfAMessageThenSilence) {
  const UniqueFd memory = make_memory(4096);
  EXPECT_FALSE(session->peer_owes_bytes());
  tell(memory_table_message({{0, 4096, 0x10000}}).substr(0, 30), {memory.get()});
  EXPECT_TRUE(session->peer_owes_bytes());
  expect_alive();
  tell(memory_table_message({{0, 4096, 0x10000}}).substr(30));
  EXPECT_FALSE(session->peer_owes_bytes());
  ASSERT_NE(session->state().memory, nullptr);
  expect_alive();
}

TEST_F(Waiting, HalfAMessageDelaysNobody) {
  tell(message(kGetFeatures).substr(0, 5));
  const auto stuck = session;
  const auto stuck_delegate = std::move(delegate);
  const RawFrontend stuck_front = std::move(front);
  connect();
  EXPECT_EQ(ask(message(kGetFeatures))->number(), kOffered);
  EXPECT_TRUE(stuck->peer_owes_bytes());
  EXPECT_FALSE(session->peer_owes_bytes());
}

// The replies that fit are in the socket; the session then stops reading and does not spin.
TEST_F(Waiting, APeerThatNeverReadsItsReplies) {
  const std::string questions = [] {
    std::string all;
    for (int i = 0; i < 64; ++i) all += message(kGetFeatures);
    return all;
  }();
  ASSERT_EQ(::fcntl(front.fd(), F_SETFL, O_NONBLOCK), 0);
  bool stuck = false;
  for (int i = 0; i < 10'000 && !stuck; ++i) {
    const bool sent = front.send(questions);
    run();
    stuck = session->peer_owes_bytes() && !sent;
  }
  ASSERT_TRUE(stuck);
  EXPECT_FALSE(delegate->readable) << "nothing more is read from such a peer";
  EXPECT_TRUE(delegate->writable);
  EXPECT_EQ(run(), 0) << "and the loop does not spin over it";
  // It reads after all: everything is answered in the end.
  for (int answers = 0; front.receive().has_value(); ++answers) run();
  run();
  EXPECT_FALSE(session->peer_owes_bytes());
  EXPECT_TRUE(delegate->readable);
  expect_alive();
}

// The same, with answers that come out of a change.
TEST_F(Waiting, ChangesOfAPeerThatNeverReadsItsReplies) {
  negotiate_reply_ack();
  delegate->deferred = true;
  ASSERT_EQ(::fcntl(front.fd(), F_SETFL, O_NONBLOCK), 0);
  bool stuck = false;
  for (int i = 0; i < 100'000 && !stuck; ++i) {
    const bool sent = front.send(i % 2 == 0 ? vring_message(kSetVringNum, 0, 256, kNeedReply)
                                            : vring_message(kGetVringBase, 0, 0));
    run();
    while (delegate->waiting() > 0) delegate->release();
    EXPECT_LT(run(), 10) << "spins while it waits for the peer to read";
    if (HasFailure()) return;
    stuck = session->peer_owes_bytes() && !sent;
  }
  ASSERT_TRUE(stuck);
  EXPECT_FALSE(delegate->readable);
  EXPECT_TRUE(delegate->writable);
  EXPECT_EQ(run(), 0);
  while (front.receive().has_value()) {
    run();
    while (delegate->waiting() > 0) delegate->release();
    run();
  }
  EXPECT_FALSE(session->peer_owes_bytes());
  expect_alive();
}

// It shuts the connection down without closing it: a hang-up is all that the loop ever sees.
TEST_F(Waiting, APeerThatNeverReadsAndHangsUpHalfway) {
  ASSERT_EQ(::fcntl(front.fd(), F_SETFL, O_NONBLOCK), 0);
  while (!session->peer_owes_bytes()) {
    (void)front.send(message(kGetFeatures));
    run();
  }
  ASSERT_EQ(::shutdown(front.fd(), SHUT_RDWR), 0);
  EXPECT_LT(run(), 3) << "spins over the hang-up";
  EXPECT_TRUE(session->closed());
  EXPECT_EQ(delegate->endings.size(), 1u);
}

TEST_F(Waiting, APeerThatNeverReadsAndLeaves) {
  ASSERT_EQ(::fcntl(front.fd(), F_SETFL, O_NONBLOCK), 0);
  while (!session->peer_owes_bytes()) {
    (void)front.send(message(kGetFeatures));
    run();
  }
  front.hang_up();
  run();
  ASSERT_EQ(delegate->endings.size(), 1u);
  EXPECT_FALSE(absl::IsInvalidArgument(delegate->endings[0])) << delegate->endings[0];
  EXPECT_TRUE(session->closed());
}

}  // namespace
}  // namespace vswitch::test
