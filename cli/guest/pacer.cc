#include "cli/guest/pacer.h"

#include <algorithm>

namespace vswitch::guest {

Pacer::Pacer(const Rate& rate, double average_bytes) {
  double frames_per_second = rate.frames_per_second;
  if (rate.bits_per_second > 0) frames_per_second = rate.bits_per_second / (8 * average_bytes);
  if (frames_per_second > 0) nanoseconds_per_frame_ = 1e9 / frames_per_second;
}

std::uint32_t Pacer::due(std::uint64_t now) {
  if (nanoseconds_per_frame_ <= 0) return kMaxBurst;
  const auto time = static_cast<double>(now);
  if (!started_) {
    started_ = true;
    next_ = time;
  }
  if (time < next_) return 0;
  const double frames = (time - next_) / nanoseconds_per_frame_ + 1;
  if (frames >= kMaxBurst + 1) {
    next_ = time - (kMaxBurst - 1) * nanoseconds_per_frame_;
    return kMaxBurst;
  }
  return std::min(static_cast<std::uint32_t>(frames), kMaxBurst);
}

void Pacer::sent(std::uint32_t count) { next_ += count * nanoseconds_per_frame_; }

std::uint64_t Pacer::next() const {
  return nanoseconds_per_frame_ <= 0 ? 0 : static_cast<std::uint64_t>(std::max(next_, 0.0));
}

}  // namespace vswitch::guest
