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
      has_num_buffers_(net_header_bytes_ == 12),
      // A poll begins a chain only below kPollSegments; the chain may take as many descriptors as
      // the queue has, and a region boundary in each of a few.
      segment_storage_(kPollSegments + queue_size + 64),
      arena_{segment_storage_.data(), 0, static_cast<std::uint32_t>(segment_storage_.size())},
      // One element a chain, and never more chains than the queue has entries.
      used_(queue_size) {
  end_.suppress_kicks();
}

template <typename DeviceEnd>
std::uint32_t BasicDeviceQueue<DeviceEnd>::read(FrameBurst& burst, QueueCounters& counters) {
  burst.count = 0;
  arena_.count = 0;
  const std::uint32_t available = end_.peek(kBurstFrames);
  if (available == 0) return 0;
  std::array<Chain, kBurstFrames> chains;
  std::uint32_t good = 0;
  std::uint32_t bytes = 0;
  for (std::uint32_t i = 0; i < available; ++i) {
    if (arena_.count >= kPollSegments || bytes >= kPollBytes) break;
    Chain& chain = chains[good];
    const Fetch fetched = end_.template fetch<Access::kReadable>(translator_, arena_, chain);
    if (fetched == Fetch::kBroken || fetched == Fetch::kEmpty) break;
    used_[used_count_++] = {chain.id, 0};
    if (fetched == Fetch::kBadChain) [[unlikely]] {
      counters.drop(chain.reason);
      continue;
    }
    if (chain.bytes <= net_header_bytes_) [[unlikely]] {
      counters.drop(DropReason::kHeaderTooShort);
      continue;
    }
    const Segment& first = chain.segments[0];
    prefetch_for_read(first.data + net_header_bytes_);
    if (first.length > net_header_bytes_ + kCacheLineBytes) {
      prefetch_for_read(first.data + net_header_bytes_ + kCacheLineBytes);
    }
    bytes += std::min(chain.bytes, kPollBytes);
    ++good;
  }
  for (std::uint32_t i = 0; i < good; ++i) make_frame(chains[i], burst, i);
  burst.count = good;
  return used_count_;
}

// The virtio-net header is skipped unread: without checksum and segmentation offloads negotiated,
// every field of it is fixed (5.1.6.2.1).
template <typename DeviceEnd>
void BasicDeviceQueue<DeviceEnd>::make_frame(const Chain& chain, FrameBurst& burst,
                                             std::uint32_t index) const {
  Frame& frame = burst.frames[index];
  const std::uint32_t frame_bytes = chain.bytes - net_header_bytes_;
  frame.header = burst.header_of(index);
  frame.header_bytes = std::min(frame_bytes, kHeaderBytes);
  frame.payload_bytes = frame_bytes - frame.header_bytes;
  frame.owner = FrameOwner::kGuestChain;
  const Segment& first = chain.segments[0];
  if (first.length >= net_header_bytes_ + frame.header_bytes) [[likely]] {
    copy_bytes(frame.header, first.data + net_header_bytes_, frame.header_bytes);
    frame.payload = chain.segments;
    frame.payload_offset = net_header_bytes_ + frame.header_bytes;
    return;
  }
  Cursor cursor{chain.segments, 0};
  cursor.skip(net_header_bytes_);
  copy_out(cursor, frame.header, frame.header_bytes);
  frame.payload = cursor.segment;
  frame.payload_offset = cursor.offset;
}

template <typename DeviceEnd>
void BasicDeviceQueue<DeviceEnd>::release() {
  end_.publish(used_.data(), used_count_);
  used_count_ = 0;
}

template <typename DeviceEnd>
bool BasicDeviceQueue<DeviceEnd>::reserve(std::uint32_t frame_bytes, Reservation& reservation,
                                          QueueCounters& counters) {
  std::uint32_t missing = frame_bytes + net_header_bytes_;
  std::uint16_t taken = 0;  // good chains taken for this frame, the last ones in used_
  std::uint32_t smallest = net_header_bytes_;
  const std::uint32_t arena_start = arena_.count;
  Chain chain;
  while (true) {
    Fetch fetched = used_count_ < used_.size()
                        ? end_.template fetch<Access::kWritable>(translator_, arena_, chain)
                        : Fetch::kEmpty;
    if (fetched == Fetch::kReady && chain.bytes < smallest) {
      fetched = Fetch::kBadChain;
      chain.reason = DropReason::kBufferTooSmall;
    }
    if (fetched == Fetch::kBadChain) [[unlikely]] {
      // The buffers of one frame must follow each other in the used ring (5.1.6.4), so those in
      // front of the bad one go back unused as well, and the frame starts anew behind it.
      for (std::uint16_t i = 0; i < taken; ++i) used_[used_count_ - 1 - i].length = 0;
      used_[used_count_++] = {chain.id, 0};
      counters.drop(chain.reason);
      missing = frame_bytes + net_header_bytes_;
      taken = 0;
      smallest = net_header_bytes_;
      arena_.count = arena_start;
      continue;
    }
    if (fetched != Fetch::kReady || (!mergeable_ && chain.bytes < missing)) [[unlikely]] {
      const bool too_small = fetched == Fetch::kReady;
      end_.rewind(static_cast<std::uint16_t>(taken + (too_small ? 1 : 0)));
      used_count_ -= taken;
      arena_.count = arena_start;
      return false;
    }
    const std::uint32_t written = std::min(missing, chain.bytes);
    used_[used_count_++] = {chain.id, written};
    ++taken;
    missing -= written;
    if (missing == 0) break;
    smallest = 1;
  }
  reservation.segments = arena_.data + arena_start;
  reservation.segment_count = arena_.count - arena_start;
  reservation.buffers = taken;
  return true;
}

template <typename DeviceEnd>
void BasicDeviceQueue<DeviceEnd>::fill(const Reservation& reservation, const Frame& frame) {
  // 5.1.6.4.1: num_buffers counts the buffers used, 1 without mergeable buffers.
  const VirtioNetHeader header{.num_buffers = mergeable_ ? reservation.buffers : std::uint16_t{1}};
  const std::uint32_t header_bytes = has_num_buffers_ ? 12 : 10;
  const Segment& first = reservation.segments[0];
  Cursor to{reservation.segments, 0};
  if (first.length >= header_bytes + frame.header_bytes) [[likely]] {
    store_net_header_if_different(first.data, header, header_bytes);
    copy_bytes(first.data + header_bytes, frame.header, frame.header_bytes);
    to.skip(header_bytes + frame.header_bytes);
  } else {
    copy_in(to, reinterpret_cast<const std::byte*>(&header), header_bytes);
    copy_in(to, frame.header, frame.header_bytes);
  }
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
  if (used_count_ == 0) return;
  end_.publish(used_.data(), used_count_);
  used_count_ = 0;
}

template <typename DeviceEnd>
void BasicDeviceQueue<DeviceEnd>::write(const Frame* const* frames, std::uint32_t count,
                                        QueueCounters& counters) {
  std::array<Reservation, kBurstFrames> reservations;
  std::array<const Frame*, kBurstFrames> reserved_frames;
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;
  std::uint32_t next = 0;
  while (next < count) {
    arena_.count = 0;
    end_.peek(count - next);
    std::uint32_t reserved = 0;
    for (; next < count && reserved < kBurstFrames && arena_.count < kPollSegments; ++next) {
      const Frame& frame = *frames[next];
      Reservation& reservation = reservations[reserved];
      if (!reserve(frame.bytes(), reservation, counters)) {
        counters.drop(DropReason::kNoRxBuffer);
        continue;
      }
      // The header's line is read before it is (perhaps) written; a large frame's next line is
      // only written.
      const Segment& first = reservation.segments[0];
      prefetch_for_read(first.data);
      if (frame.bytes() > kCacheLineBytes && first.length > kCacheLineBytes) {
        prefetch_for_write(first.data + kCacheLineBytes);
      }
      reserved_frames[reserved++] = &frame;
    }
    for (std::uint32_t i = 0; i < reserved; ++i) {
      fill(reservations[i], *reserved_frames[i]);
      bytes += reserved_frames[i]->bytes();
    }
    packets += reserved;
    commit();
  }
  if (packets != 0) {
    counters.packets.add(packets);
    counters.bytes.add(bytes);
  }
}

template class BasicDeviceQueue<SplitDevice>;

}  // namespace vswitch::virtq
