// What a device must make of a ring: an independent reading of virtio 1.2, one byte of guest memory
// after the other, for both layouts. It says whether a chain is good, not why it is bad.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "dataplane/virtq/packed_device.h"
#include "dataplane/virtq/split_device.h"
#include "tests/fuzz/guest.h"

namespace vswitch::fuzz {

struct Range {
  std::uint64_t address;
  std::uint32_t length;
};

struct ModelChain {
  enum class State { kNone, kLost, kBad, kGood };
  State state = State::kNone;  // kNone: nothing available here; kLost: no telling where it ends
  std::uint16_t id = 0;
  std::uint32_t slots = 1;  // how far the position moves
  std::uint64_t bytes = 0;
  std::uint32_t pieces = 0;  // contiguous in the host, of a good chain
  bool indirect = false;
  std::vector<Range> buffers;
  std::vector<Range> tables;

  bool good() const { return state == State::kGood; }
};

// The fields both layouts have.
struct ModelDescriptor {
  std::uint64_t address;
  std::uint32_t length;
  std::uint16_t flags;
};

// Adds one buffer to a chain; bad if the device may not use it so.
inline void add_buffer(ModelChain& chain, const ModelDescriptor& descriptor, bool writable) {
  if (chain.state == ModelChain::State::kBad) return;
  const auto pieces = Guest::pieces(descriptor.address, descriptor.length);
  if (((descriptor.flags & 2) != 0) != writable || !pieces) {
    chain.state = ModelChain::State::kBad;
    return;
  }
  chain.bytes += descriptor.length;
  chain.pieces += *pieces;
  if (descriptor.length != 0) chain.buffers.push_back({descriptor.address, descriptor.length});
}

inline bool is_table(std::uint64_t address, std::uint32_t length) {
  return length != 0 && length % 16 == 0 &&
         length <= std::numeric_limits<std::uint64_t>::max() - address;
}

// 2.7. Where: table, available ring, used ring, one behind the other.
class SplitModel {
 public:
  using End = virtq::SplitDevice;
  static constexpr bool kPacked = false;

  SplitModel(std::uint8_t size_choice, std::uint16_t position)
      : size_(1u << (size_choice % 9)),
        avail_(Guest::kRing + 16ull * size_),
        used_((avail_ + 6 + 2ull * size_ + 3) / 4 * 4) {
    Guest& guest = Guest::instance();
    const std::vector<std::uint8_t> zeros(used_ + 6 + 8ull * size_ - Guest::kRing);
    guest.write(Guest::kRing, zeros.data(), zeros.size());
    put16(avail_ + 2, position);
    put16(used_ + 2, position);
  }

  std::uint32_t size() const { return size_; }
  static std::uint16_t valid_position(std::uint16_t raw, std::uint32_t) { return raw; }
  virtq::SplitRing ring() const {
    const Guest& guest = Guest::instance();
    return {guest.host<virtq::Descriptor>(Guest::kRing, 16ull * size_),
            guest.host<virtq::RingHeader>(avail_, 6 + 2ull * size_),
            guest.host<virtq::RingHeader>(used_, 6 + 8ull * size_), size_};
  }

  // --- What the guest does.
  void describe(std::uint16_t index, std::uint64_t address, std::uint32_t length,
                std::uint16_t flags, std::uint16_t next) const {
    put_descriptor(Guest::kRing + 16ull * (index % size_), address, length, flags, next);
  }
  void put_descriptor(std::uint64_t place, std::uint64_t address, std::uint32_t length,
                      std::uint16_t flags, std::uint16_t next) const {
    Guest& guest = Guest::instance();
    guest.write(place, &address, 8);
    guest.write(place + 8, &length, 4);
    guest.write(place + 12, &flags, 2);
    guest.write(place + 14, &next, 2);
  }
  // Offers a chain of one descriptor. Slots are used in turn.
  void offer(std::uint64_t address, std::uint32_t length, std::uint16_t flags, std::uint16_t) {
    const std::uint16_t index = get16(avail_ + 2);
    describe(index, address, length, flags, static_cast<std::uint16_t>(index + 1));
    offer_head(static_cast<std::uint16_t>(index % size_));
  }
  void offer_head(std::uint16_t head) {
    const std::uint16_t index = get16(avail_ + 2);
    put16(avail_ + 4 + 2ull * (index % size_), head);
    put16(avail_ + 2, static_cast<std::uint16_t>(index + 1));
  }
  void set_index(std::uint16_t index) { put16(avail_ + 2, index); }
  void set_wish(std::uint16_t event, std::uint16_t flags) {
    put16(avail_, flags);
    put16(avail_ + 4 + 2ull * size_, event);
  }
  void resume(std::uint16_t) {}

  // --- What the device must make of it, as of `image`.
  ModelChain walk(const Guest::Image& image, std::uint16_t position, std::uint32_t, bool writable,
                  bool indirect_allowed) const {
    ModelChain chain;
    const std::uint16_t head = get16(image, avail_ + 4 + 2ull * (position % size_));
    chain.id = head;
    if (head >= size_) {
      chain.state = ModelChain::State::kLost;
      return chain;
    }
    chain.state = ModelChain::State::kGood;
    std::uint64_t table = Guest::kRing;
    std::uint32_t entries = size_;
    std::uint32_t index = head;
    std::uint32_t length = 0;
    while (chain.good()) {
      std::uint8_t raw[16];
      if (index >= entries || !Guest::pieces(table + 16ull * index, 16)) break;
      Guest::read(image, table + 16ull * index, raw, 16);
      ModelDescriptor descriptor;
      std::uint16_t next;
      std::memcpy(&descriptor.address, raw, 8);
      std::memcpy(&descriptor.length, raw + 8, 4);
      std::memcpy(&descriptor.flags, raw + 12, 2);
      std::memcpy(&next, raw + 14, 2);
      if ((descriptor.flags & 4) != 0) {
        if (!indirect_allowed || chain.indirect || (descriptor.flags & 1) != 0 ||
            !is_table(descriptor.address, descriptor.length)) {
          break;
        }
        chain.indirect = true;
        chain.tables.push_back({descriptor.address, descriptor.length});
        table = descriptor.address;
        entries = descriptor.length / 16;
        index = 0;
        continue;
      }
      if (++length > size_) break;
      add_buffer(chain, descriptor, writable);
      if ((descriptor.flags & 1) == 0) return chain;
      index = next;
    }
    chain.state = ModelChain::State::kBad;
    return chain;
  }
  std::uint16_t advance(std::uint16_t position, const ModelChain&) const {
    return static_cast<std::uint16_t>(position + 1);
  }
  // Whether the guest has made something available behind `position`.
  bool empty(const Guest::Image& image, std::uint16_t position) const {
    return get16(image, avail_ + 2) == position;
  }
  bool jumped(const Guest::Image& image, std::uint16_t position) const {
    return static_cast<std::uint16_t>(get16(image, avail_ + 2) - position) > size_;
  }

  // Whether the guest has changed, since `earlier`, an entry that it had made available by then. A
  // device may have loaded it in the meantime, or load it now.
  bool took_back(const Guest::Image& earlier, const Guest::Image& image,
                 std::uint16_t position) const {
    for (const std::uint16_t end = get16(earlier, avail_ + 2); position != end; ++position) {
      const std::uint64_t place = avail_ + 4 + 2ull * (position % size_);
      if (get16(earlier, place) != get16(image, place)) return true;
    }
    return false;
  }

  // The used element that returned the chain at `position`.
  std::uint32_t used_length(const Guest::Image& image, std::uint16_t position) const {
    std::uint32_t length;
    Guest::read(image, used_ + 4 + 8ull * (position % size_) + 4, &length, 4);
    return length;
  }
  // Writes into `image` what returns it.
  void put_used(Guest::Image& image, std::uint16_t position, const ModelChain& chain,
                std::uint32_t length) const {
    const std::uint32_t id = chain.id;
    put(image, used_ + 4 + 8ull * (position % size_), &id, 4);
    put(image, used_ + 4 + 8ull * (position % size_) + 4, &length, 4);
    const auto index = static_cast<std::uint16_t>(position + 1);
    put(image, used_ + 2, &index, 2);
  }
  // Whether a guest with event indices is to be told that the position moved on from `since`.
  bool passed_event(const Guest::Image& image, std::uint16_t since, std::uint16_t position,
                    std::uint64_t) const {
    const std::uint16_t event = get16(image, avail_ + 4 + 2ull * size_);
    return static_cast<std::uint16_t>(event - since) < static_cast<std::uint16_t>(position - since);
  }
  bool wish_enabled(const Guest::Image& image) const { return (get16(image, avail_) & 1) == 0; }
  bool wish_is_event(const Guest::Image&) const { return true; }

 protected:
  static std::uint16_t get16(const Guest::Image& image, std::uint64_t place) {
    std::uint16_t value;
    Guest::read(image, place, &value, 2);
    return value;
  }
  static std::uint16_t get16(std::uint64_t place) {
    return get16(Guest::instance().image(), place);
  }
  static void put16(std::uint64_t place, std::uint16_t value) {
    Guest::instance().write(place, &value, 2);
  }
  static void put(Guest::Image& image, std::uint64_t place, const void* bytes, std::size_t count) {
    std::memcpy(image.data() + *Guest::place(place), bytes, count);  // within the ring's region
  }

 private:
  std::uint32_t size_;
  std::uint64_t avail_;
  std::uint64_t used_;
};

// 2.8. Where: descriptors, the driver's event suppression, the device's.
class PackedModel {
 public:
  using End = virtq::PackedDevice;
  static constexpr bool kPacked = true;

  PackedModel(std::uint8_t size_choice, std::uint16_t position)
      : size_(kSizes[size_choice % kSizes.size()]),
        guest_position_(valid_position(position, size_)) {
    // Nothing is available in a ring whose used flags are those of the round before.
    for (std::uint32_t i = 0; i < size_; ++i) {
      const bool next_round = i < (guest_position_ & 0x7fffu);
      const bool wrap = ((guest_position_ & 0x8000) != 0) != !next_round;
      put_descriptor(Guest::kRing + 16ull * i, 0, 0, wrap ? 0x8080 : 0, 0);
    }
    const std::uint64_t zeros = 0;
    Guest::instance().write(Guest::kRing + 16ull * size_, &zeros, 8);
  }

  std::uint32_t size() const { return size_; }
  static std::uint16_t valid_position(std::uint16_t raw, std::uint32_t size) {
    return static_cast<std::uint16_t>((raw & 0x8000) | ((raw & 0x7fff) % size));
  }
  virtq::PackedRing ring() const {
    const Guest& guest = Guest::instance();
    return {guest.host<virtq::PackedDescriptor>(Guest::kRing, 16ull * size_),
            guest.host<virtq::EventSuppression>(Guest::kRing + 16ull * size_, 4),
            guest.host<virtq::EventSuppression>(Guest::kRing + 16ull * size_ + 4, 4), size_};
  }

  // --- What the guest does.
  // Raw flags, id last.
  void describe(std::uint16_t index, std::uint64_t address, std::uint32_t length,
                std::uint16_t flags, std::uint16_t id) const {
    put_descriptor(Guest::kRing + 16ull * (index % size_), address, length, flags, id);
  }
  void put_descriptor(std::uint64_t place, std::uint64_t address, std::uint32_t length,
                      std::uint16_t flags, std::uint16_t id) const {
    Guest& guest = Guest::instance();
    guest.write(place, &address, 8);
    guest.write(place + 8, &length, 4);
    guest.write(place + 12, &id, 2);
    guest.write(place + 14, &flags, 2);
  }
  // The next descriptor of the ring, made available; with NEXT a list goes on behind it.
  void offer(std::uint64_t address, std::uint32_t length, std::uint16_t flags, std::uint16_t id) {
    const bool wrap = (guest_position_ & 0x8000) != 0;
    describe(guest_position_ & 0x7fff, address, length,
             static_cast<std::uint16_t>((flags & 0x7f7f) | (wrap ? 0x80 : 0x8000)), id);
    guest_position_ = step(guest_position_, 1);
  }
  void offer_head(std::uint16_t raw) { guest_position_ = valid_position(raw, size_); }
  void set_index(std::uint16_t raw) { offer_head(raw); }
  void set_wish(std::uint16_t event, std::uint16_t flags) {
    Guest::instance().write(Guest::kRing + 16ull * size_, &event, 2);
    Guest::instance().write(Guest::kRing + 16ull * size_ + 2, &flags, 2);
  }
  // The guest goes on where the device stands.
  void resume(std::uint16_t position) { guest_position_ = position; }

  // --- What the device must make of it. `taken`: slots in front of it that are not returned yet.
  ModelChain walk(const Guest::Image& image, std::uint16_t position, std::uint32_t taken,
                  bool writable, bool indirect_allowed) const {
    ModelChain chain;
    if (taken == size_) return chain;
    const bool wrap = (position & 0x8000) != 0;
    std::uint32_t index = position & 0x7fff;
    chain.slots = 0;
    while (true) {
      std::uint8_t raw[16];
      Guest::read(image, Guest::kRing + 16ull * index, raw, 16);
      ModelDescriptor descriptor;
      std::memcpy(&descriptor.address, raw, 8);
      std::memcpy(&descriptor.length, raw + 8, 4);
      std::memcpy(&chain.id, raw + 12, 2);
      std::memcpy(&descriptor.flags, raw + 14, 2);
      if (chain.slots == 0) {
        const bool avail = (descriptor.flags & 0x80) != 0;
        const bool used = (descriptor.flags & 0x8000) != 0;
        if (avail != wrap || used == wrap) return ModelChain{};
        chain.state = ModelChain::State::kGood;
      }
      ++chain.slots;
      const bool last = (descriptor.flags & 1) == 0;
      if ((descriptor.flags & 4) == 0) {
        add_buffer(chain, descriptor, writable);
      } else if (chain.slots != 1 || !last || !indirect_allowed ||
                 !is_table(descriptor.address, descriptor.length) ||
                 descriptor.length / 16 > size_) {
        chain.state = ModelChain::State::kBad;
      } else {
        add_table(image, chain, descriptor, writable);
      }
      if (last) return chain;
      if (chain.slots + taken == size_) {
        chain.state = ModelChain::State::kLost;
        return chain;
      }
      index = (index + 1) % size_;
    }
  }
  std::uint16_t advance(std::uint16_t position, const ModelChain& chain) const {
    return step(position, chain.slots);
  }
  bool empty(const Guest::Image& image, std::uint16_t position) const {
    return walk(image, position, 0, false, false).state == ModelChain::State::kNone;
  }
  static bool jumped(const Guest::Image&, std::uint16_t) { return false; }
  // Nothing is loaded ahead.
  static bool took_back(const Guest::Image&, const Guest::Image&, std::uint16_t) { return false; }

  std::uint32_t used_length(const Guest::Image& image, std::uint16_t position) const {
    std::uint32_t length;
    Guest::read(image, Guest::kRing + 16ull * (position & 0x7fff) + 8, &length, 4);
    return length;
  }
  void put_used(Guest::Image& image, std::uint16_t position, const ModelChain& chain,
                std::uint32_t length) const {
    const auto flags =
        static_cast<std::uint16_t>(((position & 0x8000) != 0 ? 0x8080 : 0) | (length != 0 ? 2 : 0));
    const std::size_t place = *Guest::place(Guest::kRing + 16ull * (position & 0x7fff));
    std::memcpy(image.data() + place + 8, &length, 4);
    std::memcpy(image.data() + place + 12, &chain.id, 2);
    std::memcpy(image.data() + place + 14, &flags, 2);
  }
  // `slots`: all that were returned since. An offset beyond the ring means nothing.
  bool passed_event(const Guest::Image& image, std::uint16_t, std::uint16_t position,
                    std::uint64_t slots) const {
    const std::uint16_t event = wish(image, 0);
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(slots, size_); ++i) {
      position = step_back(position);
      if (position == event) return true;
    }
    return false;
  }
  // 2.8.14: only two bits of the flags mean something.
  bool wish_enabled(const Guest::Image& image) const { return (wish(image, 2) & 3) != 1; }
  bool wish_is_event(const Guest::Image& image) const { return (wish(image, 2) & 3) == 2; }
  // What a guest gets that asks for a place outside the ring is not defined.
  bool wish_is_odd(const Guest::Image& image) const { return (wish(image, 0) & 0x7fffu) >= size_; }

 private:
  static constexpr std::array<std::uint16_t, 13> kSizes = {1,  2,  3,  5,   7,   8, 16,
                                                           31, 64, 97, 255, 256, 33};

  std::uint16_t wish(const Guest::Image& image, std::uint32_t offset) const {
    std::uint16_t value;
    Guest::read(image, Guest::kRing + 16ull * size_ + offset, &value, 2);
    return value;
  }
  std::uint16_t step(std::uint16_t position, std::uint32_t slots) const {
    for (std::uint32_t i = 0; i < slots; ++i) {
      const std::uint32_t next = (position & 0x7fffu) + 1;
      position = static_cast<std::uint16_t>(next == size_ ? (position & 0x8000) ^ 0x8000
                                                          : (position & 0x8000) | next);
    }
    return position;
  }
  std::uint16_t step_back(std::uint16_t position) const {
    const std::uint32_t offset = position & 0x7fffu;
    return static_cast<std::uint16_t>(offset == 0 ? ((position & 0x8000u) ^ 0x8000u) | (size_ - 1)
                                                  : position - 1);
  }
  void add_table(const Guest::Image& image, ModelChain& chain, const ModelDescriptor& descriptor,
                 bool writable) const {
    chain.indirect = true;
    chain.tables.push_back({descriptor.address, descriptor.length});
    for (std::uint32_t i = 0; i < descriptor.length / 16 && chain.good(); ++i) {
      const std::uint64_t place = descriptor.address + 16ull * i;
      if (!Guest::pieces(place, 16)) {
        chain.state = ModelChain::State::kBad;
        return;
      }
      std::uint8_t raw[16];
      Guest::read(image, place, raw, 16);
      ModelDescriptor entry;
      std::memcpy(&entry.address, raw, 8);
      std::memcpy(&entry.length, raw + 8, 4);
      std::memcpy(&entry.flags, raw + 14, 2);
      add_buffer(chain, entry, writable);
    }
  }

  std::uint32_t size_;
  std::uint16_t guest_position_;
};

// Buffers that overlap the ring or a table they are described in: the guest confuses itself, and
// what comes of it depends on the order of the bytes written.
inline bool overlaps_metadata(const std::vector<ModelChain>& chains) {
  std::array<std::uint8_t, Guest::kFileBytes> metadata{};
  for (const ModelChain& chain : chains) {
    for (const Range& table : chain.tables) {
      for (std::uint32_t i = 0; i < std::min(table.length, 0x4000u); ++i) {
        if (const auto place = Guest::place(table.address + i)) metadata[*place] = 1;
      }
    }
  }
  std::fill_n(metadata.begin() + Guest::kExtents[0].file_offset, Guest::kExtents[0].size,
              std::uint8_t{1});
  for (const ModelChain& chain : chains) {
    if (!chain.good()) continue;
    for (const Range& range : chain.buffers) {
      if (const auto whole = Guest::place(range.address, range.length)) {
        const auto* const first = metadata.data() + *whole;
        if (std::memchr(first, 1, range.length) != nullptr) return true;
        continue;
      }
      for (std::uint32_t i = 0; i < range.length; ++i) {
        if (metadata[*Guest::place(range.address + i)] != 0) return true;
      }
    }
  }
  return false;
}

}  // namespace vswitch::fuzz
