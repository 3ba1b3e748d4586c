#include "dataplane/virtq/driver_queue.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "dataplane/net_header/virtio_net_header.h"
#include "dataplane/virtq/features.h"

namespace vswitch::virtq {
namespace {

// Used elements looked at in one go.
constexpr std::size_t kReapBurst = 64;

}  // namespace

std::optional<TxLayout> resolve_tx_layout(TxLayout wanted, std::uint64_t features) {
  const bool any_layout = (features & (kFeatureVersion1 | kFeatureAnyLayout)) != 0;
  const bool indirect = (features & kFeatureIndirectDesc) != 0;
  switch (wanted) {
    case TxLayout::kAuto:
      return any_layout ? TxLayout::kPush : indirect ? TxLayout::kIndirect : TxLayout::kChain;
    case TxLayout::kPush:
      return any_layout ? std::optional(wanted) : std::nullopt;
    case TxLayout::kIndirect:
      return indirect ? std::optional(wanted) : std::nullopt;
    case TxLayout::kChain:
      return wanted;
  }
  return std::nullopt;
}

const char* tx_layout_name(TxLayout layout) {
  switch (layout) {
    case TxLayout::kAuto:
      return "auto";
    case TxLayout::kPush:
      return "push";
    case TxLayout::kIndirect:
      return "indirect";
    case TxLayout::kChain:
      return "chain";
  }
  return "";
}

BufferPool::BufferPool(std::uint32_t count) : ring_(count), available_(count) {
  for (std::uint32_t i = 0; i < count; ++i) ring_[i] = static_cast<std::uint16_t>(i);
}

std::uint16_t BufferPool::take() {
  const std::uint16_t buffer = ring_[head_];
  if (++head_ == ring_.size()) head_ = 0;
  --available_;
  return buffer;
}

void BufferPool::put(std::uint16_t buffer) {
  std::size_t place = std::size_t{head_} + available_;
  if (place >= ring_.size()) place -= ring_.size();
  ring_[place] = buffer;
  ++available_;
}

namespace {

// Frames of a layout that a ring has room for.
std::uint32_t most_in_flight(TxLayout layout, std::uint32_t ring_size) {
  switch (layout) {
    case TxLayout::kChain:
      return ring_size / 2;
    case TxLayout::kIndirect:
      // No table is longer than the queue (2.7.5.3.1).
      return ring_size < 2 ? 0 : ring_size;
    default:
      return ring_size;
  }
}

}  // namespace

template <DriverRing Ring>
DriverTransmitQueue<Ring>::DriverTransmitQueue(std::unique_ptr<Ring> ring,
                                               const BufferArea& buffers, std::uint64_t features,
                                               const TransmitOptions& options)
    : ring_(std::move(ring)),
      buffers_(buffers),
      header_bytes_(net_header_bytes(features)),
      layout_(resolve_tx_layout(options.layout, features).value_or(TxLayout::kChain)),
      header_policy_(options.header_policy),
      reclaim_(options.reclaim),
      // So that a buffer always comes with the descriptors it needs.
      pool_size_(std::min(buffers.count, most_in_flight(layout_, ring_->size()))),
      pool_(pool_size_),
      buffer_of_(ring_->size()) {}

template <DriverRing Ring>
std::uint32_t DriverTransmitQueue<Ring>::reclaim() {
  std::array<UsedChain, kReapBurst> used;
  std::uint32_t total = 0;
  for (;;) {
    const std::uint32_t count = ring_->reap(used);
    for (std::uint32_t i = 0; i < count; ++i) pool_.put(buffer_of_[used[i].id]);
    total += count;
    if (count < used.size()) return total;
  }
}

template <DriverRing Ring>
std::uint32_t DriverTransmitQueue<Ring>::reserve(std::span<Slot> slots) {
  // Looking at the used ring only when buffers run short keeps its cache line with the device.
  if (reclaim_ == Reclaim::kEager || pool_.available() < slots.size()) reclaim();
  const auto count =
      static_cast<std::uint32_t>(std::min<std::size_t>(slots.size(), pool_.available()));
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint16_t buffer = pool_.peek(i);
    slots[i].buffer = buffer;
    slots[i].data = buffers_.host + std::size_t{buffer} * buffers_.buffer_bytes + header_bytes_;
    slots[i].capacity = buffers_.buffer_bytes - header_bytes_;
    slots[i].length = 0;
  }
  return count;
}

template <DriverRing Ring>
void DriverTransmitQueue<Ring>::write_header(std::byte* place) const {
  // 5.1.6.2: no offload is asked for, so all fields are zero; num_buffers too.
  constexpr VirtioNetHeader kNothingAsked{};
  if (header_policy_ == HeaderPolicy::kCompareThenWrite) {
    store_net_header_if_different(place, kNothingAsked, header_bytes_);
  } else {
    std::memcpy(place, &kNothingAsked, header_bytes_);
  }
}

template <DriverRing Ring>
std::optional<std::uint16_t> DriverTransmitQueue<Ring>::post(const Slot& slot) {
  const std::size_t offset = std::size_t{slot.buffer} * buffers_.buffer_bytes;
  const std::uint64_t address = buffers_.guest_address + offset;
  write_header(buffers_.host + offset);
  if (layout_ == TxLayout::kPush) {
    const DriverSegment whole{address, header_bytes_ + slot.length, /*device_writable=*/false};
    return ring_->post(std::span(&whole, 1));
  }
  // A legacy device without ANY_LAYOUT wants the header in a descriptor of its own (5.1.6, "Framing
  // Requirements").
  const std::array<DriverSegment, 2> parts{
      DriverSegment{address, header_bytes_, /*device_writable=*/false},
      DriverSegment{address + header_bytes_, slot.length, /*device_writable=*/false}};
  if (layout_ == TxLayout::kChain) return ring_->post(parts);
  const std::size_t table = std::size_t{slot.buffer} * kTransmitTableBytes;
  return ring_->post_indirect({buffers_.tables.host + table, buffers_.tables.guest_address + table},
                              parts);
}

template <DriverRing Ring>
bool DriverTransmitQueue<Ring>::commit(std::span<const Slot> slots) {
  for (const Slot& slot : slots) {
    // There are free descriptors: buffers never outnumber what the ring has room for.
    const auto id = post(slot);
    if (!id) break;
    buffer_of_[*id] = pool_.take();
  }
  ring_->expose();
  return ring_->wants_event();
}

template <DriverRing Ring>
DriverReceiveQueue<Ring>::DriverReceiveQueue(std::unique_ptr<Ring> ring, const BufferArea& buffers,
                                             std::uint64_t features)
    : ring_(std::move(ring)),
      buffers_(buffers),
      header_bytes_(net_header_bytes(features)),
      mergeable_((features & kFeatureMrgRxbuf) != 0),
      pool_size_(std::min(buffers.count, ring_->size())),
      pool_(pool_size_),
      buffer_of_(ring_->size()),
      pending_(std::bit_ceil(ring_->size())) {
  pieces_.reserve(ring_->size());
  post_free_buffers();
}

template <DriverRing Ring>
void DriverReceiveQueue<Ring>::post_free_buffers() {
  while (pool_.available() > 0) {
    const std::uint16_t buffer = pool_.peek(0);
    const DriverSegment segment{
        buffers_.guest_address + std::size_t{buffer} * buffers_.buffer_bytes, buffers_.buffer_bytes,
        /*device_writable=*/true};
    const auto id = ring_->post(std::span(&segment, 1));
    if (!id) break;
    buffer_of_[*id] = pool_.take();
  }
  ring_->expose();
}

template <DriverRing Ring>
void DriverReceiveQueue<Ring>::collect() {
  std::array<UsedChain, kReapBurst> used;
  const std::uint32_t count = ring_->reap(used);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint16_t buffer = buffer_of_[used[i].id];
    __builtin_prefetch(host(buffer));
    pending_[(pending_head_ + pending_count_) & (pending_.size() - 1)] = {buffer, used[i].length};
    ++pending_count_;
  }
}

template <DriverRing Ring>
void DriverReceiveQueue<Ring>::skip_pending(std::uint32_t count) {
  pending_head_ = static_cast<std::uint32_t>((pending_head_ + count) & (pending_.size() - 1));
  pending_count_ -= count;
}

template <DriverRing Ring>
std::uint32_t DriverReceiveQueue<Ring>::read(std::span<Frame> frames) {
  if (pending_count_ < frames.size()) collect();
  std::uint32_t count = 0;
  while (count < frames.size() && pending_count_ > 0) {
    const Pending first = pending(0);
    if (first.length < header_bytes_) {
      // Returned without a frame: empty, or cut off inside the header.
      ++counters_.short_frames;
      pool_.put(first.buffer);
      skip_pending(1);
      continue;
    }
    std::uint32_t buffers = 1;
    if (mergeable_) {
      // 5.1.6.4.1: num_buffers, the last field of the header, in the frame's first buffer only.
      // Read once; the device can still change it.
      std::uint16_t num_buffers = 0;
      std::memcpy(&num_buffers, host(first.buffer) + 10, 2);
      buffers = num_buffers;
      if (buffers == 0 || buffers > pool_size_) {
        ++counters_.bad_num_buffers;
        pool_.put(first.buffer);
        skip_pending(1);
        continue;
      }
      if (buffers > pending_count_) collect();
      if (buffers > pending_count_) break;
    }
    Frame& frame = frames[count++];
    frame = {0, static_cast<std::uint16_t>(pieces_.size()), static_cast<std::uint16_t>(buffers)};
    for (std::uint32_t i = 0; i < buffers; ++i) {
      const Pending& part = pending(i);
      // Only the first buffer starts with the header.
      const std::uint32_t skip = i == 0 ? header_bytes_ : 0;
      pieces_.push_back({host(part.buffer) + skip, part.length - skip, part.buffer});
      frame.length += part.length - skip;
    }
    skip_pending(buffers);
  }
  return count;
}

template <DriverRing Ring>
bool DriverReceiveQueue<Ring>::release() {
  for (const Piece& piece : pieces_) pool_.put(piece.buffer);
  pieces_.clear();
  if (pool_.available() == 0) return false;
  post_free_buffers();
  return ring_->wants_event();
}

template <DriverRing Ring>
void DriverReceiveQueue<Ring>::drop_partial() {
  for (std::uint32_t i = 0; i < pending_count_; ++i) pool_.put(pending(i).buffer);
  skip_pending(pending_count_);
}

template class DriverTransmitQueue<SplitDriver>;
template class DriverReceiveQueue<SplitDriver>;
template class DriverTransmitQueue<PackedDriver>;
template class DriverReceiveQueue<PackedDriver>;

}  // namespace vswitch::virtq
