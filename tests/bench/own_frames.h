// A burst of equal frames in private memory, as the device writes them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dataplane/frame/frame.h"

namespace vswitch::bench {

class OwnFrames {
 public:
  explicit OwnFrames(std::uint32_t bytes) : storage_(std::size_t{kBurstFrames} * 2048) {
    for (std::uint32_t i = 0; i < kBurstFrames; ++i) {
      std::byte* const start = storage_.data() + std::size_t{i} * 2048;
      Frame& frame = frames_[i];
      frame.header = start;
      frame.header_bytes = bytes < kHeaderBytes ? bytes : kHeaderBytes;
      segments_[i] = {start + frame.header_bytes, bytes - frame.header_bytes};
      frame.payload = &segments_[i];
      frame.payload_bytes = bytes - frame.header_bytes;
      list_[i] = &frame;
    }
  }
  OwnFrames(const OwnFrames&) = delete;
  OwnFrames& operator=(const OwnFrames&) = delete;

  const Frame* const* data() const { return list_.data(); }

 private:
  std::vector<std::byte> storage_;
  std::array<Segment, kBurstFrames> segments_;
  std::array<Frame, kBurstFrames> frames_;
  std::array<const Frame*, kBurstFrames> list_;
};

}  // namespace vswitch::bench
