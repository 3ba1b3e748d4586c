// The lives of bridges and ports: what can be made, what cannot, and nothing left behind.
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "tests/dataplane/runtime/dataplane_fixture.h"

namespace vswitch::test {
namespace {

using testing::HasSubstr;

constexpr Mac kA = 0x020000000001;
constexpr Mac kB = 0x020000000002;

class Ports : public DataplaneFixture {
 protected:
  // A listening socket, or one whose listener has gone without cleaning up.
  UniqueFd bind_socket(const std::string& id, bool listen) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path(id).c_str(), path(id).size() + 1);
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_TRUE(!listen || ::listen(socket.get(), 1) == 0);
    return socket;
  }
  void write_file(const std::string& id, const std::string& text) {
    std::ofstream(path(id)) << text;
  }
};

TEST_F(Ports, ALifeFromEndToEnd) {
  EXPECT_EQ(create_port("a"), absl::OkStatus());
  PortStatus status = port("a");
  EXPECT_EQ(status.state, PortState::kListening);
  EXPECT_EQ(status.state_reason, "");
  EXPECT_EQ(status.offered_features, 0xd78418008ull);
  EXPECT_EQ(status.config.mtu, 1500u);
  struct stat entry {};
  ASSERT_EQ(::stat(path("a").c_str(), &entry), 0);
  EXPECT_TRUE(S_ISSOCK(entry.st_mode));
  EXPECT_EQ(entry.st_mode & 07777, 0660u);
  SocketGuest guest(kA);
  ASSERT_TRUE(guest.connect(path("a")));
  ASSERT_TRUE(becomes("a", PortState::kNegotiating));
  EXPECT_FALSE(port("a").state_reason.empty()) << "says what is missing";
  ASSERT_TRUE(guest.negotiate() && guest.set_memory() && guest.set_ring(0) && guest.set_ring(1));
  EXPECT_EQ(port("a").state, PortState::kNegotiating) << "not enabled yet";
  ASSERT_TRUE(guest.enable(0, true));
  EXPECT_EQ(port("a").state, PortState::kNegotiating);
  ASSERT_TRUE(guest.enable(1, true));
  status = port("a");
  EXPECT_EQ(status.state, PortState::kUp);
  EXPECT_EQ(status.negotiated_features, kVersion1Bit | kProtocolFeaturesBit);
  EXPECT_EQ(status.protocol_features, 9u);
  EXPECT_EQ(status.connections, 1u);
  guest.front.hang_up();
  ASSERT_TRUE(becomes("a", PortState::kListening));
  EXPECT_EQ(port("a").negotiated_features, 0u);
  EXPECT_EQ(delete_port("a"), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(path("a")));
  EXPECT_TRUE(absl::IsNotFound(delete_port("a")));
}

// C32.
TEST_F(Ports, WhatIsInTheSocketsPlace) {
  bind_socket("stale", false).reset();
  ASSERT_TRUE(std::filesystem::exists(path("stale")));
  EXPECT_EQ(create_port("stale"), absl::OkStatus());
  EXPECT_TRUE(RawFrontend::connect(path("stale")).connected());

  const UniqueFd live = bind_socket("live", true);
  EXPECT_TRUE(absl::IsAlreadyExists(create_port("live")));
  EXPECT_TRUE(RawFrontend::connect(path("live")).connected()) << "left as it was";
  ::unlink(path("live").c_str());

  write_file("file", "precious");
  EXPECT_TRUE(absl::IsFailedPrecondition(create_port("file")));
  std::string text;
  std::ifstream(path("file")) >> text;
  EXPECT_EQ(text, "precious");
  std::filesystem::create_directory(path("directory"));
  EXPECT_TRUE(absl::IsFailedPrecondition(create_port("directory")));
  std::filesystem::create_symlink("/nowhere", path("link"));
  EXPECT_TRUE(absl::IsFailedPrecondition(create_port("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  auto missing = config("missing");
  missing.kind = dataplane::VhostUserServerConfig{directory + "/no/such/directory"};
  EXPECT_TRUE(
      absl::IsFailedPrecondition(call([&](auto done) { plane->create_port(missing, done); })));
  auto endless = config("endless");
  endless.kind = dataplane::VhostUserServerConfig{"/tmp/" + std::string(103, 'x')};
  EXPECT_TRUE(absl::IsInvalidArgument(call([&](auto done) { plane->create_port(endless, done); })));
  EXPECT_EQ(plane->ports(absl::Now() + absl::Seconds(1))->size(), 1u) << "no partial state";
  EXPECT_EQ(plane->bridges(absl::Now() + absl::Seconds(1))->at(0).ports, 1u);
  keeps_files = true;
}

// A path of another port of ours: refused, and that port does not even notice.
TEST_F(Ports, ThePathOfAnotherPort) {
  ASSERT_TRUE(create_port("a").ok());
  auto twin = config("b");
  twin.kind = dataplane::VhostUserServerConfig{path("a")};
  EXPECT_TRUE(absl::IsAlreadyExists(call([&](auto done) { plane->create_port(twin, done); })));
  ASSERT_TRUE(becomes("a", PortState::kListening));
  EXPECT_TRUE(absl::IsAlreadyExists(create_port("a")));
  SocketGuest guest(kA);
  EXPECT_TRUE(guest.attach(path("a")));
}

TEST_F(Ports, Bridges) {
  EXPECT_TRUE(absl::IsAlreadyExists(create_bridge("br0")));
  EXPECT_TRUE(absl::IsNotFound(delete_bridge("br9")));
  auto lost = config("lost");
  lost.bridge = "br9";
  EXPECT_TRUE(absl::IsNotFound(call([&](auto done) { plane->create_port(lost, done); })));
  ASSERT_TRUE(create_port("a").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(delete_bridge("br0")));
  ASSERT_TRUE(delete_port("a").ok());
  EXPECT_EQ(delete_bridge("br0"), absl::OkStatus());
  EXPECT_TRUE(plane->bridges(absl::Now() + absl::Seconds(1))->empty());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(create_bridge("br0").ok()) << "memory of tables must come back";
    ASSERT_TRUE(delete_bridge("br0").ok());
  }
  // Until there is no memory: a clear refusal, and everything goes on.
  absl::Status status;
  int made = 0;
  while ((status = create_bridge(absl::StrCat("many", made))).ok() && made < 1100) ++made;
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("memory"));
  EXPECT_GT(made, 10);
  ASSERT_TRUE(delete_bridge("many0").ok());
  EXPECT_TRUE(create_bridge("br0").ok());
  EXPECT_TRUE(create_port("a").ok());
}

// C33.
TEST_F(Ports, ASecondFrontEnd) {
  const auto a = add_guest("a", kA);
  const auto b = add_guest("b", kB);
  Stream stream(*a, *b);
  for (int i = 0; i < 20; ++i) {
    RawFrontend second = RawFrontend::connect(path("b"));
    ASSERT_TRUE(second.connected());
    stream.step();
    EXPECT_TRUE(second.closed(1000)) << "closed at once";
    EXPECT_TRUE(stream.settle());
  }
  EXPECT_EQ(stream.received(), stream.sent()) << "the first session loses nothing";
  EXPECT_EQ(port("b").connections, 1u);
  EXPECT_EQ(port("b").state, PortState::kUp);
  EXPECT_TRUE(b->set_memory());
}

// C34, with a whole session each time.
TEST_F(Ports, ConnectAndDisconnect) {
  ASSERT_TRUE(create_port("a").ok());
  SocketGuest guest(kA);
  ASSERT_TRUE(guest.attach(path("a")));
  guest.front.hang_up();
  ASSERT_TRUE(becomes("a", PortState::kListening));
  const int fds = open_fds();
  const int tasks = threads();
  for (int i = 0; i < 2000; ++i) {
    if (i % 4 == 0) {
      ASSERT_TRUE(guest.attach(path("a"))) << i;
    } else {
      ASSERT_TRUE(guest.connect(path("a"))) << i;
      ASSERT_TRUE(i % 4 == 1 || (guest.negotiate() && guest.set_memory())) << i;
    }
    guest.front.hang_up();
  }
  ASSERT_TRUE(becomes("a", PortState::kListening));
  EXPECT_TRUE(eventually([&] { return open_fds() == fds; })) << open_fds() << " not " << fds;
  EXPECT_EQ(threads(), tasks);
  EXPECT_EQ(port("a").protocol_violations, 0u);
  EXPECT_TRUE(guest.attach(path("a")));
}

TEST_F(Ports, CreateAndDelete) {
  const auto a = add_guest("a", kA);
  SocketGuest guest(kB);
  const int fds = open_fds();
  const int tasks = threads();
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(create_port("b").ok()) << i;
    ASSERT_TRUE(i % 8 != 0 || guest.attach(path("b"))) << i;
    ASSERT_TRUE(i % 8 != 1 || guest.connect(path("b"))) << i;
    ASSERT_TRUE(delete_port("b").ok()) << i;
    ASSERT_FALSE(std::filesystem::exists(path("b")));
    guest.front.hang_up();
  }
  EXPECT_EQ(open_fds(), fds);
  EXPECT_EQ(threads(), tasks);
  EXPECT_EQ(port("a").state, PortState::kUp);
  EXPECT_TRUE(add_guest("b", kB));
}

TEST_F(Ports, DeleteUnderTraffic) {
  const auto a = add_guest("a", kA);
  const auto b = add_guest("b", kB);
  std::atomic<bool> stop{false};
  std::thread guests([&] {
    Stream there(*a, *b), back(*b, *a);
    while (!stop) {
      there.step();
      back.step();
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(delete_port("b"), absl::OkStatus());  // within a second, see call()
  EXPECT_TRUE(b->front.closed(1000));
  const std::uint16_t used = b->memory.rx().used();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(b->memory.rx().used(), used) << "written after the answer";
  stop = true;
  guests.join();
  EXPECT_TRUE(eventually([&] { return a->memory.reclaim() == 0; }));
  EXPECT_EQ(port("a").state, PortState::kUp);
}

// A port from the store whose place is taken: kept, explained, and tried again.
TEST_F(Ports, RestoredInSpiteOfAnObstacle) {
  write_file("a", "in the way");
  EXPECT_EQ(restore_port("a"), absl::OkStatus());
  PortStatus status = port("a");
  EXPECT_EQ(status.state, PortState::kFailed);
  EXPECT_THAT(status.state_reason, HasSubstr("not a socket"));
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  EXPECT_EQ(port("a").state, PortState::kFailed);
  EXPECT_TRUE(std::filesystem::is_regular_file(path("a")));
  std::filesystem::remove(path("a"));
  EXPECT_TRUE(becomes("a", PortState::kListening, 2));
  EXPECT_EQ(port("a").state_reason, "");
  SocketGuest guest(kA);
  EXPECT_TRUE(guest.attach(path("a")));
  write_file("b", "in the way");
  EXPECT_EQ(restore_port("b"), absl::OkStatus());
  EXPECT_EQ(delete_port("b"), absl::OkStatus()) << "a failed port can be deleted";
  EXPECT_TRUE(std::filesystem::exists(path("b")));
  keeps_files = true;
}

// Everything at once and in any order: each call is answered.
TEST_F(Ports, OverlappingCalls) {
  std::atomic<int> answers{0};
  const auto count = [&](absl::Status) { ++answers; };
  for (int i = 0; i < 300; ++i) {
    plane->create_port(config(absl::StrCat("p", i % 7)), count);
    plane->delete_port(absl::StrCat("p", i % 5), count);
    plane->create_bridge({absl::StrCat("x", i % 3)}, count);
    plane->delete_bridge(absl::StrCat("x", i % 2), count);
  }
  EXPECT_TRUE(eventually([&] { return answers == 1200; }));
  for (int i = 0; i < 7; ++i) (void)delete_port(absl::StrCat("p", i));
  EXPECT_TRUE(plane->ports(absl::Now() + absl::Seconds(1))->empty());
  EXPECT_EQ(plane->bridges(absl::Now() + absl::Seconds(1))->at(0).ports, 0u);
}

}  // namespace
}  // namespace vswitch::test
