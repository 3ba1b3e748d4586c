// A device queue, its counters, and frames in and out of it, for the tests of both directions.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "dataplane/virtq/device_queue.h"
#include "tests/dataplane/virtq/fake_guest.h"

namespace vswitch::testing {

using SplitQueue = virtq::BasicDeviceQueue<virtq::SplitDevice>;

// Virtio 1.2: VIRTIO_NET_F_MRG_RXBUF is bit 15 (5.1.3), VIRTIO_F_VERSION_1 bit 32 (6).
inline constexpr std::uint64_t kLegacy = 0;
inline constexpr std::uint64_t kMergeable = 1ull << 15;
inline constexpr std::uint64_t kVersion1 = 1ull << 32;

// Bytes that differ from frame to frame and from place to place.
inline Bytes pattern(std::size_t count, std::uint32_t seed) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(seed * 31 + i * 7 + (i >> 8) * 13 + 1);
  }
  return bytes;
}

inline Bytes concat(const Bytes& a, const Bytes& b) {
  Bytes both = a;
  both.insert(both.end(), b.begin(), b.end());
  return both;
}

// The bytes of a frame: its private header, then what its views show.
inline Bytes bytes_of(const Frame& frame) {
  const auto* header = reinterpret_cast<const std::uint8_t*>(frame.header);
  Bytes bytes(header, header + frame.header_bytes);
  const Segment* segment = frame.payload;
  std::uint32_t offset = frame.payload_offset;
  for (std::uint32_t i = 0; i < frame.payload_bytes; ++i) {
    while (offset == segment->length) {
      ++segment;
      offset = 0;
    }
    bytes.push_back(static_cast<std::uint8_t>(segment->data[offset++]));
  }
  return bytes;
}

// A frame of the switch's own: private header and views in pieces of the given lengths (the last
// one is repeated until the frame ends).
class OwnFrame {
 public:
  explicit OwnFrame(Bytes bytes, std::vector<std::uint32_t> pieces = {0xffffffff})
      : bytes_(std::move(bytes)) {
    const auto total = static_cast<std::uint32_t>(bytes_.size());
    auto* data = reinterpret_cast<std::byte*>(bytes_.data());
    frame_.header = data;
    frame_.header_bytes = std::min(total, kHeaderBytes);
    frame_.payload_bytes = total - frame_.header_bytes;
    std::uint32_t done = frame_.header_bytes;
    for (std::size_t i = 0; done != total; ++i) {
      const std::uint32_t piece = std::min(pieces[std::min(i, pieces.size() - 1)], total - done);
      segments_.push_back({data + done, piece});
      done += piece;
    }
    frame_.payload = segments_.data();
  }
  OwnFrame(const OwnFrame&) = delete;

  const Frame& frame() const { return frame_; }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
  std::vector<Segment> segments_;
  Frame frame_;
};

class DeviceQueueTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBase = 0x10000000;
  static constexpr std::uint64_t kTxRing = kBase;
  static constexpr std::uint64_t kRxRing = kBase + 0x100000;
  static constexpr std::uint64_t kTables = kBase + 0x200000;  // indirect ones
  static constexpr std::uint64_t kTxBuffers = kBase + 0x300000;
  static constexpr std::uint64_t kRxBuffers = kBase + 0x800000;
  static constexpr std::uint64_t kEnd = kBase + 0x1000000;

  SplitQueue device(const FakeQueue& queue, std::uint64_t features, std::uint16_t position = 0,
                    bool indirect = true) {
    return SplitQueue(virtq::SplitDevice(queue.ring(), position, {.indirect = indirect}),
                      guest_.memory(), features, queue.size());
  }

  // One poll: what the frames show, before they are given back.
  std::vector<Bytes> transmit(SplitQueue& queue) {
    std::vector<Bytes> frames;
    taken_ = queue.read(burst_, counters_);
    for (std::uint32_t i = 0; i < burst_.count; ++i) frames.push_back(bytes_of(burst_.frames[i]));
    if (taken_ != 0) queue.release();
    return frames;
  }
  // Polls until nothing is left.
  std::vector<Bytes> transmit_all(SplitQueue& queue) {
    std::vector<Bytes> all;
    do {
      for (Bytes& frame : transmit(queue)) all.push_back(std::move(frame));
    } while (taken_ != 0);
    return all;
  }

  void receive(SplitQueue& queue, const Frame& frame) {
    const Frame* const frames[] = {&frame};
    queue.write(frames, 1, counters_);
  }
  void receive(SplitQueue& queue, const Bytes& frame) {
    const OwnFrame own(frame);
    receive(queue, own.frame());
  }

  // A frame of `frame` in one descriptor behind a header of zeros.
  void put_frame(FakeQueue& queue, std::uint16_t index, std::uint64_t address, const Bytes& frame,
                 std::uint32_t header = 12) {
    guest_.write(address, concat(Bytes(header, 0), frame));
    queue.describe(index, address, header + static_cast<std::uint32_t>(frame.size()));
  }

  std::uint64_t drops(DropReason reason) const {
    return counters_.dropped[static_cast<std::size_t>(reason)].value();
  }
  std::uint64_t drops() const {
    std::uint64_t total = 0;
    for (const Counter& counter : counters_.dropped) total += counter.value();
    return total;
  }

  FakeGuest guest_{{{kBase, kEnd - kBase}}};
  FakeQueue tx_{guest_, kTxRing, 256};
  FakeQueue rx_{guest_, kRxRing, 256};
  QueueCounters counters_;
  FrameBurst burst_;
  std::uint32_t taken_ = 0;
};

}  // namespace vswitch::testing
