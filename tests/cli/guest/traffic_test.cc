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

constexpr std::uint64_t kAllRings = kModern | virtq::kFeatureIndirectDesc |
                                    virtq::kFeatureEventIdx | virtq::kFeatureRingPacked |
                                    virtq::kFeatureInOrder;

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

// Every ring a switch can have, with every way to describe a frame.
struct RingCase {
  const char* name;
  bool packed, in_order, event_index;
  virtq::TxLayout tx_layout;
  virtq::Reclaim reclaim;
  std::uint32_t queue_size;
};
class TrafficOverRings : public TrafficTest, public testing::WithParamInterface<RingCase> {
 protected:
  TrafficOverRings() {
    options_.nic.packed = GetParam().packed;
    options_.nic.in_order = GetParam().in_order;
    options_.nic.event_index = GetParam().event_index;
    options_.nic.tx_layout = GetParam().tx_layout;
    options_.nic.reclaim = GetParam().reclaim;
    options_.nic.queue_size = GetParam().queue_size;
  }
};

TEST_P(TrafficOverRings, LosesNothing) {
  serve({}, kAllRings);
  options_.sizes = {60, 1514, 4000};
  options_.nic.max_frame = 4000;
  if (options_.nic.queue_size < 4) options_.sizes = {60, 1514};
  const Report report = run();
  expect_clean(report);
  EXPECT_EQ(report.totals.received, 1000U);
  const auto wanted = GetParam().tx_layout;
  EXPECT_EQ(report.tx_layout, wanted == virtq::TxLayout::kAuto ? "push" : tx_layout_name(wanted));
  const auto has = [&](const char* feature) { return testing::Contains(std::string(feature)); };
  if (GetParam().packed) {
    EXPECT_THAT(report.features, has("VIRTIO_F_RING_PACKED"));
  } else {
    EXPECT_THAT(report.features, testing::Not(has("VIRTIO_F_RING_PACKED")));
  }
}

TEST_P(TrafficOverRings, SleepsUntilCalled) {
  serve({.wait_for_sleep = true}, kAllRings);
  options_.wait_on_call = true;
  options_.window = 1;
  options_.count = 5;
  const Report report = run();
  expect_clean(report);
  EXPECT_EQ(report.totals.received, 5U);
  EXPECT_GT(switch_->calls(), 0U);
  EXPECT_LE(switch_->calls(), switch_->frames());
}

TEST_P(TrafficOverRings, ComesBack) {
  serve({}, kAllRings);
  options_.count = 0;
  options_.rate.frames_per_second = 2'000;
  options_.window = 0;
  std::thread trouble([&] {
    const auto wait_until = [](const auto& condition) {
      for (int i = 0; i < 5'000 && !condition(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    wait_until([&] { return switch_->frames() >= 50; });
    switch_->hang_up();
    wait_until([&] { return switch_->connections() == 2; });
    const std::uint64_t before = switch_->frames();
    wait_until([&] { return switch_->frames() >= before + 50; });
    stop_ = true;
  });
  const Report report = run();
  trouble.join();
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(report.reconnects, 1U);
  EXPECT_EQ(report.lost, 0U);
  EXPECT_EQ(report.bad_used_elements, 0U);
  EXPECT_GE(report.totals.received, 100U);
}

using virtq::Reclaim;
using virtq::TxLayout;
INSTANTIATE_TEST_SUITE_P(
    Rings, TrafficOverRings,
    testing::Values(
        RingCase{"SplitIndirect", false, false, false, TxLayout::kIndirect, Reclaim::kLazy, 256},
        RingCase{"SplitChain", false, false, false, TxLayout::kChain, Reclaim::kEager, 256},
        RingCase{"SplitEventIdx", false, false, true, TxLayout::kAuto, Reclaim::kLazy, 256},
        RingCase{"SplitInOrder", false, true, true, TxLayout::kChain, Reclaim::kLazy, 16},
        RingCase{"Packed", true, false, false, TxLayout::kAuto, Reclaim::kLazy, 256},
        RingCase{"PackedEventIdx", true, false, true, TxLayout::kPush, Reclaim::kEager, 255},
        RingCase{"PackedIndirect", true, false, false, TxLayout::kIndirect, Reclaim::kLazy, 17},
        RingCase{"PackedInOrder", true, true, true, TxLayout::kChain, Reclaim::kLazy, 33},
        RingCase{"PackedOfOne", true, false, false, TxLayout::kPush, Reclaim::kLazy, 1},
        RingCase{"PackedLarge", true, true, false, TxLayout::kPush, Reclaim::kLazy, 32768}),
    [](const testing::TestParamInfo<RingCase>& instance) { return instance.param.name; });

TEST_F(TrafficTest, ASplitRingCarriesOnAfterABadId) {
  serve({.bad_id = 999});
  const Report report = run();
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(report.totals.received, 1000U);
  EXPECT_EQ(report.bad_used_elements, 1U);
}

TEST_F(TrafficTest, APackedRingIsBrokenByABadId) {
  serve({.bad_id = 100}, kAllRings);
  options_.nic.packed = true;
  options_.nic.reclaim = virtq::Reclaim::kEager;
  const Report report = run();
  EXPECT_EQ(status_.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status_.message()), HasSubstr("attach again"));
  EXPECT_EQ(report.bad_used_elements, 1U);
}

TEST_F(TrafficTest, LegacyDriversSendAsTheSwitchAllows) {
  options_.nic.version_1 = false;
  for (const auto& [features, layout] : {std::pair(virtq::kFeatureAnyLayout, "push"),
                                         {virtq::kFeatureIndirectDesc, "indirect"},
                                         {std::uint64_t{0}, "chain"}}) {
    serve({}, features | virtq::kFeatureMrgRxbuf);
    const Report report = run();
    expect_clean(report);
    EXPECT_EQ(report.totals.received, 1000U);
    EXPECT_EQ(report.tx_layout, layout);
    switch_.reset();
  }
}

TEST_F(TrafficTest, WhatTheSwitchDoesNotOfferIsNamedWithTheFlag) {
  serve();
  const auto refusal = [&] {
    const absl::Status status = GuestNic::open(options_.nic, stop_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  options_.nic.packed = true;
  EXPECT_EQ(refusal(),
            "the back-end does not offer VIRTIO_F_RING_PACKED. Leave out --packed, or attach to a "
            "port that offers it");
  options_.nic.event_index = true;
  options_.nic.in_order = true;
  options_.nic.tx_layout = virtq::TxLayout::kIndirect;
  EXPECT_THAT(refusal(), HasSubstr("Leave out --packed and --in-order and --event-idx and "
                                   "--tx-layout indirect, or attach to a port that offers them"));
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
  // How many acknowledgements there are is a matter of time; they are shorter than these frames.
  serve({.from_bytes = 61, .drop = 5});
  options_.command = Command::kGenerate;
  options_.sizes = {61};
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
