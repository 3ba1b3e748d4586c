// The frames guests send each other: how they are told apart, numbered and protected.
//
// An Ethernet frame with the EtherType for local experiments, then, little-endian:
//   offset 14  u32 magic        18  u16 kind      20  u16 frame bytes
//          22  u64 stream       30  u64 sequence  38  u64 time (CLOCK_MONOTONIC, ns)
//          46  u64 checksum of everything from 14 on but itself
//          54  filling that depends on the position only
// A stream is one run of one sender. The checksum is a sum of one term for each 16 bytes, so that
// changing sequence and time of a prepared frame costs one multiplication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "cli/guest/units.h"
#include "dataplane/net_header/ethernet.h"

namespace vswitch::guest {

inline constexpr std::uint16_t kTestEtherType = 0x88b5;  // IEEE 802: local experimental 1
inline constexpr std::uint32_t kTestMagic = 0x56537731;  // "1wSV"
inline constexpr std::uint32_t kTestHeaderBytes = 54;    // Ethernet header included
inline constexpr MacKey kBroadcast = 0xffffffffffff;

enum class Kind : std::uint16_t {
  kData = 1,
  kHello = 2,  // "I am here": lets switches learn the address; asks for a kHelloReply
  kHelloReply = 3,
  kEnd = 4,         // the stream is over; its sequence number is how many data frames were sent
  kWindowData = 5,  // data whose sender waits for kAck: only so many are on their way
  kAck = 6,  // answers kWindowData: sequence is how many arrived, time the stream they are of
};

struct TestHeader {
  Kind kind = Kind::kData;
  std::uint64_t stream = 0;
  std::uint64_t sequence = 0;
  std::uint64_t time = 0;
};

enum class Verify { kFull, kHeader };

enum class Verdict {
  kGood,
  kForeign,  // not one of our frames
  kDamaged,  // ours, but cut off, changed or of the wrong length
};

// Checks one whole frame and reads its header. `header` is set for kGood only.
Verdict parse_frame(std::span<const std::byte> frame, Verify verify, TestHeader& header);

// Writes frames of one stream from one address to another. Not for several threads.
class FrameWriter {
 public:
  // `max_bytes` is the largest frame to be written, `buffers` the number of buffers they go to,
  // `kind` kData or kWindowData.
  FrameWriter(MacKey source, MacKey destination, std::uint64_t stream, std::uint32_t max_bytes,
              std::uint32_t buffers, Kind kind = Kind::kData);

  // Writes a data frame of `bytes` (kMinFrameBytes to max_bytes) to `place`. `buffer` names the
  // place (below `buffers`): what this writer left there is not written again.
  void write(std::byte* place, std::uint16_t buffer, std::uint32_t bytes, std::uint64_t sequence,
             std::uint64_t time);
  // Writes a frame of kMinFrameBytes of another kind, e.g. to everybody.
  void write_control(std::byte* place, std::uint16_t buffer, MacKey destination, Kind kind,
                     std::uint64_t sequence, std::uint64_t time);

  std::uint64_t stream() const { return stream_; }

 private:
  struct Written {
    std::uint32_t size = 0;    // as the header there says; 0: none of ours
    std::uint32_t filled = 0;  // bytes of `image_` that are there
  };

  void write_whole(std::byte* place, Written& written, std::uint32_t bytes);

  std::uint64_t stream_;
  std::vector<std::byte> image_;     // a data frame of max_bytes
  std::vector<std::uint64_t> sums_;  // by frame size: all terms but the one of sequence and time
  std::vector<Written> written_;     // by buffer
};

// A number for a stream that no other run has.
std::uint64_t random_stream();

}  // namespace vswitch::guest
