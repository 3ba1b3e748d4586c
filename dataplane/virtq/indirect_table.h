// An indirect descriptor table, read entry by entry.
//
// Source: virtio 1.2, 2.7.5.3 (split) and 2.8.7 (packed). The table may have any address and lie
// across regions. `DescriptorType` is the layout's descriptor, for which load_descriptor() exists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "dataplane/guest_memory/guest_memory.h"
#include "dataplane/virtq/ring_access.h"

namespace vswitch::virtq {

template <typename DescriptorType>
class IndirectTableView {
 public:
  static constexpr std::uint32_t kEntryBytes = sizeof(DescriptorType);

  // Nothing unless the range is a table: whole entries, at least one, that do not wrap around the
  // end of the address space.
  static std::optional<IndirectTableView> at(std::uint64_t address, std::uint32_t bytes) {
    if (bytes == 0 || bytes % kEntryBytes != 0 ||
        bytes > std::numeric_limits<std::uint64_t>::max() - address) {
      return std::nullopt;
    }
    return IndirectTableView(address, bytes / kEntryBytes);
  }

  std::uint32_t entries() const { return entries_; }

  // A private copy of entry `index` (below entries()); nothing where it is not mapped.
  std::optional<DescriptorType> load(Translator& translator, std::uint32_t index) const {
    Segment pieces[kEntryBytes];
    SegmentArena arena{pieces, 0, kEntryBytes};
    if (translator.append(address_ + std::uint64_t{index} * kEntryBytes, kEntryBytes, arena) !=
        Translator::Result::kOk) {
      return std::nullopt;
    }
    if (arena.count == 1 &&
        reinterpret_cast<std::uintptr_t>(pieces[0].data) % alignof(DescriptorType) == 0) {
      return load_descriptor(*reinterpret_cast<const DescriptorType*>(pieces[0].data));
    }
    // Odd address or crossing regions: byte by byte, each loaded once.
    std::byte copy[kEntryBytes];
    std::size_t copied = 0;
    for (std::uint32_t piece = 0; piece < arena.count; ++piece) {
      for (std::uint32_t i = 0; i < pieces[piece].length; ++i) {
        copy[copied++] = load_relaxed(pieces[piece].data[i]);
      }
    }
    DescriptorType descriptor;
    std::memcpy(&descriptor, copy, sizeof(descriptor));
    return descriptor;
  }

 private:
  IndirectTableView(std::uint64_t address, std::uint32_t entries)
      : address_(address), entries_(entries) {}

  std::uint64_t address_;
  std::uint32_t entries_;
};

}  // namespace vswitch::virtq
