#include "dataplane/virtq/split_driver.h"

#include <algorithm>

namespace vswitch::virtq {
namespace {

void store_descriptor_if_different(Descriptor& shared, const Descriptor& value) {
  store_if_different(shared.address, value.address);
  store_if_different(shared.length, value.length);
  store_if_different(shared.flags, value.flags);
  store_if_different(shared.next, value.next);
}

}  // namespace

SplitDriver::SplitDriver(const SplitRing& ring)
    : ring_(ring),
      mask_(static_cast<std::uint16_t>(ring.size - 1)),
      free_(ring.size),
      free_count_(ring.size),
      chains_(ring.size),
      next_(ring.size) {
  for (std::uint32_t i = 0; i < ring.size; ++i) {
    free_[i] = static_cast<std::uint16_t>(i);
    store_descriptor(ring_.descriptors[i], Descriptor{});
    store_relaxed(ring_.avail_entries()[i], std::uint16_t{0});
    store_relaxed(ring_.used_elements()[i].id, std::uint32_t{0});
    store_relaxed(ring_.used_elements()[i].length, std::uint32_t{0});
  }
  store_relaxed(ring_.avail->flags, std::uint16_t{0});
  store_relaxed(ring_.avail->index, std::uint16_t{0});
  store_relaxed(ring_.used->flags, std::uint16_t{0});
  store_relaxed(ring_.used->index, std::uint16_t{0});
}

std::uint16_t SplitDriver::take_descriptor() {
  const std::uint16_t index = free_[free_head_ & mask_];
  ++free_head_;
  --free_count_;
  return index;
}

std::optional<std::uint16_t> SplitDriver::post(std::span<const DriverSegment> chain) {
  if (chain.empty() || chain.size() > free_count_) return std::nullopt;
  const std::uint16_t head = take_descriptor();
  ChainState state{
      .writable = 0, .descriptors = static_cast<std::uint16_t>(chain.size()), .last = head};
  // 2.7.13.1: fill the descriptors. An ordinary store each; expose() orders them.
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const DriverSegment& segment = chain[i];
    Descriptor descriptor{segment.address, segment.length, 0, 0};
    if (segment.device_writable) {
      descriptor.flags = kDescWrite;
      state.writable += segment.length;
    }
    const std::uint16_t here = state.last;
    if (i + 1 < chain.size()) {
      state.last = take_descriptor();
      descriptor.flags = static_cast<std::uint16_t>(descriptor.flags | kDescNext);
      descriptor.next = state.last;
      next_[here] = state.last;
    }
    store_descriptor_if_different(ring_.descriptors[here], descriptor);
  }
  chains_[head] = state;
  // 2.7.13.2: the head goes into the next ring entry, still unseen by the device.
  store_if_different(ring_.avail_entries()[available_ & mask_], head);
  ++available_;
  return head;
}

void SplitDriver::expose() {
  if (available_ == exposed_) return;
  // 2.7.13.3: release orders the descriptors and ring entries before the index that reveals them.
  store_release(ring_.avail->index, available_);
  exposed_ = available_;
}

void SplitDriver::free_chain(std::uint16_t id) {
  std::uint16_t index = id;
  for (std::uint16_t left = chains_[id].descriptors; left > 0; --left) {
    free_[(free_head_ + free_count_) & mask_] = index;
    ++free_count_;
    index = next_[index];
  }
  chains_[id].descriptors = 0;
}

std::uint32_t SplitDriver::reap(std::span<UsedChain> out) {
  if (broken_) return 0;
  // 2.7.14: acquire orders this load before those of the used elements and of the buffers' content.
  const std::uint16_t index = load_acquire(ring_.used->index);
  auto pending = static_cast<std::uint16_t>(index - used_);
  if (pending > ring_.size) {
    broken_ = true;
    return 0;
  }
  std::uint32_t count = 0;
  for (; pending > 0 && count < out.size(); --pending) {
    const UsedElement& shared = ring_.used_elements()[used_ & mask_];
    const std::uint32_t id = load_relaxed(shared.id);
    std::uint32_t length = load_relaxed(shared.length);
    ++used_;
    if (id >= ring_.size || chains_[id].descriptors == 0) {
      ++counters_.bad_ids;
      continue;
    }
    if (length > chains_[id].writable) {
      ++counters_.capped_lengths;
      length = chains_[id].writable;
    }
    const auto head = static_cast<std::uint16_t>(id);
    free_chain(head);
    out[count++] = {head, length};
  }
  return count;
}

bool SplitDriver::wants_event() {
  // 2.7.13.3.1: the store of avail.idx must be seen before used.flags is read. Without the fence
  // the device could set "no notify off" and find nothing, while we still read "no notify".
  full_fence();
  return (load_relaxed(ring_.used->flags) & kUsedNoNotify) == 0;
}

void SplitDriver::suppress_calls(bool suppress) {
  store_if_different(ring_.avail->flags, suppress ? kAvailNoInterrupt : std::uint16_t{0});
  // 2.7.7.1 with 2.7.8: the flag must be seen before the caller's last look at used.idx, or a call
  // for an element published in between is lost.
  if (!suppress) full_fence();
}

std::uint16_t SplitDriver::resume() {
  // Newest first: a head can stand in several slots, and only its latest posting is in flight.
  std::vector<std::uint16_t> in_flight;
  std::vector<bool> seen(ring_.size);
  for (std::uint32_t back = 1; back <= ring_.size; ++back) {
    const auto slot = static_cast<std::uint16_t>(available_ - back);
    const std::uint16_t head = load_relaxed(ring_.avail_entries()[slot & mask_]);
    if (head >= ring_.size || seen[head] || chains_[head].descriptors == 0) continue;
    seen[head] = true;
    in_flight.push_back(head);
  }
  // A device that completes out of order may still hold chains whose slots were overwritten since.
  for (std::uint32_t head = ring_.size; head-- > 0;) {
    if (!seen[head] && chains_[head].descriptors != 0) {
      in_flight.push_back(static_cast<std::uint16_t>(head));
    }
  }
  std::reverse(in_flight.begin(), in_flight.end());

  const std::uint16_t base = load_acquire(ring_.used->index);
  used_ = base;
  available_ = base;
  broken_ = false;
  for (const std::uint16_t head : in_flight) {
    store_relaxed(ring_.avail_entries()[available_ & mask_], head);
    ++available_;
  }
  exposed_ = available_;
  // Release, as in expose(): the next device reads the entries after this index.
  store_release(ring_.avail->index, available_);
  return base;
}

}  // namespace vswitch::virtq
