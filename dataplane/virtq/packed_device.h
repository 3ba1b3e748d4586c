// The device's end of a packed virtqueue (virtio 1.2, 2.8): layout, order and barriers.
//
// The same shape as SplitDevice, which says what each function means. One thread uses it at a time.
// The guest is not trusted: every shared field is loaded once, every list is bounded.
#pragma once

#include <cstdint>

#include "dataplane/frame/memory_access.h"
#include "dataplane/guest_memory/guest_memory.h"
#include "dataplane/virtq/chain.h"
#include "dataplane/virtq/features.h"
#include "dataplane/virtq/packed_layout.h"

namespace vswitch::virtq {

class PackedDevice {
 public:
  using Ring = PackedRing;
  // What returns one buffer to the guest. `slots` says how far the ring moves on.
  struct Used {
    std::uint16_t id;
    std::uint16_t slots;
    std::uint32_t length;
  };
  static Used used(const Chain& chain, std::uint32_t length) {
    return {chain.id, chain.slots, length};
  }

  // The ring's memory must be mapped, aligned (packed_layout.h) and outlive this object.
  // `position`: where the next available descriptor and the next used one stand, as
  // PackedPosition::raw(); its offset must be below the ring's size.
  PackedDevice(const PackedRing& ring, std::uint16_t position, RingFeatures features)
      : ring_(ring),
        features_(features),
        next_(PackedPosition::from_raw(position)),
        used_(PackedPosition::from_raw(position)) {}

  // How many chains may be available, at most `wanted`: how many there are is only known by
  // fetching them. 0: none is, or the ring is broken().
  std::uint32_t peek(std::uint32_t wanted);

  template <Access access>
  Fetch fetch(Translator& translator, SegmentArena& arena, Chain& chain);

  template <Access access>
  std::uint32_t fetch_simple(const Region& region, std::uint32_t wanted, std::uint64_t byte_limit,
                             Segment* segments, Used* elements);

  void rewind(const Used* elements, std::uint32_t chains) {
    for (std::uint32_t i = 0; i < chains; ++i) {
      next_.retreat(elements[i].slots, ring_.size);
      outstanding_ -= elements[i].slots;
    }
  }

  // Writes one used descriptor for every chain, the last one first: a driver that waits for the
  // first finds the others complete.
  void publish(const Used* elements, std::uint32_t count);

  bool wants_event();
  void suppress_kicks() { store_event_suppression(*ring_.device_events, {0, kEventsDisabled}); }

  // PackedPosition::raw() of the next descriptor to be fetched.
  std::uint16_t position() const { return next_.raw(); }
  // Chains that are available from `position` on; for status, from any thread that may read the
  // memory. Reads as many descriptors.
  static std::uint32_t backlog(const PackedRing& ring, std::uint16_t position);

  std::uint32_t descriptors_walked() const { return walked_; }
  std::uint32_t descriptors_refused() const { return refused_; }

  BrokenRing broken() const { return broken_; }
  const PackedRing& ring() const { return ring_; }

 private:
  // Descriptors ahead of the one that is read whose line is asked for.
  static constexpr std::uint32_t kPrefetchAhead = 12;

  struct Walk;
  template <Access access>
  void take_buffer(Walk& walk, Translator& translator, SegmentArena& arena, std::uint64_t address,
                   std::uint32_t length, std::uint16_t flags);
  template <Access access>
  void take_table(Walk& walk, Translator& translator, SegmentArena& arena, std::uint64_t address,
                  std::uint32_t length);
  template <Access access>
  Fetch fetch_list(Translator& translator, SegmentArena& arena, Chain& chain, std::uint16_t flags);

  void prefetch_ahead() const {
    std::uint32_t ahead = next_.offset + kPrefetchAhead;
    if (ahead >= ring_.size) ahead -= ring_.size;
    // Of a ring that is shorter than that: any place in it will do.
    prefetch_for_read(ring_.descriptors + (ahead < ring_.size ? ahead : 0));
  }

  PackedRing ring_;
  RingFeatures features_;
  BrokenRing broken_ = BrokenRing::kNone;
  PackedPosition next_;            // next descriptor to fetch
  PackedPosition used_;            // next descriptor to mark used
  std::uint32_t outstanding_ = 0;  // slots fetched and not returned: between used_ and next_
  std::uint32_t unsignalled_ = 0;  // slots returned since the last wants_event()
  bool never_signalled_ = true;
  std::uint32_t walked_ = 0;
  std::uint32_t refused_ = 0;
};

inline std::uint32_t PackedDevice::peek(std::uint32_t wanted) {
  if (broken_ != BrokenRing::kNone || outstanding_ == ring_.size) return 0;
  if (!is_available(load_relaxed(ring_.descriptors[next_.offset].flags), next_.wrap)) return 0;
  const std::uint32_t most = ring_.size - outstanding_;
  return wanted < most ? wanted : most;
}

template <Access access>
[[gnu::always_inline]] inline std::uint32_t PackedDevice::fetch_simple(const Region& region,
                                                                       std::uint32_t wanted,
                                                                       std::uint64_t byte_limit,
                                                                       Segment* segments,
                                                                       Used* elements) {
  const Region here = region;
  const std::uint32_t room = broken_ == BrokenRing::kNone ? ring_.size - outstanding_ : 0;
  const std::uint32_t count = wanted < room ? wanted : room;
  constexpr std::uint16_t kWanted = access == Access::kWritable ? kDescWrite : 0;
  std::uint64_t bytes = 0;
  std::uint32_t taken = 0;
  while (taken < count && bytes < byte_limit) {
    const PackedDescriptor& shared = ring_.descriptors[next_.offset];
    prefetch_ahead();
    // Acquire, paired with the driver's release of the flags (2.8.21.1.1): the other fields are
    // loaded behind it.
    const std::uint16_t flags = load_acquire(shared.flags);
    if (!is_available(flags, next_.wrap)) break;
    // What is refused here is loaded anew by fetch(), and judged by what that load says.
    const std::uint64_t offset = load_relaxed(shared.address) - here.guest_address;
    const std::uint32_t length = load_relaxed(shared.length);
    if ((flags & (kDescNext | kDescWrite | kDescIndirect)) != kWanted || length == 0 ||
        offset >= here.size || length > here.size - offset) [[unlikely]] {
      break;
    }
    segments[taken] = {here.host + offset, length};
    elements[taken] = {load_relaxed(shared.id), 1, 0};
    next_.advance(1, ring_.size);
    bytes += length;
    ++taken;
  }
  outstanding_ += taken;
  return taken;
}

template <Access access>
[[gnu::always_inline]] inline Fetch PackedDevice::fetch(Translator& translator, SegmentArena& arena,
                                                        Chain& chain) {
  if (broken_ != BrokenRing::kNone) [[unlikely]] {
    return Fetch::kBroken;
  }
  // Nothing can be available beyond what is still ours, whatever the flags say.
  if (outstanding_ == ring_.size) [[unlikely]] {
    return Fetch::kEmpty;
  }
  const std::uint16_t flags = load_acquire(ring_.descriptors[next_.offset].flags);
  if (!is_available(flags, next_.wrap)) return Fetch::kEmpty;
  // A local, so that a caller's chain can stay in registers.
  Chain walked;
  const Fetch result = fetch_list<access>(translator, arena, walked, flags);
  chain = walked;
  return result;
}

extern template Fetch PackedDevice::fetch_list<Access::kReadable>(Translator&, SegmentArena&,
                                                                  Chain&, std::uint16_t);
extern template Fetch PackedDevice::fetch_list<Access::kWritable>(Translator&, SegmentArena&,
                                                                  Chain&, std::uint16_t);

}  // namespace vswitch::virtq
