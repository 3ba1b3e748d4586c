// What can happen to a device's queue, by layout and direction: what a corpus must reach in all.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "dataplane/virtq/device_queue.h"
#include "tests/fuzz/target.h"

namespace vswitch::fuzz {

using virtq::BrokenRing;

// Beside the drop reasons and the kinds of broken rings, per layout and direction.
enum Event : std::size_t {
  kDelivered,
  kSeveralDescriptors,
  kIndirect,
  kLegacyHeader,
  kFullBurst,
  kSeveralBuffers,
  kPutBack,
  kWakes,
  kSilent,
  kWakesAtEvent,
  kSilentAtEvent,
  kRestarted,
  kStaysBroken,
  kEventCount
};
constexpr std::string_view kEventNames[] = {
    "frame delivered",
    "buffer of several descriptors",
    "indirect table",
    "frame with a legacy header",
    "full burst",
    "frame over several mergeable buffers",
    "buffers in front of a bad one returned unused",
    "guest wants to be woken",
    "guest wants no notification",
    "event index passed",
    "event index not passed",
    "queue restarted at its position",
    "broken queue stays broken",
};
static_assert(std::size(kEventNames) == kEventCount);

constexpr std::size_t kBrokenKinds = 4;
constexpr std::size_t kBrokenEvents = kEventCount + kDropReasonCount;
constexpr std::size_t kEvents = kBrokenEvents + kBrokenKinds;

// What can happen in a queue at all.
inline bool possible(bool packed, bool receive, std::size_t event) {
  if (event >= kBrokenEvents) {
    switch (static_cast<BrokenRing>(event - kBrokenEvents)) {
      case BrokenRing::kNone:
        return false;
      case BrokenRing::kEndlessList:
        return packed;
      default:
        return !packed;
    }
  }
  if (event >= kEventCount) {
    switch (static_cast<DropReason>(event - kEventCount)) {
      case DropReason::kDescriptorLoop:
      case DropReason::kUnmappedAddress:
      case DropReason::kWrongDirection:
      case DropReason::kBadIndirectTable:
      case DropReason::kTooFragmented:
        return true;
      case DropReason::kDescriptorIndex:
        return !packed;  // there are no links in a packed ring
      case DropReason::kHeaderTooShort:
        return !receive;
      case DropReason::kBufferTooSmall:
      case DropReason::kNoRxBuffer:
        return receive;
      default:
        return false;  // the switch's own
    }
  }
  if (event == kFullBurst) return !receive;
  if (event == kSeveralBuffers || event == kPutBack) return receive;
  return true;
}

// All possible outcomes and their names, by layout, direction and event.
class Outcomes {
 public:
  static const Outcomes& instance() {
    static const Outcomes outcomes;
    return outcomes;
  }
  std::span<const std::string_view> names() const { return names_; }
  std::size_t index(bool packed, bool receive, std::size_t event) const {
    const int found = index_[(packed ? 2 : 0) + (receive ? 1 : 0)][event];
    FUZZ_CHECK(found >= 0);
    return static_cast<std::size_t>(found);
  }

 private:
  Outcomes() {
    texts_.reserve(4 * kEvents);
    for (int kind = 0; kind < 4; ++kind) {
      for (std::size_t event = 0; event < kEvents; ++event) {
        index_[kind][event] = -1;
        if (!possible(kind >= 2, kind % 2 == 1, event)) continue;
        index_[kind][event] = static_cast<int>(texts_.size());
        std::string text = kind >= 2 ? "packed " : "split ";
        text += kind % 2 == 1 ? "receive: " : "transmit: ";
        if (event < kEventCount) {
          text += kEventNames[event];
        } else if (event < kBrokenEvents) {
          text += drop_reason_label(static_cast<DropReason>(event - kEventCount));
        } else {
          text += broken_ring_text(static_cast<BrokenRing>(event - kBrokenEvents));
        }
        texts_.push_back(std::move(text));
      }
    }
    names_.assign(texts_.begin(), texts_.end());
  }

  std::vector<std::string> texts_;
  std::vector<std::string_view> names_;
  int index_[4][kEvents];
};

inline std::array<std::uint64_t, kDropReasonCount> drops_of(const QueueCounters& counters) {
  std::array<std::uint64_t, kDropReasonCount> drops;
  for (std::size_t i = 0; i < drops.size(); ++i) drops[i] = counters.dropped[i].value();
  return drops;
}

}  // namespace vswitch::fuzz
