// Everything a front-end may not do: the connection ends, nothing else does, nothing is kept.
#include "dataplane/vhost_user/backend_session.h"
#include "tests/dataplane/vhost_user/backend_session_fixture.h"

namespace vswitch::test {
namespace {

class Rules : public BackendSessionFixture {
 protected:
  // On a new connection: `bytes` ends it, silently, and leaves no descriptor open.
  void expect_refused(const std::string& what, const std::string& bytes,
                      const std::vector<int>& fds = {}) {
    SCOPED_TRACE(what);
    connect();
    // Nothing of an earlier refusal may still be on its way out.
    int before = open_fds();
    for (int flat = 0; flat < 5; ++flat) {
      ::usleep(1000);
      if (open_fds() != before) flat = 0;
      before = open_fds();
    }
    tell(bytes, fds);
    EXPECT_FALSE(front.receive()) << "an answer that nobody asked for";
    EXPECT_TRUE(front.fd() >= 0);
    expect_violation();
    EXPECT_TRUE(front.closed(100));
    // The session's socket is gone; what could have blocked is closed on another thread.
    for (int i = 0; i < 5000 && open_fds() != before - 1; ++i) ::usleep(1000);
    EXPECT_EQ(open_fds(), before - 1);
    // And once more with an answer asked for: it says failure, once.
    connect();
    negotiate_reply_ack();
    std::string asking = bytes;
    asking[4] = static_cast<char>(asking[4] | 8);
    const auto answer = ask(asking, fds);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->flags, kReply);
    EXPECT_EQ(answer->request, static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[0])));
    EXPECT_NE(answer->number(), 0u);
    EXPECT_FALSE(front.receive());
    expect_violation();
  }
  void expect_accepted(const std::string& what, const std::string& bytes,
                       const std::vector<int>& fds = {}) {
    SCOPED_TRACE(what);
    connect();
    tell(bytes, fds);
    expect_alive();
  }
};

// C23: 10,000 connections.
TEST_F(Rules, NoDescriptorIsEverLeft) {
  const UniqueFd memory = make_memory(4096);
  const int fd = memory.get();
  session.reset();
  front.hang_up();
  const int before = open_fds();
  for (int i = 0; i < 10'000; ++i) {
    connect();
    if (i % 2 == 0) {
      tell(memory_table_message({{0, 4096, 0x10000}}), {fd, fd});
    } else {
      tell(message(31, u64(0)), {fd, fd, fd, fd, fd, fd, fd, fd});  // GET_INFLIGHT_FD
    }
    expect_violation();
    front.hang_up();
    if (HasFailure()) break;
  }
  delegate.reset();
  EXPECT_EQ(open_fds(), before);
}

// Descriptors of a message that never becomes whole, and of one too many.
TEST_F(Rules, DescriptorsOfUnfinishedMessagesAreClosed) {
  const UniqueFd memory = make_memory(4096);
  const int before = open_fds();
  tell(memory_table_message({{0, 4096, 0x10000}}).substr(0, 20), {memory.get()});
  EXPECT_EQ(open_fds(), before + 1);
  front.hang_up();
  run();
  ASSERT_EQ(delegate->endings.size(), 1u);
  EXPECT_FALSE(delegate->endings[0].ok());
  EXPECT_FALSE(absl::IsInvalidArgument(delegate->endings[0]))
      << "a peer that died has broken no rule";
  session.reset();
  EXPECT_EQ(open_fds(), before - 2);
  connect();
  tell(message(kSetOwner), std::vector<int>(9, memory.get()));
  expect_violation();
  front.hang_up();
  EXPECT_EQ(open_fds(), before - 2);
}

// C24, C36: index and count.
TEST_F(Rules, VringIndexOutOfRange) {
  const UniqueFd event = make_event();
  for (const std::uint32_t index : {2u, 3u, 200u, 255u, 256u, 65535u, 0x80000000u, 0xffffffffu}) {
    expect_refused("NUM", vring_message(kSetVringNum, index, 256));
    expect_refused("BASE", vring_message(kSetVringBase, index, 0));
    expect_refused("ENABLE", vring_message(kSetVringEnable, index, 1));
    expect_refused("ADDR", vring_address_message(index, 0x1000, 0x2000, 0x3000));
    expect_refused("GET", vring_message(kGetVringBase, index, 0));
  }
  for (const std::uint64_t index : {2ull, 200ull, 255ull}) {
    expect_refused("KICK", message(kSetVringKick, u64(index)), {event.get()});
    expect_refused("CALL", message(kSetVringCall, u64(index | kNoFd)));
  }
  expect_refused("high bits", message(kSetVringKick, u64(1ull << 32)), {event.get()});
  expect_refused("bit 9", message(kSetVringKick, u64(1ull << 9)), {event.get()});
  expect_accepted("NUM 1", vring_message(kSetVringNum, 1, 256));
}

// C36 from the other side: four pairs exist, and are said to.
TEST_F(Rules, VringsOfAllQueuePairs) {
  connect(4);
  EXPECT_EQ(ask(message(kGetQueueNum))->number(), 4u);
  tell(vring_message(kSetVringNum, 7, 256));
  expect_alive();
  tell(vring_message(kSetVringNum, 8, 256));
  expect_violation();
}

// C28.
TEST_F(Rules, RingSize) {
  for (const std::uint32_t size :
       {0u, 3u, 255u, 32769u, 65536u, 0x10000u, 0x80000000u, 0xffffffffu}) {
    expect_refused(std::to_string(size), vring_message(kSetVringNum, 0, size));
  }
  for (const std::uint32_t size : {1u, 2u, 4u, 256u, 32768u}) {
    expect_accepted(std::to_string(size), vring_message(kSetVringNum, 0, size));
  }
}

TEST_F(Rules, RingBase) {
  expect_refused("65536", vring_message(kSetVringBase, 0, 65536));
  expect_refused("wrapped", vring_message(kSetVringBase, 0, 0x80000001));
  expect_accepted("65535", vring_message(kSetVringBase, 0, 65535));
}

TEST_F(Rules, WhatIsNoMtu) {
  for (const std::uint64_t mtu : {0ull, 67ull, 65536ull, 1ull << 32, ~0ull}) {
    expect_refused(std::to_string(mtu), message(kNetSetMtu, u64(mtu)));
  }
  expect_refused("32 bits", message(kNetSetMtu, u32(1500)));
  for (const std::uint64_t mtu : {68ull, 1500ull, 9000ull, 9001ull, 65535ull}) {
    expect_accepted(std::to_string(mtu), message(kNetSetMtu, u64(mtu)));
  }
}

TEST_F(Rules, EnableIsZeroOrOne) {
  expect_refused("2", vring_message(kSetVringEnable, 0, 2));
  expect_refused("-1", vring_message(kSetVringEnable, 0, 0xffffffff));
}

// Virtio 1.2, 2.7: 16, 2 and 4 bytes.
TEST_F(Rules, MisalignedRings) {
  constexpr std::uint64_t kBase = 0x7f0000000000;
  expect_refused("descriptors",
                 vring_address_message(0, kBase + 8, kBase + 0x3000, kBase + 0x2000));
  expect_refused("used", vring_address_message(0, kBase, kBase + 0x3002, kBase + 0x2000));
  expect_refused("available", vring_address_message(0, kBase, kBase + 0x3000, kBase + 0x2001));
  expect_accepted("least", vring_address_message(0, kBase + 16, kBase + 0x3004, kBase + 0x2002));
}

TEST_F(Rules, DoorbellsMustBeEventfds) {
  const auto [read_end, write_end] = make_pipe();
  const UniqueFd memory = make_memory(4096);
  for (const std::uint32_t request : {kSetVringKick, kSetVringCall, kSetVringErr}) {
    expect_refused("pipe", message(request, u64(0)), {write_end.get()});
    expect_refused("pipe", message(request, u64(0)), {read_end.get()});
    expect_refused("memfd", message(request, u64(0)), {memory.get()});
    expect_refused("none", message(request, u64(0)));
    expect_refused("with bit 8", message(request, u64(kNoFd)), {memory.get()});
    const UniqueFd first = make_event();
    expect_refused("two", message(request, u64(0)), {first.get(), first.get()});
  }
}

// C25.
TEST_F(Rules, MemoryRegions) {
  constexpr std::uint64_t kTop = 0xfffffffffffff000;
  const UniqueFd memory = make_memory(8192);
  const int fd = memory.get();
  const auto refused = [&](const std::string& what, const std::vector<RawRegion>& regions) {
    expect_refused(what, memory_table_message(regions), std::vector<int>(regions.size(), fd));
  };
  refused("larger than its file", {{0, 8193, 0x10000}});
  refused("offset beyond the file", {{0, 4096, 0x10000, 8192}});
  refused("offset + size wraps", {{0, 8192, 0x10000, kTop}});
  refused("empty", {{0, 0, 0x10000}});
  refused("guest address wraps", {{kTop, 8192, 0x10000}});
  refused("user address wraps", {{0, 8192, kTop}});
  refused("all of the address space", {{0, 0xffffffffffffffff, 0x10000}});
  refused("guest addresses overlap", {{0, 8192, 0x10000}, {4096, 4096, 0x20000}});
  refused("user addresses overlap", {{0, 8192, 0x10000}, {0x8000, 4096, 0x11000}});
  const auto [read_end, write_end] = make_pipe();
  expect_refused("a pipe", memory_table_message({{0, 4096, 0x10000}}), {read_end.get()});
  expect_refused("an eventfd", memory_table_message({{0, 4096, 0x10000}}), {make_event().get()});
  std::vector<RawRegion> nine;
  for (std::uint64_t i = 0; i < 9; ++i) nine.push_back({i << 12, 4096, 0x10000 + (i << 12)});
  connect();
  tell(memory_table_message(nine), std::vector<int>(8, fd));
  expect_violation();
  std::vector<RawRegion> eight(nine.begin(), nine.begin() + 8);
  expect_accepted("eight", memory_table_message(eight), std::vector<int>(8, fd));
  EXPECT_EQ(session->state().memory->regions().size(), 8u);
}

TEST_F(Rules, MemoryTableCounts) {
  const UniqueFd memory = make_memory(4096);
  const int fd = memory.get();
  const std::string one = memory_table_message({{0, 4096, 0x10000}}).substr(12);
  expect_refused("no descriptor", message(kSetMemTable, one));
  expect_refused("no payload", message(kSetMemTable), {fd});
  expect_refused("half a header", message(kSetMemTable, u32(1)), {fd});
  expect_refused("two said, one there", message(kSetMemTable, u32(2) + u32(0) + one.substr(8)),
                 {fd, fd});
  expect_refused("one said, two there", message(kSetMemTable, one + one.substr(8)), {fd});
  expect_refused("4294967295", message(kSetMemTable, u32(0xffffffff) + u32(0) + one.substr(8)),
                 {fd});
  expect_refused("a byte too few", message(kSetMemTable, one.substr(0, one.size() - 1)), {fd});
}

// A refused table leaves the old one in place until the connection is closed.
TEST_F(Rules, ARefusedTableChangesNothing) {
  const UniqueFd memory = make_memory(8192);
  tell(memory_table_message({{0, 4096, 0x10000}}), {memory.get()});
  const auto before = session->state().memory;
  ASSERT_NE(before, nullptr);
  tell(memory_table_message({{0, 4096, 0x10000}, {4096, 8192, 0x20000, 4096}}),
       {memory.get(), memory.get()});
  EXPECT_EQ(session->state().memory, before);
  expect_violation();
}

TEST_F(Rules, PayloadSizes) {
  expect_refused("GET_FEATURES", message(kGetFeatures, u64(0)));
  expect_refused("SET_FEATURES", message(kSetFeatures, u32(0)));
  expect_refused("SET_FEATURES", message(kSetFeatures, ""));
  expect_refused("SET_OWNER", message(kSetOwner, "x"));
  expect_refused("NUM", message(kSetVringNum, u32(0)));
  expect_refused("NUM", message(kSetVringNum, u32(0) + u32(256) + u32(0)));
  expect_refused("ADDR", message(kSetVringAddr, u64(0)));
  expect_refused("KICK", message(kSetVringKick, u32(kNoFd)));
  expect_refused("GET_VRING_BASE", message(kGetVringBase, u32(0)));
  connect();
  tell(u32(kSetOwner) + u32(kPlain) + u32(0x7fffffff));
  expect_violation();
}

TEST_F(Rules, HeaderFlags) {
  for (const std::uint32_t flags : {0u, 2u, 3u}) {
    connect();
    tell(message(kGetFeatures, "", flags));
    EXPECT_FALSE(front.receive());
    expect_violation();
  }
  expect_refused("a reply", message(kGetFeatures, u64(0), kReply));
  expect_refused("a reply", message(kSetFeatures, u64(0), kReply));
}

TEST_F(Rules, UnexpectedDescriptors) {
  const UniqueFd event = make_event();
  const std::vector<int> fds = {event.get()};
  expect_refused("GET_FEATURES", message(kGetFeatures), fds);
  expect_refused("SET_OWNER", message(kSetOwner), fds);
  expect_refused("NUM", vring_message(kSetVringNum, 0, 256), fds);
  expect_refused("ADDR", vring_address_message(0, 0x1000, 0x2000, 0x3000), fds);
  expect_refused("ENABLE", vring_message(kSetVringEnable, 0, 1), fds);
}

TEST_F(Rules, WhatWasNotOffered) {
  for (const unsigned bit : {0u, 22u, 24u, 26u, 29u, 34u, 35u, 63u}) {
    expect_refused("feature " + std::to_string(bit),
                   message(kSetFeatures, u64(kVersion1Bit | 1ull << bit)));
  }
  for (const unsigned bit : {1u, 2u, 5u, 12u, 14u, 16u, 63u}) {
    expect_refused("protocol feature " + std::to_string(bit),
                   message(kSetProtocolFeatures, u64(1ull << bit)));
  }
  for (const std::uint32_t request : {0u, 6u, 7u, 19u, 21u, 24u, 31u, 32u, 36u, 39u, 43u, 255u}) {
    expect_refused("request " + std::to_string(request), message(request, u64(0)));
    expect_refused("request " + std::to_string(request), message(request));
  }
}

// What was refused has changed nothing, and later messages are not read.
TEST_F(Rules, NothingAfterAViolation) {
  tell(vring_message(kSetVringNum, 0, 128));
  ASSERT_TRUE(front.send(vring_message(kSetVringNum, 0, 3) + vring_message(kSetVringNum, 0, 512) +
                         message(kGetFeatures)));
  run();
  EXPECT_EQ(vring(0).size, 128u);
  EXPECT_FALSE(front.receive());
  expect_violation();
}

// REPLY_ACK: exactly one answer to each message that asks, none to others, none before negotiation.
TEST_F(Rules, AnOversizePayloadIsAnsweredToo) {
  negotiate_reply_ack();
  const auto answer = ask(u32(kSetOwner) + u32(kNeedReply) + u32(1u << 20));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->request, kSetOwner);
  EXPECT_EQ(answer->number(), 1u);
  EXPECT_TRUE(session->closed());
}

TEST_F(Rules, OneAnswerForEachThatAsks) {
  tell(message(kSetOwner, "", kNeedReply));
  tell(message(kSetFeatures, u64(kVersion1Bit | kProtocolFeaturesBit), kNeedReply));
  tell(vring_message(kSetVringNum, 0, 256, kNeedReply));
  EXPECT_FALSE(front.receive()) << "REPLY_ACK is not negotiated";
  tell(message(kSetProtocolFeatures, u64(kMqProtocol)));
  tell(vring_message(kSetVringNum, 0, 256, kNeedReply));
  EXPECT_FALSE(front.receive()) << "REPLY_ACK is not negotiated";
  tell(message(kSetProtocolFeatures, u64(kMqProtocol | kReplyAckProtocol)));

  const UniqueFd memory = make_memory(4096);
  const UniqueFd event = make_event();
  struct Case {
    std::string bytes;
    std::vector<int> fds;
  };
  const std::vector<Case> settings = {
      {message(kSetOwner), {}},
      {message(kResetOwner), {}},
      {message(kSetFeatures, u64(kVersion1Bit | kProtocolFeaturesBit)), {}},
      {message(kSetProtocolFeatures, u64(9)), {}},
      {memory_table_message({{0, 4096, 0x10000}}), {memory.get()}},
      {vring_message(kSetVringNum, 0, 256), {}},
      {vring_message(kSetVringBase, 0, 0), {}},
      {vring_address_message(0, 0x10000, 0x10400, 0x10800), {}},
      {vring_message(kSetVringEnable, 0, 1), {}},
      {message(kNetSetMtu, u64(9000)), {}},
      {message(kSetVringCall, u64(0)), {event.get()}},
      {message(kSetVringErr, u64(0)), {event.get()}},
      {message(kSetVringKick, u64(0)), {event.get()}},
  };
  for (const Case& setting : settings) {
    SCOPED_TRACE(static_cast<int>(setting.bytes[0]));
    tell(setting.bytes, setting.fds);
    EXPECT_FALSE(front.receive());
    std::string asking = setting.bytes;
    asking[4] = 9;
    const auto answer = ask(asking, setting.fds);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->request, static_cast<std::uint32_t>(setting.bytes[0]));
    EXPECT_EQ(answer->flags, kReply);
    EXPECT_EQ(answer->payload, u64(0));
    EXPECT_FALSE(front.receive());
  }
  for (const std::uint32_t request : {kGetFeatures, kGetProtocolFeatures, kGetQueueNum}) {
    ASSERT_TRUE(ask(message(request, "", kNeedReply)));
    EXPECT_FALSE(front.receive()) << "a question has its own answer, and no other";
  }
  ASSERT_TRUE(ask(vring_message(kGetVringBase, 0, 0, kNeedReply)));
  EXPECT_FALSE(front.receive());
  expect_alive();
}

}  // namespace
}  // namespace vswitch::test
