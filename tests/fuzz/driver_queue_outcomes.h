// What can happen to a driver's queue, by layout and direction: what a corpus must reach in all.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/target.h"

namespace vswitch::fuzz {

enum Event : std::size_t {
  kDone,
  kOutOfOrder,
  kSkipped,
  kLegacyHeader,
  kSeveralBuffers,
  kWaits,
  kShort,
  kNoBuffers,
  kTooManyBuffers,
  kCapped,
  kRefusedId,
  kBroken,
  kStaysBroken,
  kResumed,
  kResumedBroken,
  kPartialDropped,
  kPush,
  kIndirect,
  kChain,
  kWakes,
  kSilent,
  kWakesAtEvent,
  kSilentAtEvent,
  kEventCount
};
constexpr std::string_view kEventNames[] = {
    "frames through",
    "completed out of order",
    "completed by a later one (in-order)",
    "legacy header",
    "frame over several buffers",
    "frame waits for its other buffers",
    "short frame",
    "num_buffers of 0",
    "num_buffers beyond the queue",
    "length capped",
    "bad id refused",
    "position lost",
    "broken queue stays broken",
    "chains in flight offered again",
    "resumed after the position was lost",
    "beginning of a frame dropped",
    "layout push",
    "layout indirect",
    "layout chain",
    "device wants a kick",
    "device wants no kick",
    "event index passed",
    "event index not passed",
};
static_assert(std::size(kEventNames) == kEventCount);

inline bool possible(bool packed, bool receive, std::size_t event) {
  switch (event) {
    case kSeveralBuffers:
    case kWaits:
    case kShort:
    case kNoBuffers:
    case kTooManyBuffers:
    case kPartialDropped:
      return receive;
    case kPush:
    case kIndirect:
    case kChain:
      return !receive;
    case kRefusedId:
      return !packed;  // it loses the position of a packed ring
    default:
      return true;
  }
}

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
    for (int kind = 0; kind < 4; ++kind) {
      for (std::size_t event = 0; event < kEventCount; ++event) {
        index_[kind][event] = -1;
        if (!possible(kind >= 2, kind % 2 == 1, event)) continue;
        index_[kind][event] = static_cast<int>(texts_.size());
        std::string text = kind >= 2 ? "packed " : "split ";
        text += kind % 2 == 1 ? "receive: " : "transmit: ";
        text += kEventNames[event];
        texts_.push_back(std::move(text));
      }
    }
    names_.assign(texts_.begin(), texts_.end());
  }

  std::vector<std::string> texts_;
  std::vector<std::string_view> names_;
  int index_[4][kEventCount];
};

}  // namespace vswitch::fuzz
