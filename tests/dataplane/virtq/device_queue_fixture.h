// A device queue of either layout, the guest's end of its ring, counters, and frames in and out.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dataplane/virtq/device_queue.h"
#include "tests/dataplane/virtq/fake_guest.h"
#include "tests/dataplane/virtq/fake_packed_queue.h"

namespace vswitch::testing {

enum class Layout { kSplit, kPacked };
inline constexpr Layout kLayouts[] = {Layout::kSplit, Layout::kPacked};
inline const char* layout_name(Layout layout) {
  return layout == Layout::kSplit ? "Split" : "Packed";
}
inline void PrintTo(Layout layout, std::ostream* out) { *out << layout_name(layout); }
inline std::string layout_of(const ::testing::TestParamInfo<Layout>& info) {
  return layout_name(info.param);
}

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

// The guest's end of a ring of either layout. Indices of what was used are free-running counts of
// chains in both.
class GuestRing {
 public:
  GuestRing(Layout layout, const FakeGuest& guest, std::uint64_t base, std::uint32_t size,
            std::uint16_t position = 0)
      : guest_(guest) {
    if (layout == Layout::kPacked) {
      packed_ = std::make_unique<FakePackedQueue>(guest, base, size, position);
    } else {
      split_ = std::make_unique<FakeQueue>(guest, base, size, position);
    }
  }

  FakeQueue& split() { return *split_; }
  FakePackedQueue& packed() { return *packed_; }
  bool is_packed() const { return packed_ != nullptr; }

  std::uint32_t size() const { return is_packed() ? packed_->size() : split_->size(); }
  std::uint16_t device_start() {
    return is_packed() ? packed().device_start() : split().device_start();
  }
  // What the device's position() says once all that was offered has been taken.
  std::uint16_t device_end() { return is_packed() ? packed().offered_raw() : split().offered(); }

  void describe(std::uint32_t index, std::uint64_t address, std::uint32_t length,
                std::uint16_t flags = 0, std::uint16_t next = 0) {
    is_packed() ? packed().describe(index, address, length, flags, next)
                : split().describe(index, address, length, flags, next);
  }
  // Entry `index` of an indirect table of `entries` used in order, WRITE or no flags.
  void put_entry(std::uint64_t table, std::uint32_t index, std::uint32_t entries,
                 std::uint64_t address, std::uint32_t length, std::uint16_t flags = 0) const {
    put_entry(guest_, table, index, entries, address, length, flags);
  }
  void put_entry(const FakeGuest& guest, std::uint64_t table, std::uint32_t index,
                 std::uint32_t entries, std::uint64_t address, std::uint32_t length,
                 std::uint16_t flags = 0) const {
    if (is_packed()) {  // 2.8.7: le16 id (reserved), le16 flags
      guest.put_descriptor(table + 16ull * index, address, length, 0, flags);
    } else {
      const bool last = index + 1 == entries;
      guest.put_descriptor(table + 16ull * index, address, length,
                           static_cast<std::uint16_t>(last ? flags : flags | kNextFlag),
                           static_cast<std::uint16_t>(last ? 0 : index + 1));
    }
  }

  void put_head(std::uint16_t head) {
    is_packed() ? packed().put_head(head) : split().put_head(head);
  }
  void show() { is_packed() ? packed().show() : split().show(); }
  void offer(std::uint16_t head) { is_packed() ? packed().offer(head) : split().offer(head); }
  std::uint16_t offered() { return is_packed() ? packed().offered() : split().offered(); }
  void suppress_events(bool suppress) {
    is_packed() ? packed().suppress_events(suppress) : split().suppress_events(suppress);
  }
  // Asks (with VIRTIO_F_EVENT_IDX) for an event when the next chain is used that was not seen yet.
  void event_at_next_used(std::uint16_t seen) {
    is_packed() ? packed().event_at_next_used() : split().event_at(seen);
  }

  std::uint16_t used_index() { return is_packed() ? packed().used_index() : split().used_index(); }
  Used used(std::uint16_t index) {
    return is_packed() ? packed().used(index) : split().used(index);
  }
  std::vector<Used> used_since(std::uint16_t first) {
    return is_packed() ? packed().used_since(first) : split().used_since(first);
  }
  std::uint32_t wrong_flags() { return is_packed() ? packed().wrong_flags() : 0; }

 private:
  const FakeGuest& guest_;
  std::unique_ptr<FakeQueue> split_;  // one of the two
  std::unique_ptr<FakePackedQueue> packed_;
};

using SplitQueue = virtq::BasicDeviceQueue<virtq::SplitDevice>;
using PackedQueue = virtq::BasicDeviceQueue<virtq::PackedDevice>;

// The device's end.
class DeviceUnderTest {
 public:
  explicit DeviceUnderTest(SplitQueue queue) : queue_(std::move(queue)) {}
  explicit DeviceUnderTest(PackedQueue queue) : queue_(std::move(queue)) {}

  std::uint32_t read(FrameBurst& burst, QueueCounters& counters) {
    return std::visit([&](auto& queue) { return queue.read(burst, counters); }, queue_);
  }
  void release() {
    std::visit([](auto& queue) { queue.release(); }, queue_);
  }
  void write(const Frame* const* frames, std::uint32_t count, QueueCounters& counters) {
    std::visit([&](auto& queue) { queue.write(frames, count, counters); }, queue_);
  }
  bool reserve(std::uint32_t bytes, virtq::Reservation& reservation, QueueCounters& counters) {
    return std::visit([&](auto& queue) { return queue.reserve(bytes, reservation, counters); },
                      queue_);
  }
  void fill(const virtq::Reservation& reservation, const Frame& frame) {
    std::visit([&](auto& queue) { queue.fill(reservation, frame); }, queue_);
  }
  void commit() {
    std::visit([](auto& queue) { queue.commit(); }, queue_);
  }
  bool wants_event() {
    return std::visit([](auto& queue) { return queue.wants_event(); }, queue_);
  }
  std::uint16_t position() const {
    return std::visit([](const auto& queue) { return queue.position(); }, queue_);
  }
  virtq::BrokenRing broken() const {
    return std::visit([](const auto& queue) { return queue.broken(); }, queue_);
  }

 private:
  std::variant<SplitQueue, PackedQueue> queue_;
};

inline DeviceUnderTest make_device(const FakeGuest& guest, GuestRing& ring, std::uint64_t features,
                                   virtq::RingFeatures ring_features, std::uint16_t start) {
  if (ring.is_packed()) {
    return DeviceUnderTest(
        PackedQueue(virtq::PackedDevice(ring.packed().ring(), start, ring_features), guest.memory(),
                    features, ring.size()));
  }
  return DeviceUnderTest(SplitQueue(virtq::SplitDevice(ring.split().ring(), start, ring_features),
                                    guest.memory(), features, ring.size()));
}
inline DeviceUnderTest make_device(const FakeGuest& guest, GuestRing& ring, std::uint64_t features,
                                   virtq::RingFeatures ring_features = {.indirect = true}) {
  return make_device(guest, ring, features, ring_features, ring.device_start());
}

class DeviceQueueFixture : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBase = 0x10000000;
  static constexpr std::uint64_t kTxRing = kBase;
  static constexpr std::uint64_t kRxRing = kBase + 0x100000;
  static constexpr std::uint64_t kTables = kBase + 0x200000;  // indirect ones
  static constexpr std::uint64_t kTxBuffers = kBase + 0x300000;
  static constexpr std::uint64_t kRxBuffers = kBase + 0x800000;
  static constexpr std::uint64_t kEnd = kBase + 0x1000000;

  explicit DeviceQueueFixture(Layout layout) : layout_(layout) {}
  void TearDown() override {
    EXPECT_EQ(tx_.wrong_flags(), 0U);
    EXPECT_EQ(rx_.wrong_flags(), 0U);
  }

  GuestRing ring(std::uint64_t base, std::uint32_t size, std::uint16_t position = 0) const {
    return GuestRing(layout_, guest_, base, size, position);
  }
  DeviceUnderTest device(GuestRing& ring, std::uint64_t features, bool indirect = true) const {
    return make_device(guest_, ring, features, {.indirect = indirect});
  }

  // One poll: what the frames show, before they are given back.
  std::vector<Bytes> transmit(DeviceUnderTest& queue) {
    std::vector<Bytes> frames;
    taken_ = queue.read(burst_, counters_);
    for (std::uint32_t i = 0; i < burst_.count; ++i) frames.push_back(bytes_of(burst_.frames[i]));
    if (taken_ != 0) queue.release();
    return frames;
  }
  // Polls until nothing is left.
  std::vector<Bytes> transmit_all(DeviceUnderTest& queue) {
    std::vector<Bytes> all;
    do {
      for (Bytes& frame : transmit(queue)) all.push_back(std::move(frame));
    } while (taken_ != 0);
    return all;
  }

  void receive(DeviceUnderTest& queue, const Frame& frame) {
    const Frame* const frames[] = {&frame};
    queue.write(frames, 1, counters_);
  }
  void receive(DeviceUnderTest& queue, const Bytes& frame) {
    const OwnFrame own(frame);
    receive(queue, own.frame());
  }

  // A frame of `frame` in one descriptor behind a header of zeros.
  void put_frame(GuestRing& queue, std::uint16_t index, std::uint64_t address, const Bytes& frame,
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

  Layout layout_;
  FakeGuest guest_{{{kBase, kEnd - kBase}}};
  GuestRing tx_{layout_, guest_, kTxRing, 256};
  GuestRing rx_{layout_, guest_, kRxRing, 256};
  QueueCounters counters_;
  FrameBurst burst_;
  std::uint32_t taken_ = 0;
};

// For what is the same in both layouts.
class DeviceQueueTest : public DeviceQueueFixture, public ::testing::WithParamInterface<Layout> {
 protected:
  DeviceQueueTest() : DeviceQueueFixture(GetParam()) {}
};
#define VSWITCH_FOR_BOTH_LAYOUTS(fixture) \
  INSTANTIATE_TEST_SUITE_P(Layouts, fixture, ::testing::ValuesIn(kLayouts), layout_of)

}  // namespace vswitch::testing
