// A virtio-net queue seen from the device: frames out of chains, frames into chains.
//
// Above the ring ends: knows the virtio-net header (virtio 1.2, 5.1.6), mergeable buffers, and how
// a burst is pipelined; knows nothing of ring layout. Features are fixed when a queue starts: a
// change makes a new DeviceQueue. One thread works on a queue at a time (see `DeviceQueue::lock`).
//
// A queue is either the guest's transmit queue, used with read() and release(), or its receive
// queue, used with write(). Nothing that was read is kept back: every poll ends with release().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "dataplane/frame/counters.h"
#include "dataplane/frame/frame.h"
#include "dataplane/guest_memory/guest_memory.h"
#include "dataplane/virtq/features.h"
#include "dataplane/virtq/packed_device.h"
#include "dataplane/virtq/split_device.h"

namespace vswitch::virtq {

// Work of one poll is bounded in frames (kBurstFrames), descriptors and bytes; a chain that is
// begun is finished, and is itself bounded by the queue size.
inline constexpr std::uint32_t kPollSegments = 512;
inline constexpr std::uint32_t kPollDescriptors = 512;
inline constexpr std::uint32_t kPollBytes = 1u << 19;
// A burst that is written must be placed or dropped now, so more is allowed, but not without end: a
// guest may offer every buffer as a chain of 32768 descriptors.
inline constexpr std::uint32_t kWriteDescriptors = 16384;

// Receive buffers taken for one frame, before it is written.
struct Reservation {
  Segment* segments = nullptr;
  std::uint32_t segment_count = 0;
  std::uint16_t buffers = 0;  // chains; num_buffers of the header
};

template <typename DeviceEnd>
class BasicDeviceQueue {
 public:
  BasicDeviceQueue(DeviceEnd end, std::shared_ptr<const GuestMemory> memory, std::uint64_t features,
                   std::uint32_t queue_size);

  // --- The guest's transmit queue.

  // Takes up to kBurstFrames chains and makes frames of the good ones. Refused chains are counted
  // in `counters` and stay among those to release. Returns the number of chains taken; release()
  // must follow unless it is 0.
  std::uint32_t read(FrameBurst& burst, QueueCounters& counters);
  // Returns all chains taken by read() to the guest, in ring order.
  void release();

  // --- The guest's receive queue.

  // Copies frames into receive buffers and publishes them at once. Frames that find no buffers are
  // dropped and counted; delivered ones are counted as packets and bytes.
  void write(const Frame* const* frames, std::uint32_t count, QueueCounters& counters);

  // The steps of write(). reserve(): buffers for a frame of `frame_bytes`, all or none; refused
  // buffers met on the way are counted and will be returned. Until commit() nothing is visible to
  // the guest.
  bool reserve(std::uint32_t frame_bytes, Reservation& reservation, QueueCounters& counters);
  void fill(const Reservation& reservation, const Frame& frame);
  void commit();

  bool wants_event() { return end_.wants_event(); }
  std::uint16_t position() const { return end_.position(); }
  BrokenRing broken() const { return end_.broken(); }
  std::uint32_t descriptors_walked() const { return end_.descriptors_walked(); }
  std::uint32_t descriptors_refused() const { return end_.descriptors_refused(); }
  const DeviceEnd& end() const { return end_; }

 private:
  // The first half of a frame: where it lies. False, and counted, if there is none in the chain.
  bool place_frame(const Segment* segments, std::uint32_t chain_bytes, Frame& frame,
                   QueueCounters& counters) const;
  // The second half: the private header.
  void make_frame(Frame& frame, std::byte* header) const;
  Fetch fetch_buffer(Chain& chain);
  // reserve() for as many of `frames`, from the first on, as fit into one simple buffer each.
  std::uint32_t reserve_simple(const Frame* const* frames, std::uint32_t count,
                               Reservation* reservations);
  void fill_scattered(const Reservation& reservation, const Frame& frame) const;

  DeviceEnd end_;
  std::shared_ptr<const GuestMemory> memory_;
  Translator translator_;
  std::uint32_t net_header_bytes_;
  bool mergeable_;
  std::vector<Segment> segment_storage_;
  SegmentArena arena_;
  // Chains to be returned by the next release() or commit().
  std::vector<typename DeviceEnd::Used> used_;
  std::uint32_t used_count_ = 0;
  std::uint32_t write_started_ = 0;  // DeviceEnd::descriptors_walked() at the start of this write
};

extern template class BasicDeviceQueue<SplitDevice>;
extern template class BasicDeviceQueue<PackedDevice>;

}  // namespace vswitch::virtq
