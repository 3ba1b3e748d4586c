// A frame on its way through the switch: private header bytes, views of the rest, and who lent
// them.
//
// A frame is valid from the read that produced it until the release of its owner; both happen
// within one poll of one worker. Nothing here owns memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "dataplane/frame/segment.h"

namespace vswitch {

// Frames read from a queue in one poll.
inline constexpr std::uint32_t kBurstFrames = 32;
// Room in front of the private header, so that a tag or an outer header is just a longer header.
inline constexpr std::uint32_t kHeaderHeadroom = 128;
// Bytes of a frame copied to private memory before anything is decided: Ethernet with two tags,
// IPv6 and TCP with options fit (14 + 8 + 40 + 60 = 122).
inline constexpr std::uint32_t kHeaderBytes = 128;

// What the sender left undone, independent of any ring's encoding. All zero: nothing.
struct Offload {
  enum class Segmentation : std::uint8_t { kNone, kTcp4, kTcp6, kUdp };
  Segmentation segmentation = Segmentation::kNone;
  bool needs_checksum = false;
  std::uint16_t segment_bytes = 0;    // payload of each segment
  std::uint16_t header_bytes = 0;     // headers in front of that payload
  std::uint16_t checksum_start = 0;   // offset in the frame
  std::uint16_t checksum_offset = 0;  // from checksum_start
};

// Whose memory the views show; the owner is told once the frame has been delivered.
enum class FrameOwner : std::uint8_t { kGuestChain, kDriverBuffer, kMbuf };

struct Frame {
  // Private: what the decision was made on is what is delivered.
  std::byte* header = nullptr;
  std::uint32_t header_bytes = 0;
  // The rest: `payload_bytes` bytes that start `payload_offset` bytes into the first segment.
  const Segment* payload = nullptr;
  std::uint32_t payload_offset = 0;
  std::uint32_t payload_bytes = 0;
  FrameOwner owner = FrameOwner::kGuestChain;
  Offload offload;

  std::uint32_t bytes() const { return header_bytes + payload_bytes; }
};

// The frames of one poll and their private headers. One per worker; about 10 KiB, meant to stay in
// the first-level cache.
struct FrameBurst {
  std::uint32_t count = 0;
  std::array<Frame, kBurstFrames> frames;
  alignas(
      64) std::array<std::array<std::byte, kHeaderHeadroom + kHeaderBytes>, kBurstFrames> headers;

  std::byte* header_of(std::uint32_t index) { return headers[index].data() + kHeaderHeadroom; }
};

}  // namespace vswitch
