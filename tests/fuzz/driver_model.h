// The other side of a driver's ring: shared memory that any device may have written, what an
// honest one would write, and an independent account of what the driver must make of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dataplane/virtq/driver_queue.h"
#include "tests/fuzz/target.h"

namespace vswitch::fuzz {

// Memory of exactly so many bytes, zeroed, so that the address sanitizer sees the first one beyond.
class Block {
 public:
  Block(std::size_t bytes, std::size_t alignment) : bytes_(bytes) {
    void* memory = nullptr;
    FUZZ_CHECK(posix_memalign(&memory, alignment < 8 ? 8 : alignment, bytes) == 0);
    std::memset(memory, 0, bytes);
    memory_.reset(static_cast<std::uint8_t*>(memory));
  }
  std::uint8_t* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }

  template <typename T>
  T get(std::size_t offset) const {
    FUZZ_CHECK(offset + sizeof(T) <= bytes_);
    T value;
    std::memcpy(&value, memory_.get() + offset, sizeof(T));
    return value;
  }
  template <typename T>
  void put(std::size_t offset, T value) const {
    FUZZ_CHECK(offset + sizeof(T) <= bytes_);
    std::memcpy(memory_.get() + offset, &value, sizeof(T));
  }

 private:
  struct Free {
    void operator()(std::uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::uint8_t, Free> memory_;
  std::size_t bytes_;
};

struct ModelSegment {
  std::uint64_t address;
  std::uint32_t length;
  bool writable;
  bool operator==(const ModelSegment&) const = default;
};

// A chain as the driver made it available.
struct PostedChain {
  std::uint16_t id = 0;
  std::uint16_t descriptors = 0;
  bool indirect = false;
  std::vector<ModelSegment> segments;
  std::uint32_t buffer = 0;
  bool returned = false;  // by the honest device

  std::uint32_t writable() const {
    std::uint32_t bytes = 0;
    for (const ModelSegment& segment : segments) bytes += segment.writable ? segment.length : 0;
    return bytes;
  }
};

// One chain that the driver must have taken back.
struct ReturnedChain {
  PostedChain chain;
  std::uint32_t length = 0;  // not more than was writable
  bool capped = false;
  bool skipped = false;  // covered by a later one (VIRTIO_F_IN_ORDER)
  bool out_of_order = false;
};

// What is in flight, oldest first; shared by both layouts.
class InFlight {
 public:
  const std::deque<PostedChain>& chains() const { return chains_; }
  void add(PostedChain chain) {
    FUZZ_CHECK(!find(chain.id));  // an id is in flight once at a time
    chains_.push_back(std::move(chain));
  }
  std::optional<std::size_t> find(std::uint32_t id) const {
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      if (chains_[i].id == id) return i;
    }
    return std::nullopt;
  }
  PostedChain* unreturned(std::size_t ahead) {
    for (PostedChain& chain : chains_) {
      if (!chain.returned && ahead-- == 0) return &chain;
    }
    return nullptr;
  }
  std::size_t unreturned_count() const {
    std::size_t count = 0;
    for (const PostedChain& chain : chains_) count += chain.returned ? 0 : 1;
    return count;
  }
  std::uint32_t descriptors() const {
    std::uint32_t count = 0;
    for (const PostedChain& chain : chains_) count += chain.descriptors;
    return count;
  }

  // The device named `id` (which is in flight) with `length`: what is to be handed out for it.
  void name(std::uint32_t id, std::uint32_t length, bool in_order) {
    const std::size_t index = *find(id);
    for (std::size_t i = in_order ? 0 : index; i < index; ++i) {
      batch_.push_back({chains_[i].id, 0, true});
    }
    batch_.push_back({static_cast<std::uint16_t>(id), length, false});
  }
  bool batch_open() const { return !batch_.empty(); }
  ReturnedChain hand_out() {
    const Named named = batch_.front();
    batch_.pop_front();
    const std::size_t index = *find(named.id);
    ReturnedChain returned{chains_[index], 0, false, named.skipped, index != 0};
    const std::uint32_t writable = returned.chain.writable();
    returned.capped = !named.skipped && named.length > writable;
    returned.length = named.skipped || returned.capped ? writable : named.length;
    chains_.erase(chains_.begin() + static_cast<std::ptrdiff_t>(index));
    return returned;
  }
  // All that is in flight is offered again.
  void resume() {
    batch_.clear();
    for (PostedChain& chain : chains_) chain.returned = false;
  }

 private:
  struct Named {
    std::uint16_t id;
    std::uint32_t length;
    bool skipped;
  };
  std::deque<PostedChain> chains_;
  std::deque<Named> batch_;
};

// What one look at the ring found.
enum class Look { kNothing, kRefused, kBroken, kNamed };

// 2.7.
class SplitWire {
 public:
  using Ring = virtq::SplitDriver;
  static constexpr bool kPacked = false;

  SplitWire(std::uint8_t size_choice, virtq::RingFeatures features, const Block& tables)
      : features_(features),
        size_(1u << (size_choice % 9)),
        table_(16ull * size_, 16),
        avail_(6 + 2ull * size_, 2),
        used_(6 + 8ull * size_, 4),
        tables_(tables) {}

  std::uint32_t size() const { return size_; }
  std::unique_ptr<Ring> make_ring() const {
    return std::make_unique<Ring>(
        virtq::SplitRing{reinterpret_cast<virtq::Descriptor*>(table_.data()),
                         reinterpret_cast<virtq::RingHeader*>(avail_.data()),
                         reinterpret_cast<virtq::RingHeader*>(used_.data()), size_},
        features_);
  }
  InFlight& in_flight() { return in_flight_; }

  // --- What the driver did: the `count` chains that it must have made available just now.
  std::vector<PostedChain> collect_posted(std::size_t count) {
    std::vector<PostedChain> posted;
    if (count == 0) return posted;  // the device may have written the index
    const auto index = avail_.get<std::uint16_t>(2);
    FUZZ_CHECK(static_cast<std::uint16_t>(index - avail_index_) == count);
    for (; avail_index_ != index; ++avail_index_) {
      PostedChain chain;
      chain.id = avail_.get<std::uint16_t>(4 + 2ull * (avail_index_ % size_));
      FUZZ_CHECK(chain.id < size_);
      std::uint32_t place = chain.id;
      std::uint16_t flags;
      do {
        FUZZ_CHECK(place < size_ && chain.descriptors < size_);
        flags = table_.get<std::uint16_t>(16ull * place + 12);
        ++chain.descriptors;
        if ((flags & 4) != 0) {
          FUZZ_CHECK(flags == 4 && chain.descriptors == 1);
          read_table(chain, table_.get<std::uint64_t>(16ull * place),
                     table_.get<std::uint32_t>(16ull * place + 8));
        } else {
          chain.segments.push_back({table_.get<std::uint64_t>(16ull * place),
                                    table_.get<std::uint32_t>(16ull * place + 8),
                                    (flags & 2) != 0});
        }
        place = table_.get<std::uint16_t>(16ull * place + 14);
      } while ((flags & 1) != 0);
      posted.push_back(std::move(chain));
    }
    return posted;
  }
  // After the driver's resume(): everything in flight, once and in order. The ring may hold what
  // the device wrote over its descriptors, so only the heads are compared.
  void check_resumed(std::uint16_t base) {
    FUZZ_CHECK(base == used_.get<std::uint16_t>(2));
    used_index_ = base;
    avail_index_ = base;
    notified_ = base;
    in_flight_.resume();
    for (const PostedChain& chain : in_flight_.chains()) {
      FUZZ_CHECK(avail_.get<std::uint16_t>(4 + 2ull * (avail_index_ % size_)) == chain.id);
      ++avail_index_;
    }
    FUZZ_CHECK(avail_.get<std::uint16_t>(2) == avail_index_);
  }

  // --- What a device does. Where the ring can be written at all:
  std::uint8_t* memory(std::uint16_t where) const {
    const std::size_t offset = where & 0x3fff;
    switch (where >> 14) {
      case 0:
        return table_.data() + offset % table_.size();
      case 1:
        return avail_.data() + offset % avail_.size();
      default:
        return used_.data() + offset % used_.size();
    }
  }
  void put_used(std::uint32_t id, std::uint32_t length, bool, std::uint32_t entries) {
    const auto index = used_.get<std::uint16_t>(2);
    used_.put<std::uint32_t>(4 + 8ull * (index % size_), id);
    used_.put<std::uint32_t>(4 + 8ull * (index % size_) + 4, length);
    used_.put<std::uint16_t>(2, static_cast<std::uint16_t>(index + entries));
  }
  static std::uint32_t entries_of(const PostedChain&) { return 1; }
  void set_index(std::uint16_t index) { used_.put<std::uint16_t>(2, index); }
  void set_wish(std::uint16_t event, std::uint16_t flags) {
    used_.put<std::uint16_t>(0, flags);
    used_.put<std::uint16_t>(4 + 8ull * size_, event);
  }

  // --- What the driver must make of the next used element.
  Look look() {
    const auto pending = static_cast<std::uint16_t>(used_.get<std::uint16_t>(2) - used_index_);
    if (pending > size_) return Look::kBroken;
    if (pending == 0) return Look::kNothing;
    const auto id = used_.get<std::uint32_t>(4 + 8ull * (used_index_ % size_));
    const auto length = used_.get<std::uint32_t>(4 + 8ull * (used_index_ % size_) + 4);
    const auto index = in_flight_.find(id);
    if (!index) {
      ++used_index_;
      return Look::kRefused;
    }
    const std::size_t batch = features_.in_order ? *index + 1 : 1;
    used_index_ = static_cast<std::uint16_t>(used_index_ + std::min<std::size_t>(batch, pending));
    in_flight_.name(id, length, features_.in_order);
    return Look::kNamed;
  }

  bool wish_is_event() const { return features_.event_index; }
  bool wish_enabled() const { return (used_.get<std::uint16_t>(0) & 1) == 0; }
  static bool wish_is_odd() { return false; }
  // Whether a device with event indices wants a kick; looks at what was exposed since the last
  // time.
  bool passed_event() {
    const auto event = used_.get<std::uint16_t>(4 + 8ull * size_);
    const bool passed = static_cast<std::uint16_t>(event - notified_) <
                        static_cast<std::uint16_t>(avail_index_ - notified_);
    notified_ = avail_index_;
    return passed;
  }

 private:
  void read_table(PostedChain& chain, std::uint64_t address, std::uint32_t bytes) const {
    chain.indirect = true;
    std::uint16_t flags = 1;
    for (std::uint32_t i = 0; i < bytes / 16; ++i) {
      FUZZ_CHECK((flags & 1) != 0);
      const std::size_t place = static_cast<std::size_t>(address) + 16ull * i;
      flags = tables_.get<std::uint16_t>(place + 12);
      FUZZ_CHECK((flags & 1) == 0 || tables_.get<std::uint16_t>(place + 14) == i + 1);
      chain.segments.push_back({tables_.get<std::uint64_t>(place),
                                tables_.get<std::uint32_t>(place + 8), (flags & 2) != 0});
    }
    FUZZ_CHECK((flags & 1) == 0);
  }

  virtq::RingFeatures features_;
  std::uint32_t size_;
  Block table_;
  Block avail_;
  Block used_;
  const Block& tables_;
  InFlight in_flight_;
  std::uint16_t avail_index_ = 0;
  std::uint16_t used_index_ = 0;
  std::uint16_t notified_ = 0;
};

// 2.8.
class PackedWire {
 public:
  using Ring = virtq::PackedDriver;
  static constexpr bool kPacked = true;

  PackedWire(std::uint8_t size_choice, virtq::RingFeatures features, const Block& tables)
      : features_(features),
        size_(kSizes[size_choice % kSizes.size()]),
        ring_(16ull * size_, 16),
        driver_events_(4, 4),
        device_events_(4, 4),
        tables_(tables) {}

  std::uint32_t size() const { return size_; }
  std::unique_ptr<Ring> make_ring() const {
    return std::make_unique<Ring>(
        virtq::PackedRing{reinterpret_cast<virtq::PackedDescriptor*>(ring_.data()),
                          reinterpret_cast<virtq::EventSuppression*>(driver_events_.data()),
                          reinterpret_cast<virtq::EventSuppression*>(device_events_.data()), size_},
        features_);
  }
  InFlight& in_flight() { return in_flight_; }

  std::vector<PostedChain> collect_posted(std::size_t count) {
    std::vector<PostedChain> posted;
    std::uint32_t slots = 0;
    while (posted.size() < count) {
      PostedChain chain;
      std::uint16_t flags;
      do {
        FUZZ_CHECK(slots + in_flight_.descriptors() < size_);
        const std::size_t place = 16ull * next_.offset;
        flags = ring_.get<std::uint16_t>(place + 14);
        FUZZ_CHECK(available(next_));
        ++chain.descriptors;
        if ((flags & 4) != 0) {
          FUZZ_CHECK((flags & 3) == 0 && chain.descriptors == 1);
          read_table(chain, ring_.get<std::uint64_t>(place), ring_.get<std::uint32_t>(place + 8));
        } else {
          chain.segments.push_back({ring_.get<std::uint64_t>(place),
                                    ring_.get<std::uint32_t>(place + 8), (flags & 2) != 0});
        }
        chain.id = ring_.get<std::uint16_t>(place + 12);
        step(next_, 1);
        ++slots;
      } while ((flags & 1) != 0);
      FUZZ_CHECK(chain.id < size_);
      posted.push_back(std::move(chain));
    }
    unannounced_ += slots;
    return posted;
  }
  void check_resumed(std::uint16_t base) {
    FUZZ_CHECK(base == 0x8000);
    next_ = {};
    device_ = {};
    used_ = {};
    unannounced_ = 0;
    in_flight_.resume();
    const std::deque<PostedChain> before = in_flight_.chains();
    in_flight_ = InFlight();
    const std::vector<PostedChain> posted = collect_posted(before.size());
    FUZZ_CHECK(posted.size() == before.size());
    for (std::size_t i = 0; i < posted.size(); ++i) {
      FUZZ_CHECK(posted[i].id == before[i].id && posted[i].descriptors == before[i].descriptors);
      FUZZ_CHECK(posted[i].indirect == before[i].indirect);
      // An indirect table is left as it was, and the device may have written it.
      FUZZ_CHECK(posted[i].indirect || posted[i].segments == before[i].segments);
      in_flight_.add(before[i]);
    }
  }

  std::uint8_t* memory(std::uint16_t where) const {
    switch (where >> 14) {
      case 2:
        return driver_events_.data() + where % 4;
      case 3:
        return device_events_.data() + where % 4;
      default:
        return ring_.data() + where % ring_.size();
    }
  }
  void put_used(std::uint32_t id, std::uint32_t length, bool written, std::uint32_t slots) {
    const std::size_t place = 16ull * device_.offset;
    ring_.put<std::uint32_t>(place + 8, length);
    ring_.put<std::uint16_t>(place + 12, static_cast<std::uint16_t>(id));
    ring_.put<std::uint16_t>(
        place + 14, static_cast<std::uint16_t>((device_.wrap ? 0x8080 : 0) | (written ? 2 : 0)));
    step(device_, slots % (size_ + 1));
  }
  static std::uint32_t entries_of(const PostedChain& chain) { return chain.descriptors; }
  // The device goes on somewhere else.
  void set_index(std::uint16_t raw) {
    device_ = {static_cast<std::uint16_t>((raw & 0x7fff) % size_), (raw & 0x8000) != 0};
  }
  void set_wish(std::uint16_t event, std::uint16_t flags) {
    device_events_.put<std::uint16_t>(0, event);
    device_events_.put<std::uint16_t>(2, flags);
  }

  Look look() {
    const std::size_t place = 16ull * used_.offset;
    const auto flags = ring_.get<std::uint16_t>(place + 14);
    const bool avail = (flags & 0x80) != 0;
    const bool used = (flags & 0x8000) != 0;
    if (avail != used_.wrap || used != used_.wrap) return Look::kNothing;
    const auto id = ring_.get<std::uint16_t>(place + 12);
    const auto index = in_flight_.find(id);
    if (!index) return Look::kBroken;
    std::uint32_t slots = 0;
    for (std::size_t i = features_.in_order ? 0 : *index; i <= *index; ++i) {
      slots += in_flight_.chains()[i].descriptors;
    }
    step(used_, slots);
    in_flight_.name(id, (flags & 2) != 0 ? ring_.get<std::uint32_t>(place + 8) : 0,
                    features_.in_order);
    return Look::kNamed;
  }

  bool wish_is_event() const {
    return features_.event_index && (device_events_.get<std::uint16_t>(2) & 3) == 2;
  }
  // Nothing is remembered for later where the wish is not an event index.
  bool wish_enabled() {
    unannounced_ = 0;
    return (device_events_.get<std::uint16_t>(2) & 3) != 1;
  }
  bool wish_is_odd() const { return (device_events_.get<std::uint16_t>(0) & 0x7fffu) >= size_; }
  bool passed_event() {
    const auto event = device_events_.get<std::uint16_t>(0);
    bool passed = false;
    Position position = next_;
    for (std::uint32_t i = 0; i < std::min(unannounced_, size_); ++i) {
      if (position.offset == 0) position = {static_cast<std::uint16_t>(size_), !position.wrap};
      --position.offset;
      passed = passed || event == (position.offset | (position.wrap ? 0x8000 : 0));
    }
    unannounced_ = 0;
    return passed;
  }

 private:
  static constexpr std::array<std::uint16_t, 13> kSizes = {1,  2,  3,  5,   7,   8, 16,
                                                           31, 64, 97, 255, 256, 33};
  struct Position {
    std::uint16_t offset = 0;
    bool wrap = true;
  };

  bool available(const Position& position) const {
    const auto flags = ring_.get<std::uint16_t>(16ull * position.offset + 14);
    return ((flags & 0x80) != 0) == position.wrap && ((flags & 0x8000) != 0) != position.wrap;
  }
  void step(Position& position, std::uint32_t slots) const {
    for (std::uint32_t i = 0; i < slots; ++i) {
      if (++position.offset == size_) position = {0, !position.wrap};
    }
  }
  void read_table(PostedChain& chain, std::uint64_t address, std::uint32_t bytes) const {
    chain.indirect = true;
    for (std::uint32_t i = 0; i < bytes / 16; ++i) {
      const std::size_t place = static_cast<std::size_t>(address) + 16ull * i;
      chain.segments.push_back({tables_.get<std::uint64_t>(place),
                                tables_.get<std::uint32_t>(place + 8),
                                (tables_.get<std::uint16_t>(place + 14) & 2) != 0});
    }
  }

  virtq::RingFeatures features_;
  std::uint32_t size_;
  Block ring_;
  Block driver_events_;
  Block device_events_;
  const Block& tables_;
  InFlight in_flight_;
  Position next_;    // the driver's next descriptor
  Position device_;  // where the device writes its next used one
  Position used_;    // where the driver looks for it
  std::uint32_t unannounced_ = 0;
};

}  // namespace vswitch::fuzz
