#include "control/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <future>
#include <thread>

#include "control/error.h"
#include "tests/control/temp_dir.h"
#include "tests/server/fake_dataplane.h"

namespace vswitch::control {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using vswitch::testing::FakeDataplane;
using vswitch::testing::read_file;
using vswitch::testing::TempDir;
using vswitch::testing::write_file;

absl::Time soon() { return absl::Now() + absl::Seconds(10); }

std::string reason_of(const absl::Status& status) { return error_detail(status).reason; }

class ControllerTest : public ::testing::Test {
 protected:
  ControllerTest() { std::filesystem::create_directory(state_dir_); }

  void build() {
    store_ = *Store::open(state_dir_);
    dataplane_ = std::make_unique<FakeDataplane>();
    controller_ = std::make_unique<Controller>(*dataplane_, *store_, dir_.path());
  }

  absl::Status restore() {
    std::promise<absl::Status> done;
    controller_->restore(*store_->load(dir_.path()),
                         [&](const absl::Status& status) { done.set_value(status); });
    return done.get_future().get();
  }

  void start() {
    build();
    ASSERT_TRUE(restore().ok());
  }

  void start_with_bridge() {
    start();
    ASSERT_TRUE(controller_->create_bridge({"br0"}, soon()).ok());
  }

  // As after a kill: nothing is told anybody.
  void crash() {
    controller_.reset();
    dataplane_.reset();
    store_.reset();
  }

  PortSpec port(const std::string& id) const {
    return {id, "br0", 1500, VhostUserServerSpec{id + ".sock"}};
  }

  std::string stored() const { return read_file(state_dir_ + "/state.yaml"); }
  void break_store() { std::filesystem::create_directory(state_dir_ + "/state.yaml.tmp"); }
  void repair_store() { std::filesystem::remove(state_dir_ + "/state.yaml.tmp"); }

  std::vector<std::string> port_ids() {
    std::vector<std::string> ids;
    const auto views = controller_->ports(soon());
    EXPECT_TRUE(views.ok()) << views.status();
    if (!views.ok()) return ids;
    for (const auto& view : *views) ids.push_back(view.spec.id);
    return ids;
  }

  bool socket_exists(const std::string& name) const {
    struct stat info {};
    return ::lstat((dir_ / name).c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
  }

  void wait_for_operation(const std::string& operation) {
    for (int i = 0; i < 2000; ++i) {
      const auto operations = dataplane_->operations();
      if (std::find(operations.begin(), operations.end(), operation) != operations.end()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL() << operation << " did not come";
  }

  TempDir dir_;
  const std::string state_dir_ = dir_ / "state";
  std::unique_ptr<Store> store_;
  std::unique_ptr<FakeDataplane> dataplane_;
  std::unique_ptr<Controller> controller_;
};

TEST_F(ControllerTest, NothingIsAnsweredBeforeRestore) {
  build();
  EXPECT_EQ(reason_of(controller_->create_bridge({"br0"}, soon())), "SWITCH_STARTING");
  EXPECT_EQ(reason_of(controller_->delete_port("web", soon())), "SWITCH_STARTING");
  EXPECT_EQ(reason_of(controller_->ports(soon()).status()), "SWITCH_STARTING");
  EXPECT_EQ(controller_->check_ready().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(restore().ok());
  EXPECT_TRUE(controller_->check_ready().ok());
}

TEST_F(ControllerTest, IsNotReadyWhileAPortIsBeingRestored) {
  start_with_bridge();
  ASSERT_TRUE(controller_->create_port(port("web"), soon()).ok());
  crash();
  build();
  dataplane_->hold();
  auto restored = std::async(std::launch::async, [&] { return restore(); });
  wait_for_operation("create_bridge br0");
  EXPECT_EQ(reason_of(controller_->check_ready()), "SWITCH_STARTING");
  dataplane_->release();
  ASSERT_TRUE(restored.get().ok());
  EXPECT_TRUE(controller_->check_ready().ok());
  EXPECT_THAT(port_ids(), ElementsAre("web"));
}

TEST_F(ControllerTest, CreateReachesDataPlaneThenDiskThenCaller) {
  start_with_bridge();
  std::string stored_before;
  dataplane_->on_operation([&](const std::string&) { stored_before = stored(); });
  ASSERT_TRUE(controller_->create_port(port("web"), soon()).ok());
  EXPECT_THAT(stored_before, Not(HasSubstr("id: web")));
  EXPECT_THAT(stored(), HasSubstr("id: web"));
  EXPECT_TRUE(socket_exists("web.sock"));
}

TEST_F(ControllerTest, DeleteReachesDiskThenDataPlaneThenCaller) {
  start_with_bridge();
  ASSERT_TRUE(controller_->create_port(port("web"), soon()).ok());
  std::string stored_before;
  dataplane_->on_operation([&](const std::string&) { stored_before = stored(); });
  ASSERT_TRUE(controller_->delete_port("web", soon()).ok());
  EXPECT_THAT(stored_before, AllOf(HasSubstr("id: br0"), Not(HasSubstr("id: web"))));
  EXPECT_FALSE(socket_exists("web.sock"));
  EXPECT_THAT(port_ids(), IsEmpty());
}

TEST_F(ControllerTest, AcknowledgedChangesSurviveACrash) {
  start_with_bridge();
  ASSERT_TRUE(controller_->create_bridge({"br1"}, soon()).ok());
  ASSERT_TRUE(controller_->create_port(port("web"), soon()).ok());
  ASSERT_TRUE(controller_->create_port(port("db"), soon()).ok());
  ASSERT_TRUE(controller_->delete_port("db", soon()).ok());
  crash();
  start();
  EXPECT_THAT(port_ids(), ElementsAre("web"));
  EXPECT_EQ(controller_->bridges(soon())->size(), 2u);
  EXPECT_THAT(dataplane_->operations(),
              ElementsAre("create_bridge br0", "create_bridge br1", "restore_port web"));
  // What was restored is known like what was created.
  PortSpec same_path = port("other");
  same_path.kind = VhostUserServerSpec{dir_ / "web.sock"};
  EXPECT_EQ(reason_of(controller_->create_port(same_path, soon())), "SOCKET_PATH_IN_USE");
}

TEST_F(ControllerTest, RestoredPortThatCannotListenIsKeptAsFailed) {
  start_with_bridge();
  ASSERT_TRUE(controller_->create_port(port("web"), soon()).ok());
  crash();
  write_file(dir_ / "web.sock", "precious");
  start();
  EXPECT_EQ(controller_->port("web", soon())->status.state, dataplane::PortState::kFailed);
  EXPECT_EQ(read_file(dir_ / "web.sock"), "precious");
}

TEST_F(ControllerTest, FailedRestoreIsReported) {
  start_with_bridge();
  crash();
  build();
  dataplane_->fail_next("create_bridge", absl::ResourceExhaustedError("out of memory"));
  EXPECT_EQ(restore().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(reason_of(controller_->check_ready()), "SWITCH_STARTING");
}

TEST_F(ControllerTest, DuplicatesAreRefused) {
  start_with_bridge();
  ASSERT_TRUE(controller_->create_port(port("web"), soon()).ok());
  EXPECT_EQ(reason_of(controller_->create_bridge({"br0"}, soon())), "BRIDGE_ALREADY_EXISTS");
  EXPECT_EQ(reason_of(controller_->create_port(port("web"), soon())), "PORT_ALREADY_EXISTS");
  PortSpec same_path = port("other");
  same_path.kind = VhostUserServerSpec{dir_ / "./x/../web.sock"};
  const absl::Status status = controller_->create_port(same_path, soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(reason_of(status), "SOCKET_PATH_IN_USE");
  EXPECT_EQ(error_detail(status).metadata.at("port"), "web");
}

TEST_F(ControllerTest, OfManyAtTheSameTimeOneWins) {
  start_with_bridge();
  std::vector<std::future<absl::Status>> calls;
  calls.reserve(16);
  for (int i = 0; i < 16; ++i) {
    calls.push_back(std::async(std::launch::async,
                               [&] { return controller_->create_port(port("web"), soon()); }));
  }
  int created = 0;
  for (auto& call : calls) {
    const absl::Status status = call.get();
    if (status.ok()) {
      ++created;
    } else {
      EXPECT_EQ(reason_of(status), "PORT_ALREADY_EXISTS");
    }
  }
  EXPECT_EQ(created, 1);
  EXPECT_THAT(port_ids(), ElementsAre("web"));
}

TEST_F(ControllerTest, DuplicateOfOneUnderWayWaitsForItsEnd) {
  start_with_bridge();
  dataplane_->hold();
  auto first =
      std::async(std::launch::async, [&] { return controller_->create_port(port("web"), soon()); });
  wait_for_operation("create_port web");
  auto second =
      std::async(std::launch::async, [&] { return controller_->create_port(port("web"), soon()); });
  PortSpec same_path = port("other");
  same_path.kind = VhostUserServerSpec{"web.sock"};
  auto third =
      std::async(std::launch::async, [&] { return controller_->create_port(same_path, soon()); });
  auto bridge =
      std::async(std::launch::async, [&] { return controller_->delete_bridge("br0", soon()); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  dataplane_->release();
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(reason_of(second.get()), "PORT_ALREADY_EXISTS");
  EXPECT_EQ(reason_of(third.get()), "SOCKET_PATH_IN_USE");
  EXPECT_EQ(reason_of(bridge.get()), "BRIDGE_NOT_EMPTY");
}

TEST_F(ControllerTest, OneUnderWayDelaysNoOther) {
  start_with_bridge();
  dataplane_->hold();
  auto slow =
      std::async(std::launch::async, [&] { return controller_->create_port(port("web"), soon()); });
  wait_for_operation("create_port web");
  EXPECT_EQ(reason_of(controller_->create_bridge({"br0"}, soon())), "BRIDGE_ALREADY_EXISTS");
  EXPECT_EQ(reason_of(controller_->delete_port("nobody", soon())), "PORT_NOT_FOUND");
  EXPECT_THAT(port_ids(), IsEmpty());
  dataplane_->release();
  EXPECT_TRUE(slow.get().ok());
}

TEST_F(ControllerTest, DeadlineEndsTheWaitAndNotTheChange) {
  start_with_bridge();
  dataplane_->hold();
  const absl::Status status =
      controller_->create_port(port("web"), absl::Now() + absl::Milliseconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(reason_of(status), "DEADLINE_EXCEEDED");
  dataplane_->release();
  // Waits for the change, because it needs the same id.
  EXPECT_EQ(reason_of(controller_->create_port(port("web"), soon())), "PORT_ALREADY_EXISTS");
  EXPECT_THAT(stored(), HasSubstr("id: web"));
}

TEST_F(ControllerTest, ChangeThatHasNotBegunByItsDeadlineIsDropped) {
  start_with_bridge();
  dataplane_->hold();
  auto first =
      std::async(std::launch::async, [&] { return controller_->create_bridge({"br1"}, soon()); });
  wait_for_operation("create_bridge br1");
  EXPECT_EQ(controller_->delete_bridge("br1", absl::Now() + absl::Milliseconds(30)).code(),
            absl::StatusCode::kDeadlineExceeded);
  dataplane_->release();
  ASSERT_TRUE(first.get().ok());
  EXPECT_TRUE(controller_->bridge("br1", soon()).ok());
}

TEST_F(ControllerTest, FailedDataPlaneLeavesNoTrace) {
  start_with_bridge();
  dataplane_->fail_next("create_port", absl::ResourceExhaustedError("out of file descriptors"));
  const absl::Status status = controller_->create_port(port("web"), soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(reason_of(status), "DATAPLANE_EXHAUSTED");
  EXPECT_THAT(stored(), Not(HasSubstr("id: web")));
  EXPECT_TRUE(controller_->create_port(port("web"), soon()).ok());
}

TEST_F(ControllerTest, FailedStoreRollsACreateBack) {
  start_with_bridge();
  break_store();
  const absl::Status port_status = controller_->create_port(port("web"), soon());
  EXPECT_EQ(port_status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(reason_of(port_status), "STORE_WRITE_FAILED");
  EXPECT_EQ(reason_of(controller_->create_bridge({"br1"}, soon())), "STORE_WRITE_FAILED");
  EXPECT_FALSE(socket_exists("web.sock"));
  EXPECT_THAT(dataplane_->operations(), Contains("delete_port web"));
  EXPECT_THAT(dataplane_->operations(), Contains("delete_bridge br1"));
  repair_store();
  EXPECT_TRUE(controller_->create_port(port("web"), soon()).ok());
  EXPECT_TRUE(controller_->create_bridge({"br1"}, soon()).ok());
}

TEST_F(ControllerTest, FailedStoreLeavesADeletedOneAlone) {
  start_with_bridge();
  ASSERT_TRUE(controller_->create_port(port("web"), soon()).ok());
  break_store();
  EXPECT_EQ(reason_of(controller_->delete_port("web", soon())), "STORE_WRITE_FAILED");
  EXPECT_TRUE(socket_exists("web.sock"));
  EXPECT_THAT(port_ids(), ElementsAre("web"));
  repair_store();
  EXPECT_TRUE(controller_->delete_port("web", soon()).ok());
}

TEST_F(ControllerTest, BridgeWithPortsStays) {
  start_with_bridge();
  ASSERT_TRUE(controller_->create_port(port("web"), soon()).ok());
  ASSERT_TRUE(controller_->create_port(port("db"), soon()).ok());
  const absl::Status status = controller_->delete_bridge("br0", soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(error_detail(status).metadata.at("ports"), "db, web");
  EXPECT_THAT(message_of(status), HasSubstr("db, web"));
}

TEST_F(ControllerTest, UnknownBridgeIsNamedWithTheKnownOnes) {
  start_with_bridge();
  PortSpec lost = port("web");
  lost.bridge = "br1";
  const absl::Status status = controller_->create_port(lost, soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(message_of(status), "no such bridge \"br1\"; there are: br0");
}

TEST_F(ControllerTest, MissingDirectoryIsNamedWithTheRemedy) {
  start_with_bridge();
  PortSpec lost = port("web");
  lost.kind = VhostUserServerSpec{"sub/web.sock"};
  const absl::Status status = controller_->create_port(lost, soon());
  EXPECT_EQ(reason_of(status), "SOCKET_DIRECTORY_MISSING");
  EXPECT_THAT(message_of(status), HasSubstr("mkdir -p " + (dir_ / "sub")));
}

TEST_F(ControllerTest, StopAnswersThoseWhoWait) {
  start_with_bridge();
  dataplane_->hold();
  auto call =
      std::async(std::launch::async, [&] { return controller_->create_port(port("web"), soon()); });
  wait_for_operation("create_port web");
  controller_->stop();
  EXPECT_EQ(reason_of(call.get()), "SWITCH_STOPPING");
  EXPECT_EQ(reason_of(controller_->create_bridge({"br1"}, soon())), "SWITCH_STOPPING");
  dataplane_->release();
}

TEST_F(ControllerTest, ManyInParallelAreAllDurable) {
  start_with_bridge();
  constexpr int kThreads = 8;
  constexpr int kPortsEach = 25;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPortsEach; ++i) {
        std::string id = "p";
        id.append(std::to_string(t)).append("-").append(std::to_string(i));
        EXPECT_TRUE(controller_->create_port(port(id), soon()).ok()) << id;
        if (i % 2 == 1) {
          EXPECT_TRUE(controller_->delete_port(id, soon()).ok()) << id;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const std::vector<std::string> before = port_ids();
  EXPECT_EQ(before.size(), static_cast<std::size_t>(kThreads * 13));
  crash();
  start();
  EXPECT_EQ(port_ids(), before);
}

}  // namespace
}  // namespace vswitch::control
