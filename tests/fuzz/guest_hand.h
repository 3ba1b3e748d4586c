// What the guest does to its own memory between the polls of a device's queue.
#pragma once

#include <cstdint>
#include <optional>

#include "tests/fuzz/guest.h"
#include "tests/fuzz/target.h"

namespace vswitch::fuzz {

// The guest's hand: it fills descriptors, tables and memory with what the script says.
template <typename Model>
class GuestHand {
 public:
  // `receive`: whether its buffers should mostly be writable. All outlive this.
  GuestHand(Script& script, Guest& guest, std::optional<Model>& model, bool receive)
      : script_(script), guest_(guest), model_(model), receive_(receive) {}

  // Mostly in or near a region.
  std::uint64_t address() {
    const std::uint8_t kind = script_.u8();
    if (kind >= 0xf0) return script_.u64();
    return Guest::kExtents[kind % Guest::kExtents.size()].guest_address + script_.u16();
  }
  std::uint32_t length() {
    const std::uint16_t raw = script_.u16();
    return raw >= 0xf000 ? raw * 0x10001u : raw;
  }
  // Descriptor flags in the low bits, WRITE as seen from the right direction; all 16 where the top
  // bit is set.
  std::uint16_t flags() {
    const std::uint8_t low = script_.u8() ^ (receive_ ? 2 : 0);
    if ((low & 0x80) == 0) return low & 7;
    return static_cast<std::uint16_t>((low & 0x7f) | script_.u8() << 8);
  }

  // The same descriptor in several slots; each one's NEXT leads to the following.
  void describe() {
    const std::uint16_t index = script_.u16();
    const std::uint32_t count = 1 + script_.u8();
    const std::uint64_t where = address();
    const std::uint32_t bytes = length();
    const std::uint16_t how = flags();
    const std::uint16_t next = script_.u16();
    for (std::uint32_t i = 0; i < count; ++i) {
      model_->describe(static_cast<std::uint16_t>(index + i), where, bytes, how,
                       static_cast<std::uint16_t>(next + i));
    }
  }
  // Available descriptors, one behind the other in memory unless they are to be in the same place.
  void offer(std::uint8_t argument, bool same_place) {
    const std::uint32_t count = argument < 8 ? argument + 1u : 16u * (argument - 7);
    std::uint64_t where = address();
    const std::uint32_t bytes = length();
    const std::uint16_t how = flags();
    const std::uint16_t id = script_.u16();
    for (std::uint32_t i = 0; i < count; ++i) {
      model_->offer(where, bytes, how, static_cast<std::uint16_t>(id + i));
      if (!same_place) where += bytes;
    }
  }
  // Entries of an indirect table.
  void fill_table(std::uint8_t argument) {
    const std::uint64_t place = address();
    const std::uint64_t where = address();
    const std::uint32_t bytes = length();
    const std::uint16_t how = flags();
    const std::uint16_t next = script_.u16();
    const std::uint32_t count = argument < 8 ? argument + 1u : 16u * (argument - 7);
    for (std::uint32_t i = 0; i < count; ++i) {
      model_->put_descriptor(place + 16ull * i, where, bytes, how,
                             static_cast<std::uint16_t>(next + i));
    }
  }
  void scribble(std::uint64_t place) {
    const std::uint8_t count = script_.u8() % 64;
    for (std::uint8_t i = 0; i < count; ++i) {
      const std::uint8_t byte = script_.u8();
      guest_.write(place + i, &byte, 1);
    }
  }

 private:
  Script& script_;
  Guest& guest_;
  std::optional<Model>& model_;
  const bool receive_;
};

}  // namespace vswitch::fuzz
