#include "dataplane/virtq/split_device.h"

#include <cstring>
#include <limits>
#include <optional>

namespace vswitch::virtq {
namespace {

// An indirect table (2.7.5.3), read entry by entry. It may have any address and lie across regions.
class IndirectTable {
 public:
  IndirectTable(std::uint64_t address, std::uint32_t bytes)
      : address_(address), entries_(static_cast<std::uint32_t>(bytes / sizeof(Descriptor))) {}

  std::uint32_t entries() const { return entries_; }

  // A private copy of entry `index` (below entries()); nothing where it is not mapped.
  std::optional<Descriptor> load(Translator& translator, std::uint32_t index) const {
    Segment pieces[sizeof(Descriptor)];
    SegmentArena arena{pieces, 0, sizeof(Descriptor)};
    if (translator.append(address_ + index * sizeof(Descriptor), sizeof(Descriptor), arena) !=
        Translator::Result::kOk) {
      return std::nullopt;
    }
    if (arena.count == 1 &&
        reinterpret_cast<std::uintptr_t>(pieces[0].data) % alignof(Descriptor) == 0) {
      return load_descriptor(*reinterpret_cast<const Descriptor*>(pieces[0].data));
    }
    // Odd address or crossing regions: byte by byte, each loaded once.
    std::byte copy[sizeof(Descriptor)];
    std::size_t copied = 0;
    for (std::uint32_t piece = 0; piece < arena.count; ++piece) {
      for (std::uint32_t i = 0; i < pieces[piece].length; ++i) {
        copy[copied++] = load_relaxed(pieces[piece].data[i]);
      }
    }
    Descriptor descriptor;
    std::memcpy(&descriptor, copy, sizeof(descriptor));
    return descriptor;
  }

 private:
  std::uint64_t address_;
  std::uint32_t entries_;
};

}  // namespace

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
  std::optional<IndirectTable> table;

  while (true) {
    if ((descriptor.flags & kDescIndirect) != 0) {
      // 2.7.5.3.1: only if negotiated, never inside a table, never with NEXT. Its WRITE flag says
      // nothing (2.7.5.3.2).
      if (!indirect_ || table.has_value() || (descriptor.flags & kDescNext) != 0 ||
          descriptor.length == 0 || descriptor.length % sizeof(Descriptor) != 0 ||
          descriptor.length > std::numeric_limits<std::uint64_t>::max() - descriptor.address) {
        return refuse(DropReason::kBadIndirectTable);
      }
      table.emplace(descriptor.address, descriptor.length);
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

void SplitDevice::publish(const UsedElement* elements, std::uint32_t count) {
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

bool SplitDevice::wants_event() const {
  // Full fence: our store of the used index before the load of the suppression flag. The driver
  // does the reverse (stores the flag, then loads the index); without both fences each can miss the
  // other, and a sleeping guest is never woken (2.7.7.2).
  full_fence();
  return (load_relaxed(ring_.avail->flags) & kAvailNoInterrupt) == 0;
}

}  // namespace vswitch::virtq
