#include "dataplane/virtq/packed_device.h"

#include <limits>
#include <optional>
#include <utility>

#include "dataplane/virtq/indirect_table.h"

namespace vswitch::virtq {

// What is known of a list on the way to its end. The first fault decides the reason; the walk goes
// on, because the list's end says how far the ring moves and which id returns it.
struct PackedDevice::Walk {
  std::uint64_t bytes = 0;
  std::optional<DropReason> reason;

  void refuse(DropReason why) {
    if (!reason) reason = why;
  }
};

template <Access access>
void PackedDevice::take_buffer(Walk& walk, Translator& translator, SegmentArena& arena,
                               std::uint64_t address, std::uint32_t length, std::uint16_t flags) {
  if (walk.reason) return;
  constexpr std::uint16_t kWanted = access == Access::kWritable ? kDescWrite : 0;
  if ((flags & kDescWrite) != kWanted) {
    walk.refuse(DropReason::kWrongDirection);
    return;
  }
  switch (translator.append(address, length, arena)) {
    case Translator::Result::kOk:
      break;
    case Translator::Result::kUnmapped:
      walk.refuse(DropReason::kUnmappedAddress);
      break;
    case Translator::Result::kArenaFull:
      walk.refuse(DropReason::kTooFragmented);
      break;
  }
  walk.bytes += length;
}

// 2.8.7: all entries of the table in order; of their flags only WRITE counts.
template <Access access>
void PackedDevice::take_table(Walk& walk, Translator& translator, SegmentArena& arena,
                              std::uint64_t address, std::uint32_t length) {
  if (walk.reason) return;
  const auto table = IndirectTableView<PackedDescriptor>::at(address, length);
  if (!features_.indirect || !table) {
    walk.refuse(DropReason::kBadIndirectTable);
    return;
  }
  // 2.8.17: no list is longer than the queue.
  if (table->entries() > ring_.size) {
    walk.refuse(DropReason::kDescriptorLoop);
    return;
  }
  for (std::uint32_t i = 0; i < table->entries() && !walk.reason; ++i) {
    ++walked_;
    const std::optional<PackedDescriptor> entry = table->load(translator, i);
    if (!entry) {
      walk.refuse(DropReason::kUnmappedAddress);
      return;
    }
    take_buffer<access>(walk, translator, arena, entry->address, entry->length, entry->flags);
  }
}

template <Access access>
Fetch PackedDevice::fetch_list(Translator& translator, SegmentArena& arena, Chain& chain,
                               std::uint16_t flags) {
  const std::uint32_t arena_start = arena.count;
  const std::uint32_t walked_before = walked_;
  const std::uint32_t limit = ring_.size - outstanding_;
  Walk walk;
  PackedPosition place = next_;
  std::uint32_t slots = 0;
  while (true) {
    const PackedDescriptor& shared = ring_.descriptors[place.offset];
    // 2.8.17: the driver writes the flags of a list's first descriptor last, so the acquire of
    // those (in fetch()) orders these loads too.
    if (slots != 0) flags = load_relaxed(shared.flags);
    const std::uint64_t address = load_relaxed(shared.address);
    const std::uint32_t length = load_relaxed(shared.length);
    const bool last = (flags & kDescNext) == 0;
    ++slots;
    ++walked_;
    if ((flags & kDescIndirect) == 0) {
      take_buffer<access>(walk, translator, arena, address, length, flags);
    } else if (slots == 1 && last) {
      // 2.8.19: an indirect descriptor stands alone, and its own WRITE flag says nothing.
      take_table<access>(walk, translator, arena, address, length);
    } else {
      walk.refuse(DropReason::kBadIndirectTable);
    }
    if (last) {
      // 2.8.6: the last descriptor's id names the list. It is echoed, never used.
      chain.id = load_relaxed(shared.id);
      break;
    }
    if (slots == limit) {
      arena.count = arena_start;
      broken_ = BrokenRing::kEndlessList;
      return Fetch::kBroken;
    }
    place.advance(1, ring_.size);
  }
  if (walk.bytes > std::numeric_limits<std::uint32_t>::max()) {
    walk.refuse(DropReason::kDescriptorLoop);
  }
  next_.advance(slots, ring_.size);
  outstanding_ += slots;
  chain.slots = static_cast<std::uint16_t>(slots);
  chain.segments = arena.data + arena_start;
  if (walk.reason) {
    refused_ += walked_ - walked_before;
    arena.count = arena_start;
    chain.reason = *walk.reason;
    return Fetch::kBadChain;
  }
  chain.bytes = static_cast<std::uint32_t>(walk.bytes);
  chain.segment_count = arena.count - arena_start;
  return Fetch::kReady;
}

template Fetch PackedDevice::fetch_list<Access::kReadable>(Translator&, SegmentArena&, Chain&,
                                                           std::uint16_t);
template Fetch PackedDevice::fetch_list<Access::kWritable>(Translator&, SegmentArena&, Chain&,
                                                           std::uint16_t);

void PackedDevice::publish(const Used* elements, std::uint32_t count) {
  std::uint32_t slots = 0;
  for (std::uint32_t i = 0; i < count; ++i) slots += elements[i].slots;
  PackedPosition place = used_;
  place.advance(slots, ring_.size);
  const PackedPosition end = place;
  for (std::uint32_t i = count; i-- > 0;) {
    const Used& element = elements[i];
    place.retreat(element.slots, ring_.size);
    // 2.8.3: in a used descriptor WRITE says that bytes were written.
    const auto flags =
        static_cast<std::uint16_t>(place.used_flags() | (element.length != 0 ? kDescWrite : 0));
    publish_descriptor(ring_.descriptors[place.offset], element.length, element.id, flags);
  }
  used_ = end;
  outstanding_ -= slots;
  unsignalled_ += slots;
}

bool PackedDevice::wants_event() {
  // Full fence: our stores of used descriptors before the load of the driver's wish. The driver
  // does the reverse (stores the wish, then looks for used descriptors); without both fences each
  // can miss the other, and a sleeping guest is never woken (2.8.10).
  full_fence();
  const EventSuppression wish = load_event_suppression(*ring_.driver_events);
  const std::uint32_t slots = std::exchange(unsignalled_, 0);
  const bool first = std::exchange(never_signalled_, false);
  if (wish.flags == kEventsAtDescriptor && features_.event_index && first) return true;
  return wants_packed_event(wish, features_.event_index, slots < ring_.size ? slots : ring_.size,
                            used_, ring_.size);
}

std::uint32_t PackedDevice::backlog(const PackedRing& ring, std::uint16_t position) {
  PackedPosition place = PackedPosition::from_raw(position);
  std::uint32_t chains = 0;
  for (std::uint32_t i = 0; i < ring.size; ++i) {
    const std::uint16_t flags = load_relaxed(ring.descriptors[place.offset].flags);
    if (!is_available(flags, place.wrap)) break;
    if ((flags & kDescNext) == 0) ++chains;
    place.advance(1, ring.size);
  }
  return chains;
}

}  // namespace vswitch::virtq
