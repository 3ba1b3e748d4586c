#include "dataplane/frame/counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "dataplane/frame/drop_reason.h"

namespace vswitch {
namespace {

// Metrics, API and dashboards depend on these: a label may be added, never changed.
TEST(DropReason, LabelsAreStable) {
  std::set<std::string> labels;
  for (std::size_t i = 0; i < kDropReasonCount; ++i) {
    labels.emplace(drop_reason_label(static_cast<DropReason>(i)));
  }
  EXPECT_EQ(labels.size(), kDropReasonCount);  // no two the same
  for (const char* label :
       {"descriptor-loop", "descriptor-index", "unmapped-address", "wrong-direction",
        "bad-indirect-table", "too-fragmented", "header-too-short", "buffer-too-small", "runt",
        "oversize", "invalid-source", "reserved-destination", "same-port", "no-destination",
        "no-rx-buffer", "port-down"}) {
    EXPECT_EQ(labels.count(label), 1U) << label;
  }
}

TEST(DropReason, EveryLabelIsAMetricValueAndHasAText) {
  for (std::size_t i = 0; i < kDropReasonCount; ++i) {
    const auto reason = static_cast<DropReason>(i);
    EXPECT_FALSE(drop_reason_text(reason).empty());
    for (const char c : drop_reason_label(reason)) {
      EXPECT_TRUE((c >= 'a' && c <= 'z') || c == '-') << drop_reason_label(reason);
    }
  }
  EXPECT_EQ(drop_reason_label(DropReason::kNoRxBuffer), "no-rx-buffer");
}

TEST(QueueCounters, DropsCountUnderTheirReasonOnly) {
  QueueCounters counters;
  counters.drop(DropReason::kRunt);
  counters.drop(DropReason::kOversize, 5);
  for (std::size_t i = 0; i < kDropReasonCount; ++i) {
    const auto reason = static_cast<DropReason>(i);
    const std::uint64_t expected = reason == DropReason::kRunt       ? 1
                                   : reason == DropReason::kOversize ? 5
                                                                     : 0;
    EXPECT_EQ(counters.dropped[i].value(), expected);
  }
}

TEST(QueueCounters, WorkersShareNoCacheLine) {
  EXPECT_EQ(alignof(QueueCounters), 64U);
  EXPECT_EQ(sizeof(QueueCounters) % 64, 0U);
}

// One writer, any reader: a reader sees a number that never goes back.
TEST(Counter, IsReadWhileItCounts) {
  Counter counter;
  std::thread reader([&] {
    std::uint64_t last = 0;
    while (last < 100'000) {
      const std::uint64_t now = counter.value();
      ASSERT_GE(now, last);
      last = now;
    }
  });
  for (int i = 0; i < 50'000; ++i) counter.add(2);
  reader.join();
  EXPECT_EQ(counter.value(), 100'000U);
}

}  // namespace
}  // namespace vswitch
