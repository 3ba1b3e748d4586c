#include "dataplane/guest_memory/guest_memory.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "dataplane/os/peer_fd.h"

namespace vswitch {
namespace {

bool wraps(std::uint64_t start, std::uint64_t size) {
  return size > std::numeric_limits<std::uint64_t>::max() - start;
}

bool overlap(std::uint64_t a, std::uint64_t b, std::uint64_t size_a, std::uint64_t size_b) {
  return a < b + size_b && b < a + size_a;
}

// Page size that mappings of the file are made of; an error for files of other kinds.
absl::StatusOr<std::uint64_t> mapping_page_size(int file) {
  // Asks no file system: those of user space may take as long as they like.
  if (!is_memory_file(file)) {
    return absl::InvalidArgumentError(
        "the file behind a memory region is neither memfd, tmpfs nor hugetlbfs");
  }
  struct statfs file_system {};
  if (fstatfs(file, &file_system) != 0) return absl::ErrnoToStatus(errno, "fstatfs");
  switch (static_cast<std::uint64_t>(file_system.f_type)) {
    case HUGETLBFS_MAGIC:
      return static_cast<std::uint64_t>(file_system.f_bsize);
    case TMPFS_MAGIC:
      return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    default:
      return absl::InvalidArgumentError(
          "the file behind a memory region is neither memfd, tmpfs nor hugetlbfs");
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const GuestMemory>> GuestMemory::map(
    std::vector<RegionDescription> descriptions) {
  std::shared_ptr<GuestMemory> memory(new GuestMemory);
  std::uint64_t total = 0;
  for (const RegionDescription& description : descriptions) {
    if (description.size > kMaxBytes - total) {
      return absl::InvalidArgumentError("the memory regions are larger than 4 TiB in all");
    }
    total += description.size;
  }
  for (const RegionDescription& description : descriptions) {
    if (absl::Status status = memory->add(description); !status.ok()) return status;
  }
  return memory;
}

absl::Status GuestMemory::add(const RegionDescription& d) {
  if (d.size == 0) return absl::InvalidArgumentError("a memory region is empty");
  if (wraps(d.guest_address, d.size) || wraps(d.user_address, d.size) ||
      wraps(d.file_offset, d.size)) {
    return absl::InvalidArgumentError("a memory region wraps around the end of the address space");
  }
  for (const Region& other : regions_) {
    if (overlap(d.guest_address, other.guest_address, d.size, other.size) ||
        overlap(d.user_address, other.user_address, d.size, other.size)) {
      return absl::InvalidArgumentError("two memory regions overlap");
    }
  }
  const absl::StatusOr<std::uint64_t> page_size = mapping_page_size(d.file.get());
  if (!page_size.ok()) return page_size.status();
  struct stat file {};
  if (fstat(d.file.get(), &file) != 0) return absl::ErrnoToStatus(errno, "fstat");
  if (d.file_offset + d.size > static_cast<std::uint64_t>(file.st_size)) {
    return absl::InvalidArgumentError(absl::StrCat("a memory region ends at byte ",
                                                   d.file_offset + d.size, " of a file of ",
                                                   file.st_size, " bytes"));
  }
  // mmap takes whole pages of the file's own page size.
  const std::uint64_t start = d.file_offset / *page_size * *page_size;
  const std::uint64_t end = (d.file_offset + d.size + *page_size - 1) / *page_size * *page_size;
  Mapping mapping{.length = end - start};
  mapping.base = mmap(nullptr, mapping.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      d.file.get(), static_cast<off_t>(start));
  if (mapping.base == MAP_FAILED) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot map ", d.size, " bytes of guest memory"));
  }
  // Not in core dumps: it is the guest's, and large.
  madvise(mapping.base, mapping.length, MADV_DONTDUMP);
  mapping.protection = protect_mapping(mapping.base, mapping.length);
  mappings_.push_back(mapping);
  regions_.push_back({d.guest_address, d.size, d.user_address,
                      static_cast<std::byte*>(mapping.base) + (d.file_offset - start)});
  return absl::OkStatus();
}

GuestMemory::~GuestMemory() {
  for (const Mapping& mapping : mappings_) {
    unprotect_mapping(mapping.protection);
    munmap(mapping.base, mapping.length);
  }
}

std::uint64_t GuestMemory::total_bytes() const {
  std::uint64_t total = 0;
  for (const Region& region : regions_) total += region.size;
  return total;
}

std::byte* GuestMemory::at_user_address(std::uint64_t user_address, std::uint64_t length) const {
  for (const Region& region : regions_) {
    const std::uint64_t offset = user_address - region.user_address;
    if (offset < region.size && length <= region.size - offset) return region.host + offset;
  }
  return nullptr;
}

bool GuestMemory::vanished() const {
  return std::any_of(mappings_.begin(), mappings_.end(), [](const Mapping& mapping) {
    return mapping.protection->vanished.load(std::memory_order_acquire);
  });
}

Translator::Result Translator::append_slow(std::uint64_t address, std::uint32_t length,
                                           SegmentArena& arena) {
  if (length == 0) return Result::kOk;
  if (wraps(address, length)) return Result::kUnmapped;
  while (length != 0) {
    const Region* region = memory_->find(address);
    if (region == nullptr) return Result::kUnmapped;
    if (arena.full()) return Result::kArenaFull;
    hit_ = *region;
    const std::uint64_t offset = address - region->guest_address;
    const auto piece =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(length, region->size - offset));
    arena.data[arena.count++] = {region->host + offset, piece};
    address += piece;
    length -= piece;
  }
  return Result::kOk;
}

}  // namespace vswitch
