// A guest for the device's ring end: memory of its own and descriptors written by hand.
//
// Everything is laid out as virtio 1.2 draws it, in literal offsets and never through our structs:
//   2.7.5 descriptor i at table + 16 i: le64 addr @0, le32 len @8, le16 flags @12, le16 next @14
//   2.7.6 available ring: le16 flags @0, le16 idx @2, le16 ring[i] @4 + 2 i
//   2.7.8 used ring: le16 flags @0, le16 idx @2, {le32 id, le32 len} @4 + 8 i
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dataplane/guest_memory/guest_memory.h"
#include "dataplane/virtq/split_layout.h"

namespace vswitch::testing {

// 2.7.5: VIRTQ_DESC_F_NEXT, _WRITE, _INDIRECT.
inline constexpr std::uint16_t kNextFlag = 1;
inline constexpr std::uint16_t kWriteFlag = 2;
inline constexpr std::uint16_t kIndirectFlag = 4;

using Bytes = std::vector<std::uint8_t>;

// The guest's memory: each region a memfd of its own, mapped by GuestMemory and looked at through
// that same mapping, so that ThreadSanitizer sees both sides at one address.
class FakeGuest {
 public:
  struct Extent {
    std::uint64_t guest_address;
    std::uint64_t size;
  };
  // Front-end (user) addresses are the guest's plus this.
  static constexpr std::uint64_t kUserOffset = 0x7f0000000000;

  explicit FakeGuest(std::vector<Extent> extents) : extents_(std::move(extents)) {
    std::vector<RegionDescription> descriptions;
    for (const Extent& extent : extents_) {
      UniqueFd file(memfd_create("guest", MFD_CLOEXEC));
      if (ftruncate(file.get(), static_cast<off_t>(extent.size)) != 0) {
        throw std::runtime_error("ftruncate");
      }
      descriptions.push_back({extent.guest_address, extent.size, extent.guest_address + kUserOffset,
                              0, std::move(file)});
    }
    memory_ = GuestMemory::map(std::move(descriptions)).value();
  }

  const std::shared_ptr<const GuestMemory>& memory() const { return memory_; }

  std::uint8_t* at(std::uint64_t guest_address) const {
    for (std::size_t i = 0; i < extents_.size(); ++i) {
      const std::uint64_t offset = guest_address - extents_[i].guest_address;
      if (offset < extents_[i].size) {
        return reinterpret_cast<std::uint8_t*>(memory_->regions()[i].host) + offset;
      }
    }
    throw std::out_of_range("no guest memory there");
  }

  // Byte by byte, because the range may lie across regions.
  void write(std::uint64_t guest_address, const Bytes& bytes) const {
    for (const std::uint8_t byte : bytes) *at(guest_address++) = byte;
  }
  Bytes read(std::uint64_t guest_address, std::size_t count) const {
    Bytes bytes(count);
    for (std::uint8_t& byte : bytes) byte = *at(guest_address++);
    return bytes;
  }
  void fill(std::uint64_t guest_address, std::size_t count, std::uint8_t byte) const {
    std::memset(at(guest_address), byte, count);
  }

  // One little-endian integer, one atomic store (hosts are little-endian, places aligned).
  void put16(std::uint64_t place, std::uint16_t value) const {
    __atomic_store_n(reinterpret_cast<std::uint16_t*>(at(place)), value, __ATOMIC_RELAXED);
  }
  void put32(std::uint64_t place, std::uint32_t value) const {
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(at(place)), value, __ATOMIC_RELAXED);
  }
  void put64(std::uint64_t place, std::uint64_t value) const {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(at(place)), value, __ATOMIC_RELAXED);
  }
  std::uint16_t get16(std::uint64_t place) const {
    return __atomic_load_n(reinterpret_cast<std::uint16_t*>(at(place)), __ATOMIC_RELAXED);
  }
  std::uint32_t get32(std::uint64_t place) const {
    return __atomic_load_n(reinterpret_cast<std::uint32_t*>(at(place)), __ATOMIC_RELAXED);
  }

  // One 16-byte descriptor at any address: of the table, or of an indirect one.
  void put_descriptor(std::uint64_t place, std::uint64_t address, std::uint32_t length,
                      std::uint16_t flags, std::uint16_t next) const {
    Bytes bytes;
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(address >> (8 * i)));
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::uint8_t>(length >> (8 * i)));
    for (int i = 0; i < 2; ++i) bytes.push_back(static_cast<std::uint8_t>(flags >> (8 * i)));
    for (int i = 0; i < 2; ++i) bytes.push_back(static_cast<std::uint8_t>(next >> (8 * i)));
    write(place, bytes);
  }

 private:
  std::vector<Extent> extents_;
  std::shared_ptr<const GuestMemory> memory_;
};

struct Used {
  std::uint32_t id;
  std::uint32_t length;
  bool operator==(const Used&) const = default;
};
inline void PrintTo(const Used& used, std::ostream* out) {
  *out << "{id " << used.id << ", len " << used.length << "}";
}

// One split queue in the guest's memory: table, available ring and used ring one after the other.
class FakeQueue {
 public:
  FakeQueue(const FakeGuest& guest, std::uint64_t base, std::uint32_t size,
            std::uint16_t position = 0)
      : guest_(guest),
        size_(size),
        table_(base),
        avail_(base + 16ull * size),
        used_((avail_ + 6 + 2ull * size + 3) / 4 * 4),
        start_(position),
        offered_(position) {
    guest_.put16(avail_ + 2, position);
    guest_.put16(used_ + 2, position);
  }

  std::uint64_t table() const { return table_; }
  std::uint64_t avail() const { return avail_; }
  std::uint64_t used_ring() const { return used_; }
  std::uint32_t size() const { return size_; }
  std::uint16_t device_start() const { return start_; }

  virtq::SplitRing ring() const {
    return {reinterpret_cast<virtq::Descriptor*>(guest_.at(table_)),
            reinterpret_cast<virtq::RingHeader*>(guest_.at(avail_)),
            reinterpret_cast<virtq::RingHeader*>(guest_.at(used_)), size_};
  }

  void describe(std::uint32_t index, std::uint64_t address, std::uint32_t length,
                std::uint16_t flags = 0, std::uint16_t next = 0) const {
    guest_.put_descriptor(table_ + 16ull * index, address, length, flags, next);
  }

  // Puts a head into the available ring without showing it, shows what was put.
  void put_head(std::uint16_t head) {
    guest_.put16(avail_ + 4 + 2ull * (offered_ % size_), head);
    ++offered_;
  }
  void show() const {
    __atomic_store_n(reinterpret_cast<std::uint16_t*>(guest_.at(avail_ + 2)), offered_,
                     __ATOMIC_RELEASE);
  }
  void offer(std::uint16_t head) {
    put_head(head);
    show();
  }
  std::uint16_t offered() const { return offered_; }
  void set_avail_index(std::uint16_t index) const { guest_.put16(avail_ + 2, index); }
  // 2.7.7.1: VIRTQ_AVAIL_F_NO_INTERRUPT; with VIRTIO_F_EVENT_IDX used_event, behind ring[size].
  void suppress_events(bool suppress) const { guest_.put16(avail_, suppress ? 1 : 0); }
  void event_at(std::uint16_t used_index) const {
    guest_.put16(avail_ + 4 + 2ull * size_, used_index);
  }

  std::uint16_t used_index() const {
    return __atomic_load_n(reinterpret_cast<std::uint16_t*>(guest_.at(used_ + 2)),
                           __ATOMIC_ACQUIRE);
  }
  std::uint16_t used_flags() const { return guest_.get16(used_); }
  // The element that was the `index`th to be used (a free-running 16-bit index). Plain loads: the
  // acquire of the used index orders them.
  Used used(std::uint16_t index) const {
    const std::uint8_t* place = guest_.at(used_ + 4 + 8ull * (index % size_));
    Used element;
    std::memcpy(&element.id, place, 4);
    std::memcpy(&element.length, place + 4, 4);
    return element;
  }
  std::vector<Used> used_since(std::uint16_t first) const {
    std::vector<Used> elements;
    for (std::uint16_t i = first; i != used_index(); ++i) elements.push_back(used(i));
    return elements;
  }

 private:
  const FakeGuest& guest_;
  std::uint32_t size_;
  std::uint64_t table_;
  std::uint64_t avail_;
  std::uint64_t used_;
  std::uint16_t start_;
  std::uint16_t offered_;
};

}  // namespace vswitch::testing
