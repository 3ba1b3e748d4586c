#include "dataplane/virtq/split_device.h"

#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "dataplane/virtq/indirect_table.h"

namespace vswitch::virtq {
// The general walk: several descriptors, an indirect table, anything that is wrong. Bounded by the
// queue size: 2.7.5.3.1 forbids chains longer than that, so a longer one is a loop or a lie.
template <Access access>
Fetch SplitDevice::fetch_chain(Translator& translator, SegmentArena& arena, Chain& chain,
                               Descriptor descriptor) {
  const auto arena_start = static_cast<std::uint32_t>(chain.segments - arena.data);
  arena.count = arena_start;
  const std::uint32_t walked_before = walked_;
  const auto refuse = [&](DropReason reason) {
    refused_ += walked_ - walked_before;
    arena.count = arena_start;
    chain.reason = reason;
    return Fetch::kBadChain;
  };
  constexpr std::uint16_t kWanted = access == Access::kWritable ? kDescWrite : 0;
  std::uint64_t bytes = 0;
  std::uint32_t walked = 0;
  std::optional<IndirectTableView<Descriptor>> table;

  while (true) {
    if ((descriptor.flags & kDescIndirect) != 0) {
      // 2.7.5.3.1: only if negotiated, never inside a table, never with NEXT. Its WRITE flag says
      // nothing (2.7.5.3.2).
      const bool allowed =
          features_.indirect && !table.has_value() && (descriptor.flags & kDescNext) == 0;
      if (allowed) table = IndirectTableView<Descriptor>::at(descriptor.address, descriptor.length);
      if (!allowed || !table) return refuse(DropReason::kBadIndirectTable);
      const std::optional<Descriptor> entry = table->load(translator, 0);
      if (!entry) return refuse(DropReason::kUnmappedAddress);
      descriptor = *entry;
      continue;
    }
    ++walked_;
    if (++walked > ring_.size) return refuse(DropReason::kDescriptorLoop);
    if ((descriptor.flags & kDescWrite) != kWanted) return refuse(DropReason::kWrongDirection);
    switch (translator.append(descriptor.address, descriptor.length, arena)) {
      case Translator::Result::kOk:
        break;
      case Translator::Result::kUnmapped:
        return refuse(DropReason::kUnmappedAddress);
      case Translator::Result::kArenaFull:
        return refuse(DropReason::kTooFragmented);
    }
    bytes += descriptor.length;
    if ((descriptor.flags & kDescNext) == 0) break;
    if (table) {
      if (descriptor.next >= table->entries()) return refuse(DropReason::kDescriptorIndex);
      const std::optional<Descriptor> entry = table->load(translator, descriptor.next);
      if (!entry) return refuse(DropReason::kUnmappedAddress);
      descriptor = *entry;
    } else {
      if (descriptor.next >= ring_.size) return refuse(DropReason::kDescriptorIndex);
      descriptor = load_descriptor(ring_.descriptors[descriptor.next]);
    }
  }
  // 2.7.5.2: a chain of 2^32 bytes or more is forbidden.
  if (bytes > std::numeric_limits<std::uint32_t>::max()) return refuse(DropReason::kDescriptorLoop);
  chain.bytes = static_cast<std::uint32_t>(bytes);
  chain.segment_count = arena.count - arena_start;
  return Fetch::kReady;
}

template Fetch SplitDevice::fetch_chain<Access::kReadable>(Translator&, SegmentArena&, Chain&,
                                                           Descriptor);
template Fetch SplitDevice::fetch_chain<Access::kWritable>(Translator&, SegmentArena&, Chain&,
                                                           Descriptor);

void SplitDevice::publish(const Used* elements, std::uint32_t count) {
  UsedElement* const ring = ring_.used_elements();
  const std::uint32_t start = used_ & mask_;
  const std::uint32_t until_end = ring_.size - start;
  const std::uint32_t first = count < until_end ? count : until_end;
  std::memcpy(ring + start, elements, first * sizeof(UsedElement));
  if (count > first) std::memcpy(ring, elements + first, (count - first) * sizeof(UsedElement));
  used_ = static_cast<std::uint16_t>(used_ + count);
  // Release (2.7.8.2): the elements, and the frame bytes of a receive queue, before the index.
  store_release(ring_.used->index, used_);
}

bool SplitDevice::wants_event() {
  // Full fence: our store of the used index before the load of the driver's wish. The driver does
  // the reverse (stores the wish, then loads the index); without both fences each can miss the
  // other, and a sleeping guest is never woken (2.7.7.2).
  full_fence();
  const std::uint16_t since = signalled_;
  const bool first = std::exchange(never_signalled_, false);
  signalled_ = used_;
  if (!features_.event_index) return (load_relaxed(ring_.avail->flags) & kAvailNoInterrupt) == 0;
  return first || need_event(load_relaxed(ring_.used_event()), since, used_);
}

void SplitDevice::suppress_kicks() {
  store_relaxed(ring_.used->flags, kUsedNoNotify);
  // 2.7.10.1: with event indices the flag means nothing. A place just passed is next reached after
  // 65,536 chains.
  if (features_.event_index) {
    store_relaxed(ring_.avail_event(), static_cast<std::uint16_t>(next_ - 1));
  }
}

}  // namespace vswitch::virtq
