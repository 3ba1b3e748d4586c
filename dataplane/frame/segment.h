// A piece of memory whose whole extent has been checked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vswitch {

// Host address of `length` bytes. Where they are guest memory the guest may change them at any
// moment: copy once, decide on the copy.
struct Segment {
  std::byte* data = nullptr;
  std::uint32_t length = 0;
};

// Segments of one burst, filled front to back and emptied as a whole. Never grows on the fast path.
struct SegmentArena {
  Segment* data = nullptr;
  std::uint32_t count = 0;
  std::uint32_t capacity = 0;

  bool full() const { return count == capacity; }
};

}  // namespace vswitch
