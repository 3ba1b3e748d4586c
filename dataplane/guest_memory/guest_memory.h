// A guest's memory as its front-end described it, mapped into this process.
//
// A `GuestMemory` is immutable: a new table makes a new object, and the old one is unmapped when
// its last owner lets go (workers must not use it any more by then). Source: vhost-user.rst,
// "Memory regions description" and VHOST_USER_SET_MEM_TABLE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "dataplane/frame/segment.h"
#include "dataplane/guest_memory/memory_fault.h"
#include "dataplane/os/unique_fd.h"

namespace vswitch {

// One region as the front-end sends it. All in bytes.
struct RegionDescription {
  std::uint64_t guest_address = 0;  // guest-physical
  std::uint64_t size = 0;
  std::uint64_t user_address = 0;  // in the front-end's address space
  std::uint64_t file_offset = 0;
  UniqueFd file;
};

struct Region {
  std::uint64_t guest_address = 0;
  std::uint64_t size = 0;
  std::uint64_t user_address = 0;
  std::byte* host = nullptr;
};

class GuestMemory {
 public:
  // All regions of a guest together, in bytes. Address space is shared by all guests: 128 TiB.
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 40;

  // Maps all regions, or none. INVALID_ARGUMENT for an empty or wrapping region, regions that
  // overlap in guest or user addresses, more than kMaxBytes, a region beyond the end of its file,
  // or a file that is neither memfd/tmpfs nor hugetlbfs (anything else could block or fail in ways
  // no peer may cause).
  static absl::StatusOr<std::shared_ptr<const GuestMemory>> map(
      std::vector<RegionDescription> descriptions);

  GuestMemory(const GuestMemory&) = delete;
  GuestMemory& operator=(const GuestMemory&) = delete;
  ~GuestMemory();

  const std::vector<Region>& regions() const { return regions_; }
  std::uint64_t total_bytes() const;

  // Region that holds a guest-physical address; nullptr: none.
  const Region* find(std::uint64_t guest_address) const {
    for (const Region& region : regions_) {
      if (guest_address - region.guest_address < region.size) return &region;
    }
    return nullptr;
  }

  // Host address of `length` contiguous bytes at a front-end address; nullptr where they are not
  // within one region. Rings are addressed so.
  std::byte* at_user_address(std::uint64_t user_address, std::uint64_t length) const;

  // A peer took the memory away (see memory_fault.h).
  bool vanished() const;

 private:
  struct Mapping {
    void* base = nullptr;
    std::size_t length = 0;
    ProtectedMapping* protection = nullptr;
  };

  GuestMemory() = default;
  absl::Status add(const RegionDescription& description);

  std::vector<Region> regions_;
  std::vector<Mapping> mappings_;
};

// Translates guest-physical ranges for one queue; remembers the region of the last hit. Belongs to
// the thread that works on the queue.
class Translator {
 public:
  explicit Translator(const GuestMemory& memory) : memory_(&memory) {}

  enum class Result { kOk, kUnmapped, kArenaFull };

  // The region of the last hit; empty at first. A range within it needs no further look.
  const Region& recent() const { return hit_; }

  // Appends the host segments of [address, address + length): one, or several where the range
  // crosses regions that adjoin in guest addresses. Every byte is checked; zero bytes need no
  // address and give no segment. After a failure the arena may hold the pieces found before it.
  Result append(std::uint64_t address, std::uint32_t length, SegmentArena& arena) {
    const std::uint64_t offset = address - hit_.guest_address;
    if (offset < hit_.size && length <= hit_.size - offset && length != 0 && !arena.full())
        [[likely]] {
      arena.data[arena.count++] = {hit_.host + offset, length};
      return Result::kOk;
    }
    return append_slow(address, length, arena);
  }

 private:
  Result append_slow(std::uint64_t address, std::uint32_t length, SegmentArena& arena);

  const GuestMemory* memory_;
  Region hit_;
};

}  // namespace vswitch
