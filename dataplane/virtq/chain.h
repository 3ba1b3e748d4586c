// What a device ring end hands up: one descriptor chain, checked and translated.
#pragma once

#include <cstdint>

#include "dataplane/frame/drop_reason.h"
#include "dataplane/frame/segment.h"

namespace vswitch::virtq {

// Which way the device may use the buffers of a chain (virtio 1.2, 2.6): what the guest transmits
// is readable, what it receives into is writable. A chain that mixes them is no network frame.
enum class Access { kReadable, kWritable };

struct Chain {
  std::uint16_t id = 0;     // names the chain when it is returned
  std::uint16_t slots = 1;  // ring slots it takes: one in a split available ring, in a packed ring
                            // one a descriptor
  std::uint32_t bytes = 0;
  Segment* segments = nullptr;  // in the arena of the fetch
  std::uint32_t segment_count = 0;
  DropReason reason{};  // of a refused chain
};

enum class Fetch {
  kReady,     // a good chain
  kBadChain,  // refused; must be returned with length 0; `id` and `reason` are set
  kEmpty,     // the guest has made no more available
  kBroken,    // the ring's position is lost (see broken_ring_text); nothing more can be fetched
};

// Why a ring was given up. Its queue is quarantined until the guest sets it up anew.
enum class BrokenRing : std::uint8_t {
  kNone,
  kIndexJump,       // the available index moved by more than the queue size
  kHeadOutOfRange,  // an available entry names no descriptor
  kEndlessList      // a packed list of descriptors does not end within the ring
};

constexpr const char* broken_ring_text(BrokenRing broken) {
  switch (broken) {
    case BrokenRing::kNone:
      return "";
    case BrokenRing::kIndexJump:
      return "the available index moved by more than the queue size";
    case BrokenRing::kHeadOutOfRange:
      return "an available ring entry is not below the queue size";
    case BrokenRing::kEndlessList:
      return "a descriptor list does not end within the ring";
  }
  return "";
}

}  // namespace vswitch::virtq
