#include "dataplane/os/unix_listener.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace vswitch {
namespace {

using absl::StatusCode;

class UnixListenerTest : public testing::Test {
 protected:
  UnixListenerTest() {
    std::string pattern = "/tmp/ul.XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/socket";
    umask_ = umask(022);
  }
  ~UnixListenerTest() override {
    umask(umask_);
    std::filesystem::remove_all(directory_);
  }

  static sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    return address;
  }
  static UniqueFd connect_to(const std::string& path) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(path);
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      return UniqueFd();
    }
    return socket;
  }
  // A socket that is bound and then closed: the file stays.
  static void leave_stale_socket(const std::string& path) {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(path);
    ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  static mode_t mode_of(const std::string& path) {
    struct stat entry {};
    EXPECT_EQ(lstat(path.c_str(), &entry), 0);
    return entry.st_mode & 07777;
  }
  static bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
  static StatusCode code(const absl::StatusOr<UnixListener>& listener) {
    return listener.status().code();
  }

  std::string directory_;
  std::string path_;
  mode_t umask_ = 0;
};

TEST_F(UnixListenerTest, AcceptsConnectionsThatCarryBytes) {
  const UnixListener listener = UnixListener::listen(path_, 0660).value();
  EXPECT_EQ(listener.accept().status().code(), StatusCode::kUnavailable);
  const UniqueFd client = connect_to(path_);
  ASSERT_TRUE(client.valid());
  const UniqueFd connection = listener.accept().value();
  EXPECT_NE(fcntl(connection.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(connection.get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(write(client.get(), "hello", 5), 5);
  char text[8];
  EXPECT_EQ(read(connection.get(), text, sizeof(text)), 5);
  EXPECT_EQ(listener.accept().status().code(), StatusCode::kUnavailable);
}

TEST_F(UnixListenerTest, ModeIsExactlyWhatIsAskedFor) {
  for (const int mask : {0, 022, 0777}) {
    umask(static_cast<mode_t>(mask));
    const UnixListener listener = UnixListener::listen(path_, 0660).value();
    EXPECT_EQ(mode_of(path_), 0660U) << "umask " << mask;
  }
  umask(0);
  const UnixListener listener = UnixListener::listen(path_, 0600).value();
  EXPECT_EQ(mode_of(path_), 0600U);
}

TEST_F(UnixListenerTest, StaleSocketIsReplaced) {
  leave_stale_socket(path_);
  const auto listener = UnixListener::listen(path_, 0660);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(connect_to(path_).valid());
}

TEST_F(UnixListenerTest, LiveListenerIsLeftAlone) {
  const UnixListener first = UnixListener::listen(path_, 0660).value();
  EXPECT_EQ(code(UnixListener::listen(path_, 0600)), StatusCode::kAlreadyExists);
  EXPECT_EQ(mode_of(path_), 0660U);
  EXPECT_TRUE(connect_to(path_).valid());
}

// A listener that is too busy to take the probe is alive all the same.
TEST_F(UnixListenerTest, LiveListenerWithAFullBacklog) {
  const UnixListener first = UnixListener::listen(path_, 0660).value();
  std::vector<UniqueFd> waiting;
  const sockaddr_un address = address_of(path_);
  while (true) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      break;
    }
    waiting.push_back(std::move(socket));
    ASSERT_LT(waiting.size(), 1000U);
  }
  EXPECT_EQ(code(UnixListener::listen(path_, 0660)), StatusCode::kAlreadyExists);
  EXPECT_TRUE(exists(path_));
}

TEST_F(UnixListenerTest, RegularFileIsLeftAlone) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(code(UnixListener::listen(path_, 0660)), StatusCode::kFailedPrecondition);
  std::string content;
  std::ifstream(path_) >> content;
  EXPECT_EQ(content, "precious");
}

TEST_F(UnixListenerTest, DirectoryAndSymbolicLinkAreLeftAlone) {
  std::filesystem::create_directory(path_);
  EXPECT_EQ(code(UnixListener::listen(path_, 0660)), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(exists(path_));
  const std::string target = directory_ + "/target";
  const std::string link = directory_ + "/link";
  leave_stale_socket(target);
  std::filesystem::create_symlink(target, link);
  EXPECT_EQ(code(UnixListener::listen(link, 0660)), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(exists(target));
}

TEST_F(UnixListenerTest, MissingDirectory) {
  EXPECT_EQ(code(UnixListener::listen(directory_ + "/none/socket", 0660)),
            StatusCode::kFailedPrecondition);
  std::ofstream(directory_ + "/file") << "x";
  EXPECT_EQ(code(UnixListener::listen(directory_ + "/file/socket", 0660)),
            StatusCode::kFailedPrecondition);
}

// sun_path has 108 bytes, one of them for the end.
TEST_F(UnixListenerTest, LongestPath) {
  const std::string longest = directory_ + "/" + std::string(107 - directory_.size() - 1, 'a');
  ASSERT_EQ(longest.size(), 107U);
  const auto listener = UnixListener::listen(longest, 0660);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(exists(longest));
  EXPECT_EQ(code(UnixListener::listen(longest + "b", 0660)), StatusCode::kInvalidArgument);
  EXPECT_FALSE(exists(longest + "b"));
  EXPECT_EQ(code(UnixListener::listen("", 0660)), StatusCode::kInvalidArgument);
}

TEST_F(UnixListenerTest, PathGoesWithTheListener) {
  { const UnixListener listener = UnixListener::listen(path_, 0660).value(); }
  EXPECT_FALSE(exists(path_));
}

TEST_F(UnixListenerTest, PathThatBecameSomebodyElsesStays) {
  {
    const UnixListener listener = UnixListener::listen(path_, 0660).value();
    ASSERT_EQ(unlink(path_.c_str()), 0);
    leave_stale_socket(path_);
  }
  EXPECT_TRUE(exists(path_));
}

TEST_F(UnixListenerTest, PathThatIsGoneAlready) {
  const UnixListener listener = UnixListener::listen(path_, 0660).value();
  ASSERT_EQ(unlink(path_.c_str()), 0);
}

TEST_F(UnixListenerTest, MovesKeepOnePathAlive) {
  auto first = UnixListener::listen(path_, 0660).value();
  {
    UnixListener second(std::move(first));
    EXPECT_TRUE(connect_to(path_).valid());
    first = std::move(second);
  }
  EXPECT_TRUE(connect_to(path_).valid());
  // Another one moved in: the path of the one that goes is removed.
  const std::string other = directory_ + "/other";
  first = UnixListener::listen(other, 0660).value();
  EXPECT_FALSE(exists(path_));
  EXPECT_TRUE(connect_to(other).valid());
}

}  // namespace
}  // namespace vswitch
