// Framing against a peer that writes raw bytes, well or badly. Expected bytes are literals after
// vhost-user.rst, "Message specification".
#include "dataplane/vhost_user/message_channel.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace vswitch::vhost_user {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Bytes = std::vector<std::uint8_t>;

int open_fds() {
  DIR* directory = ::opendir("/proc/self/fd");
  int count = 0;
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

std::vector<int> numbers(const std::vector<std::byte>& bytes) {
  std::vector<int> all;
  for (const std::byte byte : bytes) all.push_back(std::to_integer<int>(byte));
  return all;
}

class MessageChannelTest : public testing::Test {
 protected:
  MessageChannelTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    channel_ = std::make_unique<MessageChannel>(UniqueFd(ends[0]));
    peer_.reset(ends[1]);
  }

  // Writes bytes and descriptors in one sendmsg.
  void write(const Bytes& bytes, const std::vector<int>& fds = {}) {
    iovec data{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(32 * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    ASSERT_EQ(::sendmsg(peer_.get(), &header, 0), static_cast<ssize_t>(bytes.size()));
  }

  Bytes read_at_peer(std::size_t most = 1024) {
    Bytes bytes(most);
    const ssize_t got = ::recv(peer_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return bytes;
  }

  std::unique_ptr<MessageChannel> channel_;
  UniqueFd peer_;
};

// GET_FEATURES: request 1, version 1, no payload.
const Bytes kGetFeatures = {1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
// SET_VRING_NUM of vring 1 to 256, which wants a reply.
const Bytes kSetVringNum = {8, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0};

TEST_F(MessageChannelTest, ReadsAMessageWithoutPayload) {
  EXPECT_EQ(channel_->read(), ReadResult::kAgain);
  write(kGetFeatures);
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  const Message message = channel_->take();
  EXPECT_EQ(message.request, Request::kGetFeatures);
  EXPECT_FALSE(message.needs_reply());
  EXPECT_FALSE(message.is_reply());
  EXPECT_TRUE(message.payload.empty());
  EXPECT_EQ(channel_->read(), ReadResult::kAgain);
}

TEST_F(MessageChannelTest, ReadsPayloadAndFlags) {
  write(kSetVringNum);
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  const Message message = channel_->take();
  EXPECT_EQ(message.request, Request::kSetVringNum);
  EXPECT_TRUE(message.needs_reply());
  EXPECT_THAT(numbers(message.payload), ElementsAre(1, 0, 0, 0, 0, 1, 0, 0));
  const auto state = payload_as<VringState>(message.payload.data());
  EXPECT_EQ(state.index, 1U);
  EXPECT_EQ(state.value, 256U);
}

TEST_F(MessageChannelTest, TakesAMessageByteByByte) {
  for (std::size_t i = 0; i + 1 < kSetVringNum.size(); ++i) {
    write({kSetVringNum[i]});
    ASSERT_EQ(channel_->read(), ReadResult::kAgain);
    ASSERT_TRUE(channel_->inside_message());
  }
  write({kSetVringNum.back()});
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  EXPECT_EQ(channel_->take().payload.size(), 8U);
  EXPECT_FALSE(channel_->inside_message());
}

TEST_F(MessageChannelTest, SplitsMessagesThatArriveTogether) {
  Bytes both(kSetVringNum.size() + kGetFeatures.size());
  std::copy(kGetFeatures.begin(), kGetFeatures.end(),
            std::copy(kSetVringNum.begin(), kSetVringNum.end(), both.begin()));
  write(both);
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  EXPECT_EQ(channel_->take().request, Request::kSetVringNum);
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  EXPECT_EQ(channel_->take().request, Request::kGetFeatures);
}

TEST_F(MessageChannelTest, AWholeMessageWaitsUntilItIsTaken) {
  write(kSetVringNum);
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  EXPECT_EQ(channel_->take().payload.size(), 8U);
}

TEST_F(MessageChannelTest, DescriptorsStayWithTheirMessage) {
  const UniqueFd first(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd second(::eventfd(0, EFD_CLOEXEC));
  write(kGetFeatures, {first.get()});
  write(kGetFeatures, {first.get(), second.get()});
  write(kGetFeatures);
  for (const std::size_t expected : {1U, 2U, 0U}) {
    ASSERT_EQ(channel_->read(), ReadResult::kMessage);
    const Message message = channel_->take();
    EXPECT_EQ(message.fds.size(), expected);
    for (const UniqueFd& fd : message.fds) {
      EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
    }
  }
}

TEST_F(MessageChannelTest, TakesEightDescriptors) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  const int before = open_fds();
  write(kGetFeatures, std::vector<int>(8, fd.get()));
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  EXPECT_EQ(open_fds(), before + 8);
  EXPECT_EQ(channel_->take().fds.size(), 8U);
  EXPECT_EQ(open_fds(), before);
}

TEST_F(MessageChannelTest, NineDescriptorsAreAnErrorAndAllAreClosed) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  const int before = open_fds();
  write(kGetFeatures, std::vector<int>(9, fd.get()));
  EXPECT_EQ(channel_->read(), ReadResult::kError);
  EXPECT_THAT(std::string(channel_->error().message()), HasSubstr("file descriptors"));
  EXPECT_EQ(open_fds(), before);
}

TEST_F(MessageChannelTest, DescriptorsSpreadOverOneMessageAreCountedTogether) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  const int before = open_fds();
  write({8, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0}, std::vector<int>(5, fd.get()));
  EXPECT_EQ(channel_->read(), ReadResult::kAgain);
  write({1, 0, 0, 0}, std::vector<int>(5, fd.get()));
  EXPECT_EQ(channel_->read(), ReadResult::kError);
  EXPECT_EQ(open_fds(), before);
}

TEST_F(MessageChannelTest, AMessageThatIsNeverTakenLeaksNothing) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  const int before = open_fds();
  write(kGetFeatures, {fd.get(), fd.get()});
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  channel_.reset();
  EXPECT_EQ(open_fds(), before - 1);
}

TEST_F(MessageChannelTest, APayloadOverTheLimitIsAnError) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  const int before = open_fds();
  write({5, 0, 0, 0, 1, 0, 0, 0, 9, 1, 0, 0}, {fd.get()});  // 265 bytes, one too many
  EXPECT_EQ(channel_->read(), ReadResult::kError);
  EXPECT_THAT(std::string(channel_->error().message()), HasSubstr("265"));
  EXPECT_EQ(open_fds(), before);
  // Dead for good.
  write(kGetFeatures);
  EXPECT_EQ(channel_->read(), ReadResult::kError);
}

TEST_F(MessageChannelTest, TheLargestPayloadIsTaken) {
  const Bytes header = {5, 0, 0, 0, 1, 0, 0, 0, 8, 1, 0, 0};  // 264 bytes: eight regions
  Bytes largest(12 + 264, 0x5a);
  std::copy(header.begin(), header.end(), largest.begin());
  write(largest);
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  EXPECT_EQ(channel_->take().payload, std::vector<std::byte>(264, std::byte{0x5a}));
}

TEST_F(MessageChannelTest, ASizeOfAllOnesIsAnError) {
  write({5, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff});
  EXPECT_EQ(channel_->read(), ReadResult::kError);
}

TEST_F(MessageChannelTest, OtherVersionsAreAnError) {
  write({1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(channel_->read(), ReadResult::kError);
  EXPECT_THAT(std::string(channel_->error().message()), HasSubstr("version 2"));
}

TEST_F(MessageChannelTest, ClosingBetweenMessagesIsNoError) {
  write(kGetFeatures);
  peer_.reset();
  ASSERT_EQ(channel_->read(), ReadResult::kMessage);
  channel_->take();
  EXPECT_EQ(channel_->read(), ReadResult::kClosed);
}

TEST_F(MessageChannelTest, ClosingInsideAMessageIsAnError) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  const int before = open_fds();
  write({1, 0, 0, 0, 1}, {fd.get()});
  peer_.reset();
  EXPECT_EQ(channel_->read(), ReadResult::kError);
  EXPECT_THAT(std::string(channel_->error().message()), HasSubstr("inside a message"));
  EXPECT_EQ(open_fds(), before - 1);
}

TEST_F(MessageChannelTest, SendsHeaderAndPayloadAsBytes) {
  const std::uint64_t features = 0x1'5000'8000;
  ASSERT_TRUE(channel_->send(Request::kGetFeatures, kFlagReply, &features, 8).ok());
  EXPECT_THAT(read_at_peer(), ElementsAre(1, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0,  //
                                          0x00, 0x80, 0x00, 0x50, 0x01, 0, 0, 0));
  EXPECT_FALSE(channel_->wants_write());
}

TEST_F(MessageChannelTest, SendsDescriptorsThatTheOtherSideReceives) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const std::uint64_t index = 1;
  ASSERT_TRUE(channel_->send(Request::kSetVringKick, 0, &index, 8, {fd.get()}).ok());
  MessageChannel other(std::move(peer_));
  ASSERT_EQ(other.read(), ReadResult::kMessage);
  const Message message = other.take();
  ASSERT_EQ(message.fds.size(), 1U);
  const std::uint64_t seven = 7;
  ASSERT_EQ(::write(message.fds[0].get(), &seven, 8), 8);
  std::uint64_t count = 0;
  ASSERT_EQ(::read(fd.get(), &count, 8), 8);
  EXPECT_EQ(count, 7U);
}

TEST_F(MessageChannelTest, RefusesToSendWhatNobodyCouldReceive) {
  const std::array<std::byte, kMaxPayload + 1> large{};
  EXPECT_EQ(channel_->send(Request::kSetMemTable, 0, large.data(), large.size()).code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<int> nine(9, 0);
  EXPECT_EQ(channel_->send(Request::kSetMemTable, 0, nullptr, 0, nine).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MessageChannelTest, APeerThatDoesNotReadStopsUsWithoutBlocking) {
  const std::array<std::byte, kMaxPayload> payload{};
  absl::Status status;
  std::size_t messages = 0;
  do {
    status = channel_->send(Request::kSetMemTable, 0, payload.data(), payload.size());
    ++messages;
    ASSERT_LT(messages, 100'000U);
  } while (status.ok());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(channel_->wants_write());
  EXPECT_EQ(channel_->send(Request::kSetMemTable, 0, payload.data(), payload.size()).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(channel_->flush().code(), absl::StatusCode::kUnavailable);

  // When it reads again, everything arrives whole and in order.
  std::size_t received = 0;
  const std::size_t expected = messages * (12 + kMaxPayload);
  while (received < expected) {
    const std::size_t got = read_at_peer(65'536).size();
    received += got;
    const absl::Status flushed = channel_->flush();
    ASSERT_TRUE(flushed.ok() || absl::IsUnavailable(flushed)) << flushed;
    ASSERT_TRUE(got > 0 || received == expected);
  }
  EXPECT_EQ(received, expected);
  EXPECT_FALSE(channel_->wants_write());
}

TEST_F(MessageChannelTest, SendingToAClosedPeerIsAnErrorAndNoSignal) {
  peer_.reset();
  EXPECT_EQ(channel_->send(Request::kGetFeatures, 0, nullptr, 0).code(),
            absl::StatusCode::kAborted);
}

TEST(MessageNames, RequestsHaveTheDocumentsNames) {
  EXPECT_EQ(request_name(Request::kGetFeatures), "GET_FEATURES");
  EXPECT_EQ(request_name(Request::kSetVringAddr), "SET_VRING_ADDR");
  EXPECT_EQ(request_name(Request::kSetVringEnable), "SET_VRING_ENABLE");
  EXPECT_EQ(request_name(static_cast<Request>(31)), "GET_INFLIGHT_FD");
  EXPECT_EQ(request_name(static_cast<Request>(38)), "REM_MEM_REG");
  EXPECT_EQ(request_name(static_cast<Request>(0)), "request 0");
  EXPECT_EQ(request_name(static_cast<Request>(4711)), "request 4711");
}

TEST(MessageNames, ProtocolFeatures) {
  EXPECT_THAT(protocol_feature_names(0x8000'0000'0000'1009),
              ElementsAre("VHOST_USER_PROTOCOL_F_MQ", "VHOST_USER_PROTOCOL_F_REPLY_ACK",
                          "VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD", "BIT_63"));
  EXPECT_THAT(protocol_feature_names(0), ElementsAre());
}

}  // namespace
}  // namespace vswitch::vhost_user
