// The device's end of a split virtqueue (virtio 1.2, 2.7): layout, order and barriers.
//
// It knows nothing of packets. One thread uses it at a time. The other side, the guest, is not
// trusted: every shared field is loaded once, every index is checked before it is used.
#pragma once

#include <array>
#include <cstdint>

#include "dataplane/frame/memory_access.h"
#include "dataplane/guest_memory/guest_memory.h"
#include "dataplane/virtq/chain.h"
#include "dataplane/virtq/features.h"
#include "dataplane/virtq/split_layout.h"

namespace vswitch::virtq {

class SplitDevice {
 public:
  using Ring = SplitRing;
  // What returns one chain to the guest.
  using Used = UsedElement;
  static Used used(const Chain& chain, std::uint32_t length) { return {chain.id, length}; }

  // Available entries that are loaded and whose descriptors are prefetched together.
  static constexpr std::uint32_t kBlock = 32;

  // The ring's memory must be mapped, aligned (split_layout.h) and outlive this object. `position`:
  // the available and used index to go on from; they are equal whenever everything fetched has been
  // returned, and only then does a ring start or stop.
  SplitDevice(const SplitRing& ring, std::uint16_t position, RingFeatures features)
      : ring_(ring),
        mask_(static_cast<std::uint16_t>(ring.size - 1)),
        features_(features),
        next_(position),
        seen_(position),
        used_(position),
        signalled_(position),
        block_first_(position) {}

  // How many chains are available, at most `wanted`; loads their heads and prefetches their
  // descriptors. 0 may mean broken().
  std::uint32_t peek(std::uint32_t wanted);

  // Takes the next chain. Its segments are appended to the arena; a refused chain leaves none.
  template <Access access>
  Fetch fetch(Translator& translator, SegmentArena& arena, Chain& chain);

  // The quick way for the usual: takes chains of one direct descriptor within `region`, up to
  // `wanted` of those that peek() has loaded, writing the segment of each and the element that
  // returns it (with length 0). Stops in front of the first chain of another kind, which is left to
  // fetch(), and behind the one that brings their bytes to `byte_limit`. Returns how many were
  // taken.
  template <Access access>
  std::uint32_t fetch_simple(const Region& region, std::uint32_t wanted, std::uint64_t byte_limit,
                             Segment* segments, Used* elements);

  // Gives the last `chains` fetched ones, `elements`, back unreturned: they will be fetched again.
  void rewind(const Used*, std::uint32_t chains) {
    next_ = static_cast<std::uint16_t>(next_ - chains);
  }

  // Returns chains to the guest, in one step for all of them (2.7.8.2).
  void publish(const Used* elements, std::uint32_t count);

  // Whether the guest wants to be notified of what was published since the last call (2.7.7.2).
  // Contains the full fence. The first time it says yes to a guest that uses event indices: what
  // was published before this object was made is unknown.
  bool wants_event();

  // Tells the guest that this ring is polled and needs no kicks (2.7.8, 2.7.10.2); a hint only.
  void suppress_kicks();

  // Next available index to be fetched.
  std::uint16_t position() const { return next_; }
  // Chains made available and not fetched; for status, from any thread that may read the memory.
  static std::uint16_t backlog(const SplitRing& ring, std::uint16_t position) {
    return static_cast<std::uint16_t>(load_relaxed(ring.avail->index) - position);
  }

  // Descriptors looked at beyond the first of each chain, so far; wraps around.
  std::uint32_t descriptors_walked() const { return walked_; }

  // Of these, those in chains that were refused.
  std::uint32_t descriptors_refused() const { return refused_; }

  BrokenRing broken() const { return broken_; }
  const SplitRing& ring() const { return ring_; }

 private:
  template <Access access>
  Fetch fetch_chain(Translator& translator, SegmentArena& arena, Chain& chain, Descriptor first);
  Fetch give_up(BrokenRing reason) {
    broken_ = reason;
    block_count_ = 0;  // nor is any entry served that was loaded, or rewound, before
    return Fetch::kBroken;
  }

  SplitRing ring_;
  std::uint16_t mask_;
  RingFeatures features_;
  BrokenRing broken_ = BrokenRing::kNone;
  std::uint16_t next_;       // next available index to fetch
  std::uint16_t seen_;       // the guest's available index as last loaded
  std::uint16_t used_;       // our used index, as published
  std::uint16_t signalled_;  // our used index at the last wants_event()
  bool never_signalled_ = true;
  std::uint32_t walked_ = 0;
  std::uint32_t refused_ = 0;

  // Heads of the available entries [block_first_, block_first_ + block_count_).
  std::uint16_t block_first_;
  std::uint16_t block_count_ = 0;
  std::array<std::uint16_t, kBlock> block_{};
};

inline std::uint32_t SplitDevice::peek(std::uint32_t wanted) {
  if (broken_ != BrokenRing::kNone) return 0;
  if (wanted > kBlock) wanted = kBlock;
  auto ready = static_cast<std::uint16_t>(seen_ - next_);
  if (ready < wanted) {
    // Acquire, paired with the driver's publication of the index (2.7.13.3): its entries and
    // descriptors are visible before it is.
    seen_ = load_acquire(ring_.avail->index);
    ready = static_cast<std::uint16_t>(seen_ - next_);
    if (ready > ring_.size) {
      give_up(BrokenRing::kIndexJump);
      return 0;
    }
    if (ready == 0) return 0;
  }
  const std::uint32_t count = ready < wanted ? ready : wanted;
  const std::uint16_t* entries = ring_.avail_entries();
  const Descriptor* const table = ring_.descriptors;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint16_t head = load_relaxed(entries[(next_ + i) & mask_]);
    block_[i] = head;
    prefetch_for_read(table + head);  // harmless where the head is out of range
  }
  block_first_ = next_;
  block_count_ = static_cast<std::uint16_t>(count);
  return count;
}

template <Access access>
[[gnu::always_inline]] inline Fetch SplitDevice::fetch(Translator& translator, SegmentArena& arena,
                                                       Chain& chain) {
  auto in_block = static_cast<std::uint16_t>(next_ - block_first_);
  if (in_block >= block_count_) [[unlikely]] {
    if (peek(kBlock) == 0) return broken_ == BrokenRing::kNone ? Fetch::kEmpty : Fetch::kBroken;
    in_block = 0;
  }
  const std::uint16_t head = block_[in_block];
  if (head >= ring_.size) [[unlikely]] {
    return give_up(BrokenRing::kHeadOutOfRange);
  }
  ++next_;
  const Descriptor first = load_descriptor(ring_.descriptors[head]);
  constexpr std::uint16_t kWanted = access == Access::kWritable ? kDescWrite : 0;
  const std::uint32_t start = arena.count;
  if ((first.flags & (kDescNext | kDescWrite | kDescIndirect)) == kWanted &&
      translator.append(first.address, first.length, arena) == Translator::Result::kOk) [[likely]] {
    chain.id = head;
    chain.bytes = first.length;
    chain.segments = arena.data + start;
    chain.segment_count = arena.count - start;
    return Fetch::kReady;
  }
  // A local, so that a caller's chain can stay in registers on the path above.
  Chain walked;
  walked.id = head;
  walked.segments = arena.data + start;
  const Fetch result = fetch_chain<access>(translator, arena, walked, first);
  chain = walked;
  return result;
}

template <Access access>
[[gnu::always_inline]] inline std::uint32_t SplitDevice::fetch_simple(const Region& region,
                                                                      std::uint32_t wanted,
                                                                      std::uint64_t byte_limit,
                                                                      Segment* segments,
                                                                      Used* elements) {
  const auto in_block = static_cast<std::uint16_t>(next_ - block_first_);
  if (in_block >= block_count_) return 0;
  const std::uint32_t loaded = block_count_ - in_block;
  const std::uint32_t count = wanted < loaded ? wanted : loaded;
  const std::uint16_t* const heads = block_.data() + in_block;
  const Descriptor* const table = ring_.descriptors;
  const std::uint32_t size = ring_.size;
  const Region here = region;
  constexpr std::uint16_t kWanted = access == Access::kWritable ? kDescWrite : 0;
  std::uint64_t bytes = 0;
  std::uint32_t taken = 0;
  while (taken < count && bytes < byte_limit) {
    const std::uint16_t head = heads[taken];
    if (head >= size) [[unlikely]] {
      break;
    }
    // What is refused here is loaded anew by fetch(), and judged by what that load says.
    const Descriptor descriptor = load_descriptor(table[head]);
    const std::uint64_t offset = descriptor.address - here.guest_address;
    if ((descriptor.flags & (kDescNext | kDescWrite | kDescIndirect)) != kWanted ||
        descriptor.length == 0 || offset >= here.size || descriptor.length > here.size - offset)
        [[unlikely]] {
      break;
    }
    segments[taken] = {here.host + offset, descriptor.length};
    elements[taken] = {head, 0};
    bytes += descriptor.length;
    ++taken;
  }
  next_ = static_cast<std::uint16_t>(next_ + taken);
  return taken;
}

extern template Fetch SplitDevice::fetch_chain<Access::kReadable>(Translator&, SegmentArena&,
                                                                  Chain&, Descriptor);
extern template Fetch SplitDevice::fetch_chain<Access::kWritable>(Translator&, SegmentArena&,
                                                                  Chain&, Descriptor);

}  // namespace vswitch::virtq
