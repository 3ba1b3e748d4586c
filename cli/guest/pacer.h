// Tells how many frames may be sent by now.
#pragma once

#include <cstdint>

#include "cli/guest/units.h"

namespace vswitch::guest {

class Pacer {
 public:
  // At most this many frames become due at once, however late the caller is: frames that a pause
  // (of the scheduler, of the switch) kept back are not sent in one flood.
  static constexpr std::uint32_t kMaxBurst = 32;

  // `average_bytes` turns a bit rate into frames.
  Pacer(const Rate& rate, double average_bytes);

  // Frames due at `now` (nanoseconds of any steady clock); kMaxBurst without a rate.
  std::uint32_t due(std::uint64_t now);
  // They were sent. count <= due().
  void sent(std::uint32_t count);
  // When the next frame is due, as of the last due(). 0: at once.
  std::uint64_t next() const;

 private:
  double nanoseconds_per_frame_ = 0;  // 0: no limit
  double next_ = 0;
  bool started_ = false;
};

}  // namespace vswitch::guest
