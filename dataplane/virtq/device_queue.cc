#include "dataplane/virtq/device_queue.h"

#include <algorithm>

#include "dataplane/frame/memory_access.h"
#include "dataplane/net_header/virtio_net_header.h"

namespace vswitch::virtq {
namespace {

// Position in a list of segments.
struct Cursor {
  const Segment* segment;
  std::uint32_t offset;

  void skip(std::uint32_t bytes) {
    while (bytes >= segment->length - offset) {
      bytes -= segment->length - offset;
      ++segment;
      offset = 0;
      if (bytes == 0) return;
    }
    offset += bytes;
  }
};

// Copies to one contiguous place.
void copy_out(Cursor& from, std::byte* to, std::uint32_t bytes) {
  while (bytes != 0) {
    const std::uint32_t piece = std::min(bytes, from.segment->length - from.offset);
    copy_bytes(to, from.segment->data + from.offset, piece);
    to += piece;
    bytes -= piece;
    from.offset += piece;
    if (from.offset == from.segment->length) from = {from.segment + 1, 0};
  }
}

// Copies from one contiguous place.
void copy_in(Cursor& to, const std::byte* from, std::uint32_t bytes) {
  while (bytes != 0) {
    const std::uint32_t piece = std::min(bytes, to.segment->length - to.offset);
    copy_bytes(to.segment->data + to.offset, from, piece);
    from += piece;
    bytes -= piece;
    to.offset += piece;
    if (to.offset == to.segment->length) to = {to.segment + 1, 0};
  }
}

}  // namespace

template <typename DeviceEnd>
BasicDeviceQueue<DeviceEnd>::BasicDeviceQueue(DeviceEnd end,
                                              std::shared_ptr<const GuestMemory> memory,
                                              std::uint64_t features, std::uint32_t queue_size)
    : end_(std::move(end)),
      memory_(std::move(memory)),
      translator_(*memory_),
      net_header_bytes_(net_header_bytes(features)),
      mergeable_((features & kFeatureMrgRxbuf) != 0),
      // A poll begins a chain only below kPollSegments; the chain may take as many descriptors as
      // the queue has, and a region boundary in each of a few.
      segment_storage_(kPollSegments + queue_size + 64),
      arena_{segment_storage_.data(), 0, static_cast<std::uint32_t>(segment_storage_.size())},
      // One element a chain, and never more chains than the queue has entries.
      used_(queue_size) {
  end_.suppress_kicks();
}

template <typename DeviceEnd>
[[gnu::always_inline]] inline bool BasicDeviceQueue<DeviceEnd>::place_frame(
    const Segment* segments, std::uint32_t chain_bytes, Frame& frame,
    QueueCounters& counters) const {
  if (chain_bytes <= net_header_bytes_) [[unlikely]] {
    counters.drop(DropReason::kHeaderTooShort);
    return false;
  }
  const std::byte* const start = segments->data + net_header_bytes_;
  prefetch_for_read(start);
  if (chain_bytes > kCacheLineBytes) prefetch_for_read(start + kCacheLineBytes);
  frame.payload = segments;
  frame.payload_bytes = chain_bytes - net_header_bytes_;
  return true;
}

// Two passes over the burst: the first turns descriptors into segments and asks for the first lines
// of the frames, the second copies the headers once those lines have arrived.
template <typename DeviceEnd>
std::uint32_t BasicDeviceQueue<DeviceEnd>::read(FrameBurst& burst, QueueCounters& counters) {
  burst.count = 0;
  arena_.count = 0;
  const std::uint32_t available = end_.peek(kBurstFrames);
  if (available == 0) return 0;
  const std::uint32_t walked = end_.descriptors_walked();
  Frame* const frames = burst.frames.data();
  std::uint32_t good = 0;
  std::uint64_t bytes = 0;
  while (used_count_ < available && arena_.count < kPollSegments && bytes < kPollBytes &&
         end_.descriptors_walked() - walked < kPollDescriptors) {
    const Segment* const segments = arena_.data + arena_.count;
    const std::uint32_t simple = end_.template fetch_simple<Access::kReadable>(
        translator_.recent(), available - used_count_, kPollBytes - bytes,
        arena_.data + arena_.count, used_.data() + used_count_);
    for (std::uint32_t i = 0; i < simple; ++i) {
      bytes += segments[i].length;
      good += place_frame(segments + i, segments[i].length, frames[good], counters);
    }
    arena_.count += simple;
    used_count_ += simple;
    if (used_count_ == available || bytes >= kPollBytes) break;

    Chain chain;
    const Fetch fetched = end_.template fetch<Access::kReadable>(translator_, arena_, chain);
    if (fetched == Fetch::kBroken || fetched == Fetch::kEmpty) [[unlikely]] {
      break;
    }
    used_[used_count_++] = DeviceEnd::used(chain, 0);
    if (fetched == Fetch::kBadChain) [[unlikely]] {
      counters.drop(chain.reason);
      continue;
    }
    bytes += chain.bytes;
    good += place_frame(chain.segments, chain.bytes, frames[good], counters);
  }
  for (std::uint32_t i = 0; i < good; ++i) make_frame(frames[i], burst.header_of(i));
  burst.count = good;
  return used_count_;
}

// On entry the payload is the whole frame, behind the virtio-net header in its first segments. That
// header is skipped unread: without checksum and segmentation offloads negotiated, every field of
// it is fixed (5.1.6.2.1).
template <typename DeviceEnd>
[[gnu::always_inline]] inline void BasicDeviceQueue<DeviceEnd>::make_frame(
    Frame& frame, std::byte* header) const {
  const std::uint32_t header_bytes = std::min(frame.payload_bytes, kHeaderBytes);
  frame.header = header;
  frame.header_bytes = header_bytes;
  frame.payload_bytes -= header_bytes;
  frame.owner = FrameOwner::kGuestChain;
  const Segment& first = *frame.payload;
  if (first.length >= net_header_bytes_ + header_bytes) [[likely]] {
    copy_header(header, first.data + net_header_bytes_, header_bytes);
    frame.payload_offset = net_header_bytes_ + header_bytes;
    return;
  }
  Cursor cursor{frame.payload, 0};
  cursor.skip(net_header_bytes_);
  copy_out(cursor, header, header_bytes);
  frame.payload = cursor.segment;
  frame.payload_offset = cursor.offset;
}

template <typename DeviceEnd>
void BasicDeviceQueue<DeviceEnd>::release() {
  if (used_count_ == 0) return;
  end_.publish(used_.data(), used_count_);
  used_count_ = 0;
}

// Never more chains at once than the ring has, and never more descriptors than a write may take: a
// guest that makes buffers available as fast as they are refused finds its ring empty.
template <typename DeviceEnd>
[[gnu::always_inline]] inline Fetch BasicDeviceQueue<DeviceEnd>::fetch_buffer(Chain& chain) {
  if (used_count_ == used_.size() ||
      end_.descriptors_walked() - write_started_ >= kWriteDescriptors) [[unlikely]] {
    return Fetch::kEmpty;
  }
  return end_.template fetch<Access::kWritable>(translator_, arena_, chain);
}

template <typename DeviceEnd>
bool BasicDeviceQueue<DeviceEnd>::reserve(std::uint32_t frame_bytes, Reservation& reservation,
                                          QueueCounters& counters) {
  Chain chain;
  const std::uint32_t arena_start = arena_.count;
  Fetch fetched = fetch_buffer(chain);
  std::uint32_t missing = frame_bytes + net_header_bytes_;
  std::uint16_t taken = 0;  // good chains taken for this frame, the last ones in used_
  Segment* first_segment = chain.segments;
  while (true) {
    // 5.1.6.3.1: a receive buffer holds at least the header, mergeable or not.
    if (fetched == Fetch::kReady && chain.bytes < net_header_bytes_) {
      fetched = Fetch::kBadChain;
      chain.reason = DropReason::kBufferTooSmall;
    }
    if (fetched == Fetch::kBadChain) [[unlikely]] {
      // The buffers of one frame must follow each other in the used ring (5.1.6.4), so those in
      // front of the bad one go back unused as well, and the frame starts anew behind it.
      for (std::uint16_t i = 0; i < taken; ++i) used_[used_count_ - 1 - i].length = 0;
      used_[used_count_++] = DeviceEnd::used(chain, 0);
      counters.drop(chain.reason);
      missing = frame_bytes + net_header_bytes_;
      taken = 0;
    } else if (fetched != Fetch::kReady || (!mergeable_ && chain.bytes < missing)) [[unlikely]] {
      if (fetched == Fetch::kReady) {
        used_[used_count_++] = DeviceEnd::used(chain, 0);
        ++taken;
      }
      used_count_ -= taken;
      end_.rewind(used_.data() + used_count_, taken);
      arena_.count = arena_start;
      return false;
    } else {
      if (taken == 0) first_segment = chain.segments;
      const std::uint32_t written = std::min(missing, chain.bytes);
      used_[used_count_++] = DeviceEnd::used(chain, written);
      ++taken;
      missing -= written;
      if (missing == 0) break;
    }
    fetched = fetch_buffer(chain);
  }
  reservation.segments = first_segment;
  reservation.segment_count =
      static_cast<std::uint32_t>(arena_.data + arena_.count - first_segment);
  reservation.buffers = taken;
  return true;
}

template <typename DeviceEnd>
[[gnu::always_inline]] inline void BasicDeviceQueue<DeviceEnd>::fill(const Reservation& reservation,
                                                                     const Frame& frame) {
  const Segment& first = *reservation.segments;
  if (reservation.buffers != 1 || first.length < net_header_bytes_ + frame.bytes()) [[unlikely]] {
    fill_scattered(reservation, frame);
    return;
  }
  store_net_header_if_different(first.data, VirtioNetHeader{.num_buffers = 1}, net_header_bytes_);
  std::byte* to = first.data + net_header_bytes_;
  copy_bytes(to, frame.header, frame.header_bytes);
  if (frame.payload_bytes == 0) return;
  to += frame.header_bytes;
  Cursor from{frame.payload, frame.payload_offset};
  copy_out(from, to, frame.payload_bytes);
}

template <typename DeviceEnd>
void BasicDeviceQueue<DeviceEnd>::fill_scattered(const Reservation& reservation,
                                                 const Frame& frame) const {
  // 5.1.6.4.1: num_buffers counts the buffers used, 1 without mergeable buffers.
  const VirtioNetHeader header{.num_buffers = reservation.buffers};
  Cursor to{reservation.segments, 0};
  if (to.segment->length >= net_header_bytes_) {
    store_net_header_if_different(to.segment->data, header, net_header_bytes_);
    to.skip(net_header_bytes_);
  } else {
    copy_in(to, reinterpret_cast<const std::byte*>(&header), net_header_bytes_);
  }
  copy_in(to, frame.header, frame.header_bytes);
  Cursor from{frame.payload, frame.payload_offset};
  std::uint32_t remaining = frame.payload_bytes;
  while (remaining != 0) {
    if (from.offset == from.segment->length) from = {from.segment + 1, 0};
    const std::uint32_t piece = std::min(remaining, from.segment->length - from.offset);
    copy_in(to, from.segment->data + from.offset, piece);
    from.offset += piece;
    remaining -= piece;
  }
}

template <typename DeviceEnd>
void BasicDeviceQueue<DeviceEnd>::commit() {
  write_started_ = end_.descriptors_walked();
  arena_.count = 0;
  release();
}

template <typename DeviceEnd>
[[gnu::always_inline]] inline std::uint32_t BasicDeviceQueue<DeviceEnd>::reserve_simple(
    const Frame* const* frames, std::uint32_t count, Reservation* reservations) {
  const auto room = static_cast<std::uint32_t>(used_.size()) - used_count_;
  Segment* const segments = arena_.data + arena_.count;
  typename DeviceEnd::Used* const elements = used_.data() + used_count_;
  const std::uint32_t fetched = end_.template fetch_simple<Access::kWritable>(
      translator_.recent(), std::min(count, room), ~std::uint64_t{0}, segments, elements);
  std::uint32_t reserved = 0;
  for (; reserved < fetched; ++reserved) {
    const std::uint32_t needed = frames[reserved]->bytes() + net_header_bytes_;
    Segment& segment = segments[reserved];
    if (segment.length < needed) [[unlikely]] {
      break;
    }
    elements[reserved].length = needed;
    reservations[reserved] = {&segment, 1, 1};
    // The header's line is read before it is (perhaps) written; a large frame's next line is only
    // written.
    prefetch_for_read(segment.data);
    if (needed > kCacheLineBytes) prefetch_for_write(segment.data + kCacheLineBytes);
  }
  if (reserved != fetched) end_.rewind(elements + reserved, fetched - reserved);
  arena_.count += reserved;
  used_count_ += reserved;
  return reserved;
}

// Like read(), two passes: buffers are taken for all frames and their first lines asked for, then
// they are filled. More than one round only if the guest's buffers are very fragmented.
template <typename DeviceEnd>
void BasicDeviceQueue<DeviceEnd>::write(const Frame* const* frames, std::uint32_t count,
                                        QueueCounters& counters) {
  std::array<Reservation, kBurstFrames> reservations;
  std::array<const Frame*, kBurstFrames> reserved_frames;
  write_started_ = end_.descriptors_walked();
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;
  std::uint32_t next = 0;
  while (next < count) {
    arena_.count = 0;
    end_.peek(count - next);
    std::uint32_t reserved = 0;
    while (next < count && reserved < kBurstFrames && arena_.count < kPollSegments) {
      const std::uint32_t simple =
          reserve_simple(frames + next, std::min(count - next, kBurstFrames - reserved),
                         reservations.data() + reserved);
      for (std::uint32_t i = 0; i < simple; ++i) reserved_frames[reserved++] = frames[next++];
      if (next == count || reserved == kBurstFrames) break;

      const Frame& frame = *frames[next++];
      if (!reserve(frame.bytes(), reservations[reserved], counters)) {
        counters.drop(DropReason::kNoRxBuffer);
        continue;
      }
      prefetch_for_read(reservations[reserved].segments->data);
      reserved_frames[reserved++] = &frame;
    }
    for (std::uint32_t i = 0; i < reserved; ++i) {
      fill(reservations[i], *reserved_frames[i]);
      bytes += reserved_frames[i]->bytes();
    }
    packets += reserved;
    release();
  }
  if (packets != 0) {
    counters.packets.add(packets);
    counters.bytes.add(bytes);
  }
}

template class BasicDeviceQueue<SplitDevice>;
template class BasicDeviceQueue<PackedDevice>;

}  // namespace vswitch::virtq
