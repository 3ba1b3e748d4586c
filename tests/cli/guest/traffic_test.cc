// Whole runs of the guest against a switch that sends everything back, well or with faults.
#include "cli/guest/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "dataplane/virtq/features.h"
#include "tests/cli/guest/loopback_switch.h"

namespace vswitch::guest {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kModern =
    virtq::kFeatureVersion1 | virtq::kFeatureMrgRxbuf | virtq::kFeatureAnyLayout;

class TrafficTest : public testing::Test {
 protected:
  TrafficTest() {
    options_.nic.socket =
        testing::TempDir() + "/vswitch-loop-" + std::to_string(::getpid()) + ".sock";
    options_.nic.connect_timeout = absl::Seconds(5);
    options_.command = Command::kPing;
    options_.mac = 0x020000000001;
    options_.destination = 0x020000000002;
    options_.window = 16;
    options_.count = 1000;
    options_.reply_timeout = absl::Milliseconds(200);
    options_.linger = absl::Milliseconds(100);
  }

  void serve(const LoopbackSwitch::Faults& faults = {}, std::uint64_t features = kModern) {
    switch_ = std::make_unique<LoopbackSwitch>(options_.nic.socket, faults, features);
  }

  Report run() {
    auto nic = GuestNic::open(options_.nic, stop_);
    EXPECT_TRUE(nic.ok()) << nic.status();
    if (!nic.ok()) return {};
    Traffic traffic(options_, **nic, stop_);
    status_ = traffic.run();
    return traffic.report();
  }

  void expect_clean(const Report& report) {
    EXPECT_TRUE(status_.ok()) << status_;
    EXPECT_EQ(report.lost, 0U);
    EXPECT_EQ(report.duplicates, 0U);
    EXPECT_EQ(report.reordered, 0U);
    EXPECT_EQ(report.totals.damaged, 0U);
    EXPECT_EQ(report.bad_used_elements, 0U);
  }

  Options options_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<LoopbackSwitch> switch_;
  absl::Status status_;
};

TEST_F(TrafficTest, PingLosesNothing) {
  serve();
  const Report report = run();
  expect_clean(report);
  EXPECT_EQ(report.totals.sent, 1000U);
  EXPECT_EQ(report.totals.sent_bytes, 60'000U);
  EXPECT_EQ(report.totals.received, 1000U);
  EXPECT_EQ(report.latency.count(), 1000U);
  EXPECT_GT(report.latency.min(), 0U);
}

TEST_F(TrafficTest, LargeFramesComeInSeveralBuffers) {
  serve();
  options_.sizes = {60, 9014, 2036, 2037};
  options_.nic.max_frame = 9018;
  options_.nic.queue_size = 128;
  const Report report = run();
  expect_clean(report);
  EXPECT_EQ(report.totals.received, 1000U);
}

TEST_F(TrafficTest, LegacyDriverWithTenByteHeaders) {
  serve();
  options_.nic.version_1 = false;
  options_.nic.mergeable = false;
  const Report report = run();
  expect_clean(report);
  EXPECT_EQ(report.totals.received, 1000U);
  EXPECT_THAT(report.features, testing::Not(testing::Contains("VIRTIO_F_VERSION_1")));
}

TEST_F(TrafficTest, LossIsCounted) {
  serve({.drop = 100});
  const Report report = run();
  EXPECT_TRUE(status_.ok());
  EXPECT_EQ(report.totals.sent, 1000U);
  EXPECT_EQ(report.lost, 10U);
  EXPECT_EQ(report.totals.received, 990U);
}

TEST_F(TrafficTest, DamageIsCountedAndNotReceived) {
  serve({.damage = 250});
  const Report report = run();
  EXPECT_EQ(report.totals.damaged, 4U);
  EXPECT_EQ(report.totals.received, 996U);
  EXPECT_EQ(report.lost, 4U);
}

TEST_F(TrafficTest, DuplicatesAreCounted) {
  serve({.duplicate = 200});
  const Report report = run();
  EXPECT_EQ(report.duplicates, 5U);
  EXPECT_EQ(report.lost, 0U);
}

TEST_F(TrafficTest, GenerateCountsWhatComesBack) {
  serve();
  options_.command = Command::kGenerate;
  options_.rate.frames_per_second = 20'000;
  const Report report = run();
  expect_clean(report);
  EXPECT_EQ(report.totals.sent, 1000U);
  EXPECT_EQ(report.totals.received, 1000U);
  // Never faster than asked; a busy machine may be slower.
  EXPECT_GE(report.send_seconds, 0.0499);
}

TEST_F(TrafficTest, GenerateWithAWindowTakesEchoesForAnswers) {
  serve();
  options_.command = Command::kGenerate;
  options_.nic.queue_size = 64;
  options_.count = 5000;
  const Report report = run();
  expect_clean(report);
  EXPECT_EQ(report.totals.received, 5000U);
}

TEST_F(TrafficTest, AWindowGoesOnAfterALoss) {
  serve({.drop = 5});
  options_.command = Command::kGenerate;
  options_.window = 2;
  options_.count = 20;
  options_.reply_timeout = absl::Milliseconds(20);
  const Report report = run();
  EXPECT_TRUE(status_.ok());
  EXPECT_EQ(report.totals.sent, 20U);
  EXPECT_EQ(report.lost, 4U);
}

TEST_F(TrafficTest, SleepingUntilCalled) {
  serve();
  options_.wait_on_call = true;
  options_.window = 1;
  options_.rate.frames_per_second = 100;
  options_.count = 10;
  const Report report = run();
  expect_clean(report);
  EXPECT_EQ(report.totals.received, 10U);
}

TEST_F(TrafficTest, ComesBackAfterTheSwitchWasAway) {
  serve();
  options_.count = 0;
  options_.rate.frames_per_second = 5'000;
  options_.window = 0;
  std::thread trouble([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    switch_->hang_up();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    stop_ = true;
  });
  const Report report = run();
  trouble.join();
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(report.reconnects, 1U);
  EXPECT_EQ(switch_->connections(), 2U);
  // The rings went on where they were: this switch loses nothing on the way.
  EXPECT_EQ(report.lost, 0U);
  EXPECT_GT(report.totals.received, 100U);
}

TEST_F(TrafficTest, WithoutReconnectALostSwitchIsAnError) {
  serve();
  options_.count = 0;
  options_.nic.reconnect = false;
  std::thread trouble([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    switch_->hang_up();
  });
  run();
  trouble.join();
  EXPECT_EQ(status_.code(), absl::StatusCode::kAborted);
}

TEST_F(TrafficTest, APeerThatNeverAnswersIsAnError) {
  serve();
  options_.wait_peer = absl::Milliseconds(50);
  run();
  EXPECT_EQ(status_.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("02:00:00:00:00:02"));
}

TEST_F(TrafficTest, ConnectingGivesUp) {
  options_.nic.connect_timeout = absl::Milliseconds(50);
  const absl::Status status = GuestNic::open(options_.nic, stop_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(options_.nic.socket));
}

TEST_F(TrafficTest, ASwitchWithoutVersion1IsRefused) {
  serve({}, virtq::kFeatureMrgRxbuf);
  const absl::Status status = GuestNic::open(options_.nic, stop_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("VIRTIO_F_VERSION_1"));
}

}  // namespace
}  // namespace vswitch::guest
