// A small guest memory that is made once: a few regions, some adjoining, some with gaps, one at the
// end of the address space, in one file with slack around each of them.
//
// The scenarios look at the whole file through a mapping of their own, so that a byte that was
// written where nothing was offered shows, even beyond the regions.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dataplane/guest_memory/guest_memory.h"
#include "tests/fuzz/target.h"

namespace vswitch::fuzz {

class Guest {
 public:
  struct Extent {
    std::uint64_t guest_address;
    std::uint32_t size;
    std::uint32_t file_offset;
  };
  static constexpr std::size_t kFileBytes = 0xb000;
  using Image = std::array<std::uint8_t, kFileBytes>;

  static constexpr std::uint64_t kRing = 0x1000;  // the ring has a region for itself
  static constexpr std::array<Extent, 8> kExtents = {{
      {kRing, 0x2000, 0x0000},
      // Five that adjoin; the small ones lie across pages of the file.
      {0x10000, 0x800, 0x2000},
      {0x10800, 0x801, 0x3003},
      {0x11001, 3, 0x4ffe},
      {0x11004, 5, 0x6000},
      {0x11009, 0x400, 0x7000},
      {0x20000, 0x200, 0x8010},
      {0xfffffffffffff000, 0xfff, 0x9000},
  }};

  static Guest& instance() {
    static Guest guest;
    return guest;
  }

  const std::shared_ptr<const GuestMemory>& memory() const { return memory_; }
  Image& image() { return *image_; }

  // Everything as at first.
  void reset() { image_->fill(0x5c); }

  // Place in the file of one guest byte; nothing where no region is.
  static std::optional<std::size_t> place(std::uint64_t address) {
    for (const Extent& extent : kExtents) {
      if (address >= extent.guest_address && address - extent.guest_address < extent.size) {
        return extent.file_offset + (address - extent.guest_address);
      }
    }
    return std::nullopt;
  }
  // The same for a range that lies in one region.
  static std::optional<std::size_t> place(std::uint64_t address, std::size_t count) {
    const Extent* const extent = extent_of(address);
    if (extent == nullptr || count > extent->size - (address - extent->guest_address)) {
      return std::nullopt;
    }
    return extent->file_offset + (address - extent->guest_address);
  }
  // In how many pieces a range lies; nothing if a byte of it is in no region.
  static std::optional<std::uint32_t> pieces(std::uint64_t address, std::uint32_t length) {
    std::uint32_t count = 0;
    while (length != 0) {
      const Extent* const extent = extent_of(address);
      if (extent == nullptr) return std::nullopt;
      const std::uint64_t rest = extent->size - (address - extent->guest_address);
      ++count;
      if (rest >= length) break;
      address += rest;
      length -= static_cast<std::uint32_t>(rest);
    }
    return count;
  }

  // Bytes of no region are not written and read as 0.
  void write(std::uint64_t address, const void* bytes, std::size_t count) {
    const auto* const from = static_cast<const std::uint8_t*>(bytes);
    if (const auto whole = place(address, count)) {
      std::memcpy(image_->data() + *whole, from, count);
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (const auto to = place(address + i)) (*image_)[*to] = from[i];
    }
  }
  static void read(const Image& image, std::uint64_t address, void* bytes, std::size_t count) {
    auto* const to = static_cast<std::uint8_t*>(bytes);
    if (const auto whole = place(address, count)) {
      std::memcpy(to, image.data() + *whole, count);
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto from = place(address + i);
      to[i] = from ? image[*from] : std::uint8_t{0};
    }
  }

  // Host address as the engine sees it, for rings.
  template <typename T>
  T* host(std::uint64_t address, std::uint64_t bytes) const {
    std::byte* const found = memory_->at_user_address(address, bytes);
    FUZZ_CHECK(found != nullptr);
    return reinterpret_cast<T*>(found);
  }

 private:
  static const Extent* extent_of(std::uint64_t address) {
    for (const Extent& extent : kExtents) {
      if (address >= extent.guest_address && address - extent.guest_address < extent.size) {
        return &extent;
      }
    }
    return nullptr;
  }

  Guest() {
    const UniqueFd file(memfd_create("fuzz", MFD_CLOEXEC));
    FUZZ_CHECK(ftruncate(file.get(), kFileBytes) == 0);
    void* const base = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    FUZZ_CHECK(base != MAP_FAILED);
    image_ = static_cast<Image*>(base);
    std::vector<RegionDescription> descriptions;
    for (const Extent& extent : kExtents) {
      descriptions.push_back({extent.guest_address, extent.size, extent.guest_address,
                              extent.file_offset, UniqueFd(dup(file.get()))});
    }
    auto memory = GuestMemory::map(std::move(descriptions));
    FUZZ_CHECK(memory.ok());
    memory_ = *std::move(memory);
  }

  std::shared_ptr<const GuestMemory> memory_;
  Image* image_ = nullptr;
};

}  // namespace vswitch::fuzz
