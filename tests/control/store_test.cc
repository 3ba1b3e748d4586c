#include "control/store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "absl/time/clock.h"
#include "control/error.h"
#include "control/state_file.h"
#include "tests/control/temp_dir.h"

namespace vswitch::control {
namespace {

using ::testing::Test;
using vswitch::testing::read_file;
using vswitch::testing::TempDir;
using vswitch::testing::write_file;

constexpr char kRunDir[] = "/run/vswitch";

DesiredState sample() {
  DesiredState state;
  state.bridges["br0"] = {"br0"};
  state.bridges["yes"] = {"yes"};
  state.ports["null"] = {"null", "yes", 9000, VhostUserServerSpec{"/tmp/a \"b\": #c,é.sock"}};
  state.ports["web"] = {"web", "br0", 1500, VhostUserServerSpec{"web.sock"}};
  state.ports["wide"] = {"wide", "br0", 1500, VhostUserServerSpec{"wide.sock"}, 16};
  return state;
}

class StoreTest : public Test {
 protected:
  std::unique_ptr<Store> open() {
    auto store = Store::open(dir_.path());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  TempDir dir_;
  const std::string file_ = dir_ / "state.yaml";
};

TEST_F(StoreTest, NoFileIsAnEmptyState) { EXPECT_EQ(*open()->load(kRunDir), DesiredState()); }

TEST_F(StoreTest, GivesBackWhatWasSaved) {
  ASSERT_TRUE(open()->save(sample()).ok());
  EXPECT_EQ(*open()->load(kRunDir), sample());
  ASSERT_TRUE(open()->save(DesiredState()).ok());
  EXPECT_EQ(*open()->load(kRunDir), DesiredState());
}

TEST_F(StoreTest, LeavesNothingButTheStateAndItsLock) {
  const auto store = open();
  ASSERT_TRUE(store->save(sample()).ok());
  ASSERT_TRUE(store->save(sample()).ok());
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    names.insert(entry.path().filename());
  }
  EXPECT_EQ(names, (std::set<std::string>{"lock", "state.yaml"}));
  struct stat info {};
  ASSERT_EQ(::stat(file_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST_F(StoreTest, EveryFlippedByteIsNoticed) {
  ASSERT_TRUE(open()->save(sample()).ok());
  const std::string good = read_file(file_);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x20);
    EXPECT_FALSE(read_state(bad).ok()) << "byte " << i;
  }
}

TEST_F(StoreTest, EveryTruncationIsNoticed) {
  ASSERT_TRUE(open()->save(sample()).ok());
  const std::string good = read_file(file_);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(read_state(good.substr(0, size)).ok()) << size << " bytes";
  }
}

TEST_F(StoreTest, DamagedFileIsNamedAndKept) {
  write_file(file_, "checksum: crc32-00000000\nversion: 1\nbridges: []\nports: []\n");
  const std::string before = read_file(file_);
  const absl::Status status = open()->load(kRunDir).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(message_of(status).find(file_), std::string::npos) << status;
  EXPECT_NE(message_of(status).find("backup"), std::string::npos) << status;
  EXPECT_EQ(read_file(file_), before);
}

TEST_F(StoreTest, EmptyFileIsDamaged) {
  write_file(file_, "");
  EXPECT_EQ(open()->load(kRunDir).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(StoreTest, OtherVersionIsNamed) {
  write_file(file_, "version: 2\nbridges: {}\n");
  const absl::Status status = open()->load(kRunDir).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(message_of(status).find("format version 2"), std::string::npos) << status;
}

TEST_F(StoreTest, RunDirectoryThatMakesAPathTooLongIsNoDamage) {
  ASSERT_TRUE(open()->save(sample()).ok());
  const absl::Status status = open()->load("/run/" + std::string(100, 'x')).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(message_of(status).find("--run-dir"), std::string::npos) << status;
}

TEST_F(StoreTest, SecondProcessIsRefused) {
  const auto first = open();
  const absl::Status second = Store::open(dir_.path()).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(message_of(second).find("in use"), std::string::npos) << second;
}

TEST_F(StoreTest, FailedSaveKeepsTheOldState) {
  const auto store = open();
  ASSERT_TRUE(store->save(sample()).ok());
  std::filesystem::create_directory(file_ + ".tmp");
  const absl::Status status = store->save(DesiredState());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(error_detail(status).reason, "STORE_WRITE_FAILED");
  EXPECT_EQ(*store->load(kRunDir), sample());
  std::filesystem::remove(file_ + ".tmp");
  EXPECT_TRUE(store->save(DesiredState()).ok());
}

TEST_F(StoreTest, LeftoverOfACrashedSaveIsNoHindrance) {
  write_file(file_ + ".tmp", "checksum: crc32-");
  const auto store = open();
  EXPECT_EQ(*store->load(kRunDir), DesiredState());
  EXPECT_TRUE(store->save(sample()).ok());
  EXPECT_EQ(*store->load(kRunDir), sample());
}

TEST(StateFile, ChecksWhatItReads) {
  // A file of the right checksum whose port has no bridge: written by hand, or by a bug.
  DesiredState state = sample();
  state.bridges.erase("yes");
  EXPECT_EQ(read_state(write_state(state)).status().code(), absl::StatusCode::kDataLoss);
}

// What was written before a port could have several queue pairs; its checksum is of then.
TEST(StateFile, OlderFilesHaveNoQueuePairs) {
  const std::string old =
      "# Desired state of vswitchd, managed through its API; not to be edited.\n"
      "version: 1\n"
      "bridges:\n"
      "  - id: br0\n"
      "ports:\n"
      "  - id: web\n"
      "    bridge: br0\n"
      "    mtu: 1500\n"
      "    vhost_user:\n"
      "      socket_path: \"web.sock\"\n";
  DesiredState state;
  state.bridges["br0"] = {"br0"};
  state.ports["web"] = {"web", "br0", 1500, VhostUserServerSpec{"web.sock"}, 1};
  const auto read = read_state("checksum: crc32-fb30b87c\n" + old);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, state);
  EXPECT_EQ(write_state(state), "checksum: crc32-fb30b87c\n" + old) << "and can be read by them";
}

TEST(StateFile, ChecksTheQueuePairsItReads) {
  DesiredState state = sample();
  state.ports["wide"].queue_pairs = 17;
  const absl::Status status = read_state(write_state(state)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(message_of(status).find("queue pairs 17"), std::string::npos) << status;
}

TEST(StateFile, IsFastEnoughForTheLimits) {
  DesiredState state;
  state.bridges["br0"] = {"br0"};
  for (int i = 0; i < 4096; ++i) {
    const std::string id = "port-" + std::to_string(i);
    state.ports[id] = {id, "br0", 1500, VhostUserServerSpec{"/run/vswitch/" + id + ".sock"}};
  }
  const absl::Time start = absl::Now();
  const std::string text = write_state(state);
  RecordProperty("write_ms", static_cast<int>(absl::ToInt64Milliseconds(absl::Now() - start)));
  EXPECT_EQ(*read_state(text), state);
}

}  // namespace
}  // namespace vswitch::control
