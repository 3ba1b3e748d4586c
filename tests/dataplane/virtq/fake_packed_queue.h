// A packed queue written by hand in a FakeGuest's memory, with the functions of FakeQueue.
//
// Laid out as virtio 1.2 draws it, in literal offsets and never through our structs:
//   2.8.13 slot i at ring + 16 i: le64 addr @0, le32 len @8, le16 id @12, le16 flags @14
//   2.8.14 event suppression: le16 off:15, wrap:1 @0; le16 flags @2
#pragma once

#include <cstdint>
#include <deque>
#include <stdexcept>
#include <vector>

#include "dataplane/virtq/packed_layout.h"
#include "tests/dataplane/virtq/fake_guest.h"

namespace vswitch::testing {

// 2.8.13: VIRTQ_DESC_F_AVAIL and _USED.
inline constexpr std::uint16_t kAvailBit = 1u << 7;
inline constexpr std::uint16_t kUsedBit = 1u << 15;

// Descriptors are described in a table of the guest's own, as if the queue were split; offer()
// writes the chain that begins at a head into the ring, slot after slot, with the head as its id.
// For one thread, the guest's. Used chains come back in ring order, as our device returns them.
class FakePackedQueue {
 public:
  // `position`: slots that went by since the ring was set up, and what used_index() begins with.
  FakePackedQueue(const FakeGuest& guest, std::uint64_t base, std::uint32_t size,
                  std::uint16_t position = 0)
      : guest_(guest),
        size_(size),
        base_(base),
        start_(position),
        offered_(position),
        free_(size),
        table_(size),
        used_(0x10000),
        used_index_(position) {
    next_ = used_next_ = {position % size, (position / size) % 2 == 0};
    // Used in this round or the one before.
    for (std::uint32_t i = 0; i < size; ++i) {
      const bool wrap = i < next_.offset ? next_.wrap : !next_.wrap;
      put_slot(i, 0, 0, 0, wrap ? kAvailBit | kUsedBit : 0);
    }
    suppress_events(false);
    guest_.put32(device_events(), 0);
  }

  std::uint64_t place(std::uint32_t slot) const { return base_ + 16ull * slot; }
  std::uint64_t driver_events() const { return base_ + 16ull * size_; }
  std::uint64_t device_events() const { return driver_events() + 4; }
  std::uint32_t size() const { return size_; }
  // On the wire: offset in bits 0-14, wrap counter in bit 15.
  std::uint16_t device_start() const {
    return static_cast<std::uint16_t>(start_ % size_ | (start_ / size_ % 2 == 0 ? 0x8000 : 0));
  }
  // Of the next slot to be made available.
  std::uint16_t offered_raw() const {
    return static_cast<std::uint16_t>(next_.offset | (next_.wrap ? 0x8000 : 0));
  }

  virtq::PackedRing ring() const {
    return {reinterpret_cast<virtq::PackedDescriptor*>(guest_.at(base_)),
            reinterpret_cast<virtq::EventSuppression*>(guest_.at(driver_events())),
            reinterpret_cast<virtq::EventSuppression*>(guest_.at(device_events())), size_};
  }

  void describe(std::uint32_t index, std::uint64_t address, std::uint32_t length,
                std::uint16_t flags = 0, std::uint16_t next = 0) {
    table_[index] = {address, length, flags, next};
  }
  // One slot of the ring, its flags last.
  void put_slot(std::uint32_t slot, std::uint64_t address, std::uint32_t length, std::uint16_t id,
                std::uint16_t flags) const {
    guest_.put64(place(slot), address);
    guest_.put32(place(slot) + 8, length);
    guest_.put16(place(slot) + 12, id);
    show_slot(slot, flags);
  }
  void show_slot(std::uint32_t slot, std::uint16_t flags) const {
    __atomic_store_n(reinterpret_cast<std::uint16_t*>(guest_.at(place(slot) + 14)), flags,
                     __ATOMIC_RELEASE);
  }
  std::uint16_t slot_flags(std::uint32_t slot) const {
    return __atomic_load_n(reinterpret_cast<std::uint16_t*>(guest_.at(place(slot) + 14)),
                           __ATOMIC_ACQUIRE);
  }

  // Writes a chain into the ring without showing it, shows what was put. 2.8.21.1: the flags of the
  // first slot last, chain by chain in ring order.
  void put_head(std::uint16_t head) {
    std::uint32_t slots = 0;
    std::uint16_t index = head;
    while (true) {
      const Entry& entry = table_.at(index);
      if (slots == free_) used_index();
      if (slots == free_) throw std::logic_error("the ring is full");
      const auto flags =
          static_cast<std::uint16_t>(entry.flags | (next_.wrap ? kAvailBit : kUsedBit));
      if (slots == 0) {
        guest_.put64(place(next_.offset), entry.address);
        guest_.put32(place(next_.offset) + 8, entry.length);
        guest_.put16(place(next_.offset) + 12, head);
        hidden_.push_back({next_.offset, flags});
      } else {
        put_slot(next_.offset, entry.address, entry.length, head, flags);
      }
      ++slots;
      next_.advance(1, size_);
      if ((entry.flags & kNextFlag) == 0) break;
      index = entry.next;
    }
    free_ -= slots;
    outstanding_.push_back(slots);
    ++offered_;
  }
  void show() {
    for (const Hidden& first : hidden_) show_slot(first.slot, first.flags);
    hidden_.clear();
  }
  void offer(std::uint16_t head) {
    put_head(head);
    show();
  }
  std::uint16_t offered() const { return offered_; }

  // 2.8.14: disabled, or enabled; with VIRTIO_F_EVENT_IDX at the slot `raw` names.
  void suppress_events(bool suppress) const {
    guest_.put32(driver_events(), suppress ? 0x10000 : 0);
  }
  void event_at(std::uint16_t raw) const { guest_.put32(driver_events(), 0x20000u | raw); }
  // At the next used chain that was not seen yet.
  void event_at_next_used() const {
    event_at(static_cast<std::uint16_t>(used_next_.offset | (used_next_.wrap ? 0x8000 : 0)));
  }

  // How many chains came back, since the ring was set up; looks for more.
  std::uint16_t used_index() {
    while (!outstanding_.empty()) {
      const std::uint16_t flags = slot_flags(used_next_.offset);
      const bool used = (flags & kUsedBit) != 0;
      if (((flags & kAvailBit) != 0) != used || used != used_next_.wrap) break;
      const std::uint32_t length = guest_.get32(place(used_next_.offset) + 8);
      used_[used_index_++] = {guest_.get16(place(used_next_.offset) + 12), length};
      // 2.8.3: WRITE, and the two counters; nothing else is ever set.
      if ((flags & ~(kAvailBit | kUsedBit)) != (length != 0 ? kWriteFlag : 0)) ++wrong_flags_;
      used_next_.advance(outstanding_.front(), size_);
      free_ += outstanding_.front();
      outstanding_.pop_front();
    }
    return used_index_;
  }
  // Used descriptors whose flags are not as they must be.
  std::uint32_t wrong_flags() const { return wrong_flags_; }
  Used used(std::uint16_t index) const { return used_[index]; }
  std::vector<Used> used_since(std::uint16_t first) {
    std::vector<Used> elements;
    for (std::uint16_t i = first; i != used_index(); ++i) elements.push_back(used(i));
    return elements;
  }

 private:
  struct Entry {
    std::uint64_t address = 0;
    std::uint32_t length = 0;
    std::uint16_t flags = 0;
    std::uint16_t next = 0;
  };
  struct Hidden {
    std::uint32_t slot;
    std::uint16_t flags;
  };
  // 2.8.1: both wrap counters are 1 in the first round.
  struct Position {
    std::uint32_t offset = 0;
    bool wrap = true;
    void advance(std::uint32_t slots, std::uint32_t size) {
      offset += slots;
      if (offset < size) return;
      offset -= size;
      wrap = !wrap;
    }
  };

  const FakeGuest& guest_;
  std::uint32_t size_;
  std::uint64_t base_;
  std::uint16_t start_;
  std::uint16_t offered_;
  std::uint32_t free_;  // slots
  Position next_;
  Position used_next_;
  std::vector<Entry> table_;
  std::vector<Hidden> hidden_;
  std::deque<std::uint32_t> outstanding_;  // slots of each chain in the ring
  std::vector<Used> used_;                 // by used index
  std::uint16_t used_index_;
  std::uint32_t wrong_flags_ = 0;
};

}  // namespace vswitch::testing
