// Starting the data plane: what it refuses, and what it says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dataplane/dataplane.h"
#include "dataplane/os/log.h"
#include "dataplane/runtime/cpu_list.h"
#include "dataplane/runtime/eal.h"

namespace vswitch::dataplane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string text(const absl::Status& status) { return std::string(status.message()); }

TEST(CpuList, FormatsRanges) {
  EXPECT_EQ(format_cpus({}), "");
  EXPECT_EQ(format_cpus({0}), "0");
  EXPECT_EQ(format_cpus({0, 1}), "0-1");
  EXPECT_EQ(format_cpus({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(format_cpus({1, 3, 5}), "1,3,5");
  EXPECT_EQ(format_cpus({7, 8, 9, 11, 12}), "7-9,11-12");
}

TEST(CpuList, ChoosesTheHighest) {
  EXPECT_THAT(*choose_worker_cpus({0, 1, 2, 5}, {}, 1), ElementsAre(5u));
  EXPECT_THAT(*choose_worker_cpus({0, 1, 2, 5}, {}, 3), ElementsAre(5u, 2u, 1u));
  EXPECT_THAT(*choose_worker_cpus({3}, {}, 1), ElementsAre(3u)) << "shared if there is but one";
}

TEST(CpuList, TakesWhatIsWanted) {
  EXPECT_THAT(*choose_worker_cpus({0, 1, 2, 5}, {2, 0}, 1), ElementsAre(2u, 0u));
}

TEST(CpuList, RefusesWhatCannotBe) {
  const std::vector<unsigned> usable = {0, 1, 4};
  const absl::Status unknown = choose_worker_cpus(usable, {9}, 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_THAT(text(unknown), HasSubstr("9"));
  EXPECT_THAT(text(unknown), HasSubstr("0-1,4"));
  EXPECT_TRUE(absl::IsInvalidArgument(choose_worker_cpus(usable, {1, 1}, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(choose_worker_cpus(usable, {}, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(choose_worker_cpus(usable, {}, 4).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(choose_worker_cpus(usable, {}, 65).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(choose_worker_cpus({}, {}, 1).status()));
}

class Start : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kError); }
  static Options small() {
    Options options;
    options.memory_bytes = 32ull << 20;
    options.hugepages = HugepageMode::kOff;
    return options;
  }
};

// Refusals leave the process able to start properly afterwards.
TEST_F(Start, RefusalsAndThenASuccess) {
  Options options = small();
  options.worker_cpus = {1023};
  absl::Status status = Dataplane::start(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(text(status), HasSubstr("CPU"));

  options = small();
  options.worker_count = 64;
  status = Dataplane::start(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;

  options = small();
  options.memory_bytes = kMinMemoryBytes - 1;
  status = Dataplane::start(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(text(status), HasSubstr("16 MiB"));

  options = small();
  options.memory_bytes = 1ull << 50;
  status = Dataplane::start(options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;

  options.hugepages = HugepageMode::kOn;
  status = Dataplane::start(options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(text(status), HasSubstr("hugepages"));

  const auto plane = Dataplane::start(small());
  ASSERT_TRUE(plane.ok()) << plane.status();
  EXPECT_EQ((*plane)->system().memory_mode, "ordinary pages");
  EXPECT_EQ((*plane)->system().memory_bytes, 32ull << 20);
  EXPECT_EQ((*plane)->system().workers, 1u);
  EXPECT_GT((*plane)->system().tsc_hz, 100'000'000u);
  const auto workers = (*plane)->workers(absl::InfiniteFuture());
  ASSERT_TRUE(workers.ok());
  ASSERT_EQ(workers->size(), 1u);
  EXPECT_GT(workers->at(0).total_cycles, 0u);
  EXPECT_EQ(workers->at(0).busy_cycles, 0u) << "polls that find nothing are no work";
  EXPECT_EQ(workers->at(0).packets, 0u);
}

TEST_F(Start, StopAndStartAgain) {
  for (int i = 0; i < 3; ++i) {
    auto plane = Dataplane::start(small());
    ASSERT_TRUE(plane.ok()) << plane.status();
    EXPECT_TRUE((*plane)->ports(absl::InfiniteFuture())->empty());
  }
}

TEST_F(Start, AWorkerForEachCpu) {
  Options options = small();
  options.worker_count = static_cast<unsigned>(usable_cpus().size());
  const auto plane = Dataplane::start(options);
  ASSERT_TRUE(plane.ok()) << plane.status();
  EXPECT_EQ((*plane)->workers(absl::InfiniteFuture())->size(), options.worker_count);
}

TEST_F(Start, NamesOfStates) {
  EXPECT_EQ(port_state_name(PortState::kListening), "Listening");
  EXPECT_EQ(port_state_name(PortState::kNegotiating), "Negotiating");
  EXPECT_EQ(port_state_name(PortState::kUp), "Up");
  EXPECT_EQ(port_state_name(PortState::kQuarantined), "Quarantined");
  EXPECT_EQ(port_state_name(PortState::kFailed), "Failed");
}

}  // namespace
}  // namespace vswitch::dataplane
