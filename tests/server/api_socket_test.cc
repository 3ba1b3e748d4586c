#include "server/api_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "control/error.h"
#include "dataplane/os/unique_fd.h"
#include "tests/control/temp_dir.h"

namespace vswitch::server {
namespace {

using control::message_of;
using ::testing::HasSubstr;
using vswitch::testing::read_file;
using vswitch::testing::TempDir;
using vswitch::testing::write_file;

UniqueFd listen_on(const std::string& path, int backlog = 8) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(fd.get(), backlog), 0);
  return fd;
}

TEST(ApiSocket, FreePathAndStaleSocketAreFine) {
  TempDir dir;
  EXPECT_TRUE(check_socket_path(dir / "api.sock").ok());
  listen_on(dir / "api.sock");  // closed at once, the file stays
  EXPECT_TRUE(check_socket_path(dir / "api.sock").ok());
}

TEST(ApiSocket, LiveOneIsRefused) {
  TempDir dir;
  const UniqueFd live = listen_on(dir / "api.sock");
  const absl::Status status = check_socket_path(dir / "api.sock");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(status), HasSubstr("another process listens"));
}

TEST(ApiSocket, LiveOneWithAFullBacklogIsRefused) {
  TempDir dir;
  const UniqueFd live = listen_on(dir / "api.sock", 0);
  // Each check leaves a connection behind that nobody accepts.
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(check_socket_path(dir / "api.sock").ok());
}

TEST(ApiSocket, OtherFilesAreRefusedAndUntouched) {
  TempDir dir;
  write_file(dir / "api.sock", "precious");
  EXPECT_THAT(message_of(check_socket_path(dir / "api.sock")), HasSubstr("no socket"));
  EXPECT_EQ(read_file(dir / "api.sock"), "precious");
  EXPECT_FALSE(check_socket_path(dir.path()).ok());
}

TEST(ApiSocket, MissingDirectoryIsNamed) {
  TempDir dir;
  EXPECT_THAT(message_of(check_socket_path(dir / "no/api.sock")), HasSubstr("mkdir -p"));
}

TEST(ApiSocket, DirectoryWithoutPermissionIsNamed) {
  TempDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0555), 0);
  // Permissions do not bind root.
  const bool is_root = ::geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const absl::Status status = check_socket_path(dir / "api.sock");
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(status), HasSubstr("the directory " + dir.path() + " cannot be written"));
}

TEST(ApiSocket, PublishReplacesAStaleOne) {
  TempDir dir;
  listen_on(dir / "api.sock");
  const UniqueFd fresh = listen_on(dir / "hidden");
  ASSERT_TRUE(publish_socket(dir / "hidden", dir / "api.sock", 0640).ok());
  struct stat info {};
  ASSERT_EQ(::lstat((dir / "api.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0640u);
  EXPECT_FALSE(check_socket_path(dir / "api.sock").ok()) << "somebody listens there now";
  EXPECT_FALSE(std::filesystem::exists(dir / "hidden"));
}

TEST(ApiSocket, PublishDoesNotReplaceALiveOne) {
  TempDir dir;
  const UniqueFd live = listen_on(dir / "api.sock");
  const UniqueFd fresh = listen_on(dir / "hidden");
  EXPECT_FALSE(publish_socket(dir / "hidden", dir / "api.sock", 0660).ok());
}

}  // namespace
}  // namespace vswitch::server
