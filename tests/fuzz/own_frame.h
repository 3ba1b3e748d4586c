// A frame of the switch, as the device's receive side writes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dataplane/frame/frame.h"

namespace vswitch::fuzz {

// Its content depends on its length alone.
struct OwnFrame {
  std::vector<std::byte> bytes;
  std::vector<Segment> segments;
  Frame frame;

  OwnFrame(std::uint32_t length, std::uint32_t piece) : bytes(length) {
    for (std::uint32_t i = 0; i < length; ++i) {
      bytes[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13 + length * 31 + 1);
    }
    frame.header = bytes.data();
    frame.header_bytes = std::min(length, kHeaderBytes);
    frame.payload_bytes = length - frame.header_bytes;
    for (std::uint32_t done = frame.header_bytes; done < length;) {
      const std::uint32_t here = std::min(piece, length - done);
      segments.push_back({bytes.data() + done, here});
      done += here;
    }
    frame.payload = segments.data();
  }
};

}  // namespace vswitch::fuzz
