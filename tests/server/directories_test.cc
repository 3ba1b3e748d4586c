#include "server/directories.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "control/error.h"
#include "tests/control/temp_dir.h"

namespace vswitch::server {
namespace {

using control::message_of;
using ::testing::HasSubstr;
using vswitch::testing::TempDir;
using vswitch::testing::write_file;

mode_t mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777u;
}

Flags flags_in(const TempDir& dir) {
  Flags flags;
  flags.run_dir = dir / "a/run";
  flags.state_dir = dir / "b/state";
  return flags;
}

TEST(Directories, AreMadeWithTheirModes) {
  TempDir dir;
  ASSERT_TRUE(prepare_directories(flags_in(dir)).ok());
  EXPECT_EQ(mode_of(dir / "a/run") & 0700u, 0700u);
  EXPECT_EQ(mode_of(dir / "b/state"), 0700u);
  EXPECT_TRUE(prepare_directories(flags_in(dir)).ok()) << "existing ones are fine";
}

TEST(Directories, FileInThePlaceIsNamed) {
  TempDir dir;
  write_file(dir / "a", "");
  const absl::Status status = prepare_directories(flags_in(dir));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(status), HasSubstr(dir / "a/run"));
}

TEST(Directories, PrivateOneMustBeOursAlone) {
  TempDir dir;
  EXPECT_TRUE(check_private_directory(dir.path()).ok());
  ::chmod(dir.path().c_str(), 0770);
  EXPECT_FALSE(check_private_directory(dir.path()).ok());
  ::chmod(dir.path().c_str(), 0700);
  ASSERT_EQ(::symlink(dir.path().c_str(), (dir / "link").c_str()), 0);
  EXPECT_FALSE(check_private_directory(dir / "link").ok()) << "a link may lead anywhere";
}

}  // namespace
}  // namespace vswitch::server
