// The front-end session against a back-end that answers by script.
#include "dataplane/vhost_user/frontend_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataplane/virtq/features.h"

namespace vswitch::vhost_user {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using State = FrontendSession::State;

constexpr std::uint64_t kVersion1 = virtq::kFeatureVersion1;
constexpr std::uint64_t kMergeable = virtq::kFeatureMrgRxbuf;
constexpr std::uint64_t kProtocol = virtq::kFeatureProtocolFeatures;

bool same_file(int first, int second) {
  struct stat a {
  }, b{};
  return ::fstat(first, &a) == 0 && ::fstat(second, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

// Answers like a back-end and remembers what it was told.
class ScriptedBackend {
 public:
  explicit ScriptedBackend(UniqueFd socket) : channel_(std::move(socket)) {}

  std::uint64_t features = kVersion1 | kMergeable | kProtocol;
  std::uint64_t protocol_features = kProtocolMq | kProtocolReplyAck;
  std::optional<Request> refused;
  bool silent = false;

  std::vector<std::string> log;
  std::map<Request, std::vector<Message>> received;

  // Handles all messages that are there.
  void serve() {
    while (channel_.read() == ReadResult::kMessage) {
      Message message = channel_.take();
      log.push_back(request_name(message.request));
      if (!silent) answer(message);
      received[message.request].push_back(std::move(message));
    }
  }
  void send_unasked(Request request, std::uint64_t value) { reply(request, value); }
  MessageChannel& channel() { return channel_; }

 private:
  void answer(const Message& message) {
    switch (message.request) {
      case Request::kGetFeatures:
        return reply(message.request, features);
      case Request::kGetProtocolFeatures:
        return reply(message.request, protocol_features);
      case Request::kGetQueueNum:
        return reply(message.request, 4);
      case Request::kGetVringBase: {
        auto state = payload_as<VringState>(message.payload.data());
        state.value = 100 + state.index;
        ASSERT_TRUE(channel_.send(message.request, kFlagReply, &state, sizeof(state)).ok());
        return;
      }
      default:
        if (message.needs_reply()) reply(message.request, refused == message.request ? 1 : 0);
    }
  }
  void reply(Request request, std::uint64_t value) {
    ASSERT_TRUE(channel_.send(request, kFlagReply, &value, sizeof(value)).ok());
  }

  MessageChannel channel_;
};

class FrontendSessionTest : public testing::Test {
 protected:
  FrontendSessionTest()
      : memory_(::memfd_create("test", MFD_CLOEXEC)),
        kick_(::eventfd(0, EFD_CLOEXEC)),
        call_(::eventfd(0, EFD_CLOEXEC)) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    socket_.reset(ends[0]);
    backend_ = std::make_unique<ScriptedBackend>(UniqueFd(ends[1]));
  }

  FrontendSession& open(std::uint64_t wanted = kVersion1 | kMergeable, std::uint64_t required = 0) {
    FrontendOptions options;
    options.wanted_features = wanted;
    options.required_features = required;
    session_ = std::make_unique<FrontendSession>(std::move(socket_), options);
    return *session_;
  }

  // Lets both sides work until nothing changes any more.
  State settle() {
    for (int i = 0; i < 200; ++i) {
      backend_->serve();
      session_->advance();
    }
    return session_->state();
  }

  absl::Status start() {
    SharedRegion region;
    region.region = {0x1'0000'0000, 0x20'0000, 0x7000'0000, 0x1000};
    region.fd = memory_.get();
    std::vector<VringSetup> vrings;
    for (const std::uint32_t index : {0U, 1U}) {
      VringSetup vring;
      vring.index = index;
      vring.size = 256;
      vring.base = static_cast<std::uint16_t>(7 + index);
      vring.descriptors = 0x7000'0000 + index * 0x10000;
      vring.available = 0x7000'1000 + index * 0x10000;
      vring.used = 0x7000'2000 + index * 0x10000;
      vring.kick_fd = kick_.get();
      vring.call_fd = call_.get();
      vrings.push_back(vring);
    }
    return session_->start({region}, vrings);
  }

  std::vector<int> payload(Request request, std::size_t which = 0) {
    std::vector<int> bytes;
    for (const std::byte byte : backend_->received[request].at(which).payload) {
      bytes.push_back(std::to_integer<int>(byte));
    }
    return bytes;
  }

  UniqueFd memory_, kick_, call_, socket_;
  std::unique_ptr<ScriptedBackend> backend_;
  std::unique_ptr<FrontendSession> session_;
};

TEST_F(FrontendSessionTest, NegotiatesWhatBothSidesHave) {
  backend_->features = kVersion1 | kProtocol | virtq::kFeatureIndirectDesc;
  open(kVersion1 | kMergeable);
  EXPECT_EQ(settle(), State::kNegotiated);
  EXPECT_EQ(session_->features(), kVersion1 | kProtocol);
  EXPECT_EQ(session_->protocol_features(), kProtocolMq | kProtocolReplyAck);
  EXPECT_EQ(session_->max_queue_pairs(), 4U);
  EXPECT_THAT(backend_->log, ElementsAre("SET_OWNER", "GET_FEATURES", "GET_PROTOCOL_FEATURES",
                                         "SET_PROTOCOL_FEATURES", "GET_QUEUE_NUM"));
  EXPECT_THAT(payload(Request::kSetProtocolFeatures), ElementsAre(9, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(FrontendSessionTest, DoesWithoutProtocolFeatures) {
  backend_->features = kVersion1;
  open();
  ASSERT_EQ(settle(), State::kNegotiated);
  ASSERT_TRUE(start().ok());
  ASSERT_EQ(settle(), State::kRunning);
  // No acknowledgements are asked for, and rings need no enabling.
  EXPECT_FALSE(backend_->received[Request::kSetMemTable].at(0).needs_reply());
  EXPECT_TRUE(backend_->received[Request::kSetVringEnable].empty());
}

TEST_F(FrontendSessionTest, RefusesABackendWithoutARequiredFeature) {
  backend_->features = kProtocol;
  open(kVersion1, kVersion1);
  EXPECT_EQ(settle(), State::kFailed);
  EXPECT_THAT(std::string(session_->error().message()), HasSubstr("VIRTIO_F_VERSION_1"));
}

TEST_F(FrontendSessionTest, HandsOverMemoryAndRings) {
  open();
  ASSERT_EQ(settle(), State::kNegotiated);
  backend_->log.clear();
  ASSERT_TRUE(start().ok());
  ASSERT_EQ(settle(), State::kRunning);
  EXPECT_THAT(backend_->log,
              ElementsAre("SET_FEATURES", "SET_MEM_TABLE", "SET_VRING_NUM", "SET_VRING_BASE",
                          "SET_VRING_ADDR", "SET_VRING_CALL", "SET_VRING_KICK", "SET_VRING_NUM",
                          "SET_VRING_BASE", "SET_VRING_ADDR", "SET_VRING_CALL", "SET_VRING_KICK",
                          "SET_VRING_ENABLE", "SET_VRING_ENABLE"));
  EXPECT_THAT(payload(Request::kSetFeatures), ElementsAre(0x00, 0x80, 0, 0x40, 1, 0, 0, 0));
  EXPECT_THAT(payload(Request::kSetMemTable),
              ElementsAre(1, 0, 0, 0, 0, 0, 0, 0,          // one region
                          0, 0, 0, 0, 1, 0, 0, 0,          // guest address
                          0, 0, 0x20, 0, 0, 0, 0, 0,       // size
                          0, 0, 0, 0x70, 0, 0, 0, 0,       // user address
                          0x00, 0x10, 0, 0, 0, 0, 0, 0));  // offset in the file
  EXPECT_THAT(payload(Request::kSetVringNum, 1), ElementsAre(1, 0, 0, 0, 0, 1, 0, 0));
  EXPECT_THAT(payload(Request::kSetVringBase, 1), ElementsAre(1, 0, 0, 0, 8, 0, 0, 0));
  EXPECT_THAT(payload(Request::kSetVringAddr, 1),
              ElementsAre(1, 0, 0, 0, 0, 0, 0, 0,           // index, flags
                          0, 0, 1, 0x70, 0, 0, 0, 0,        // descriptors
                          0x00, 0x20, 1, 0x70, 0, 0, 0, 0,  // used
                          0x00, 0x10, 1, 0x70, 0, 0, 0, 0,  // available
                          0, 0, 0, 0, 0, 0, 0, 0));         // log
  EXPECT_THAT(payload(Request::kSetVringKick, 1), ElementsAre(1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(payload(Request::kSetVringEnable, 1), ElementsAre(1, 0, 0, 0, 1, 0, 0, 0));
  for (const auto& [request, count] : std::map<Request, std::size_t>{{Request::kSetMemTable, 1},
                                                                     {Request::kSetVringKick, 1},
                                                                     {Request::kSetVringCall, 1},
                                                                     {Request::kSetVringNum, 0}}) {
    EXPECT_EQ(backend_->received[request].at(0).fds.size(), count) << request_name(request);
  }
  EXPECT_TRUE(
      same_file(backend_->received[Request::kSetMemTable].at(0).fds[0].get(), memory_.get()));
}

TEST_F(FrontendSessionTest, WaitsForEachAcknowledgement) {
  open();
  ASSERT_EQ(settle(), State::kNegotiated);
  backend_->silent = true;
  backend_->log.clear();
  ASSERT_TRUE(start().ok());
  EXPECT_EQ(settle(), State::kStarting);
  EXPECT_THAT(backend_->log, ElementsAre("SET_FEATURES"));
}

TEST_F(FrontendSessionTest, NamesTheMessageThatWasRefused) {
  open();
  backend_->refused = Request::kSetMemTable;
  ASSERT_EQ(settle(), State::kNegotiated);
  ASSERT_TRUE(start().ok());
  EXPECT_EQ(settle(), State::kFailed);
  EXPECT_THAT(std::string(session_->error().message()), HasSubstr("refused SET_MEM_TABLE"));
}

TEST_F(FrontendSessionTest, StopsAndLearnsThePositions) {
  open();
  ASSERT_EQ(settle(), State::kNegotiated);
  ASSERT_TRUE(start().ok());
  ASSERT_EQ(settle(), State::kRunning);
  backend_->log.clear();
  ASSERT_TRUE(session_->stop().ok());
  ASSERT_EQ(settle(), State::kNegotiated);
  EXPECT_THAT(backend_->log, ElementsAre("SET_VRING_ENABLE", "SET_VRING_ENABLE", "GET_VRING_BASE",
                                         "GET_VRING_BASE"));
  EXPECT_THAT(session_->bases(), ElementsAre(100, 101));
  // And can start again.
  ASSERT_TRUE(start().ok());
  EXPECT_EQ(settle(), State::kRunning);
}

TEST_F(FrontendSessionTest, RefusesToStartOrStopAtTheWrongTime) {
  open();
  EXPECT_EQ(start().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session_->stop().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(settle(), State::kNegotiated);
  EXPECT_EQ(session_->start({}, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session_->state(), State::kNegotiated);
}

TEST_F(FrontendSessionTest, NoticesThatTheBackendHasGone) {
  open();
  ASSERT_EQ(settle(), State::kNegotiated);
  ASSERT_TRUE(start().ok());
  ASSERT_EQ(settle(), State::kRunning);
  backend_ = nullptr;
  EXPECT_EQ(session_->advance(), State::kFailed);
  EXPECT_EQ(session_->error().code(), absl::StatusCode::kAborted);
}

TEST_F(FrontendSessionTest, SaysAtWhichMessageTheBackendHungUp) {
  open();
  ASSERT_EQ(settle(), State::kNegotiated);
  backend_->silent = true;
  ASSERT_TRUE(start().ok());
  settle();
  backend_ = nullptr;
  EXPECT_EQ(session_->advance(), State::kFailed);
  EXPECT_THAT(std::string(session_->error().message()), HasSubstr("SET_FEATURES"));
}

TEST_F(FrontendSessionTest, AnUnaskedReplyIsAnError) {
  open();
  ASSERT_EQ(settle(), State::kNegotiated);
  backend_->send_unasked(Request::kGetFeatures, 0);
  EXPECT_EQ(session_->advance(), State::kFailed);
}

TEST_F(FrontendSessionTest, AReplyToAnotherMessageIsAnError) {
  backend_->silent = true;
  open();
  settle();
  backend_->send_unasked(Request::kGetQueueNum, 1);
  EXPECT_EQ(session_->advance(), State::kFailed);
}

TEST_F(FrontendSessionTest, AReplyOfTheWrongSizeIsAnError) {
  backend_->silent = true;
  open();
  settle();
  const std::uint32_t short_value = 1;
  ASSERT_TRUE(backend_->channel().send(Request::kGetFeatures, kFlagReply, &short_value, 4).ok());
  EXPECT_EQ(session_->advance(), State::kFailed);
}

TEST_F(FrontendSessionTest, WaitingHasADeadline) {
  backend_->silent = true;
  open();
  const absl::Status status = session_->wait_for(State::kNegotiated, absl::Milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("GET_FEATURES"));
}

TEST(ConnectToBackend, TellsWhyItCannot) {
  EXPECT_EQ(connect_to_backend("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(connect_to_backend(std::string(108, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string nowhere = testing::TempDir() + "/nobody-listens-here.sock";
  const absl::Status status = connect_to_backend(nowhere).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(nowhere));
}

TEST(ConnectToBackend, Connects) {
  const std::string path =
      testing::TempDir() + "/vswitch-connect-" + std::to_string(::getpid()) + ".sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_TRUE(connect_to_backend(path).ok());
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace vswitch::vhost_user
