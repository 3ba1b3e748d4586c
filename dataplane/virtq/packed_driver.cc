#include "dataplane/virtq/packed_driver.h"

#include <algorithm>

namespace vswitch::virtq {

PackedDriver::PackedDriver(const PackedRing& ring, RingFeatures features)
    : ring_(ring), features_(features), chains_(ring.size), elements_(ring.size) {
  format();
}

void PackedDriver::format() {
  // 2.8.13: "zero-initialized", which is neither available nor used in the first round.
  for (std::uint32_t i = 0; i < ring_.size; ++i) {
    PackedDescriptor& shared = ring_.descriptors[i];
    store_relaxed(shared.address, std::uint64_t{0});
    store_relaxed(shared.length, std::uint32_t{0});
    store_relaxed(shared.id, std::uint16_t{0});
    store_relaxed(shared.flags, std::uint16_t{0});
  }
  store_event_suppression(*ring_.driver_events, {0, kEventsEnabled});
  store_event_suppression(*ring_.device_events, {0, kEventsEnabled});
  next_ = PackedPosition{};
  used_ = PackedPosition{};
  staged_ = 0;
  unannounced_ = 0;
}

std::optional<std::uint16_t> PackedDriver::post_list(std::span<const DriverSegment> chain) {
  if (chain.empty() || chain.size() > chains_.free()) return std::nullopt;
  const std::uint16_t id = chains_.take();
  std::uint16_t here = id;
  std::uint32_t writable = 0;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const DriverSegment& segment = chain[i];
    Element& element = elements_[here];
    element = {segment.address, segment.length, 0};
    if (segment.device_writable) {
      element.flags = kDescWrite;
      writable += segment.length;
    }
    if (i + 1 < chain.size()) {
      element.flags = static_cast<std::uint16_t>(element.flags | kDescNext);
      const std::uint16_t current = here;
      here = chains_.take();
      chains_.link(current, here);
    }
    // 2.8.6: only the last descriptor's id counts; the others may as well say the same.
    write(element, id);
  }
  chains_.add(id, {.order = posted_++,
                   .writable = writable,
                   .descriptors = static_cast<std::uint16_t>(chain.size())});
  return id;
}

std::optional<std::uint16_t> PackedDriver::post_indirect(const IndirectTable& table,
                                                         std::span<const DriverSegment> chain) {
  if (!features_.indirect || chain.empty() || chain.size() > size() || chains_.free() == 0) {
    return std::nullopt;
  }
  auto* entries = reinterpret_cast<PackedDescriptor*>(table.host);
  std::uint32_t writable = 0;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const DriverSegment& segment = chain[i];
    if (segment.device_writable) writable += segment.length;
    // 2.8.7: entries follow each other; WRITE is the only flag, and the id is reserved.
    store_if_different(entries[i].address, segment.address);
    store_if_different(entries[i].length, segment.length);
    store_if_different(entries[i].id, std::uint16_t{0});
    store_if_different(entries[i].flags, segment.device_writable ? kDescWrite : std::uint16_t{0});
  }
  const std::uint16_t id = chains_.take();
  elements_[id] = {table.guest_address,
                   static_cast<std::uint32_t>(indirect_table_bytes(chain.size())), kDescIndirect};
  write(elements_[id], id);
  chains_.add(id, {.order = posted_++, .writable = writable, .descriptors = 1});
  return id;
}

void PackedDriver::expose() {
  if (staged_ == 0) return;
  // 2.8.21.1.1: release orders all descriptors, indirect tables and the frames themselves before
  // the flags that reveal them.
  store_release(ring_.descriptors[staged_offset_].flags, staged_flags_);
  unannounced_ = std::min(unannounced_ + staged_, ring_.size);
  staged_ = 0;
}

// The list that the descriptor at `place` names, with the length it says. False if it is not used,
// or names none in flight (then the ring is broken).
[[gnu::always_inline]] inline bool PackedDriver::load_used(PackedPosition place, std::uint16_t& id,
                                                           std::uint32_t& length) {
  const PackedDescriptor& shared = ring_.descriptors[place.offset];
  // 2.8.22: acquire orders this load before those of id, length and the buffers' content.
  const std::uint16_t flags = load_acquire(shared.flags);
  if (!is_used(flags, place.wrap)) return false;
  id = load_relaxed(shared.id);
  // 2.8.4: without the flag nothing was written, and the length means nothing.
  length = (flags & kDescWrite) != 0 ? load_relaxed(shared.length) : 0;
  if (chains_.in_flight(id)) [[likely]] {
    return true;
  }
  ++counters_.bad_ids;
  broken_ = true;
  return false;
}

std::uint32_t PackedDriver::reap_each(std::span<UsedChain> out) {
  // Positions in registers: through memory each would wait for the one before.
  PackedPosition place = used_;
  const std::uint32_t size = ring_.size;
  std::uint32_t count = 0;
  std::uint16_t id = 0;
  std::uint32_t length = 0;
  while (count < out.size() && load_used(place, id, length)) {
    place.advance(chains_[id].descriptors, size);
    out[count++] = chains_.finish(id, length, counters_);
  }
  used_ = place;
  return count;
}

// 2.8.8: with VIRTIO_F_IN_ORDER a used descriptor stands where its batch begins and names the
// batch's last list.
std::uint32_t PackedDriver::reap_batches(std::span<UsedChain> out) {
  std::uint32_t count = 0;
  while (count < out.size()) {
    if (!batch_.open) {
      std::uint16_t last = 0;
      std::uint32_t length = 0;
      if (!load_used(used_, last, length)) break;
      batch_ = {last, length, true};
    }
    const std::uint16_t id = chains_.oldest();
    used_.advance(chains_[id].descriptors, ring_.size);
    if (id == batch_.last) {
      out[count++] = chains_.finish(id, batch_.length, counters_);
      batch_.open = false;
    } else {
      out[count++] = chains_.finish_skipped(id);
    }
  }
  return count;
}

std::uint32_t PackedDriver::reap(std::span<UsedChain> out) {
  if (broken_) return 0;
  const PackedPosition before = used_;
  const std::uint32_t count = features_.in_order ? reap_batches(out) : reap_each(out);
  if (features_.event_index && calls_wanted_ && used_ != before) suppress_calls(false);
  return count;
}

bool PackedDriver::wants_event() {
  // 2.8.21.3.1: the store of the flags must be seen before the device's wish is read. Without the
  // fence the device could change its wish and find nothing, while we still read the old one.
  full_fence();
  const EventSuppression wish = load_event_suppression(*ring_.device_events);
  const std::uint32_t slots = unannounced_;
  unannounced_ = 0;
  return wants_packed_event(wish, features_.event_index, slots, next_, ring_.size);
}

void PackedDriver::suppress_calls(bool suppress) {
  calls_wanted_ = !suppress;
  EventSuppression wish{0, kEventsEnabled};
  if (suppress) {
    wish.flags = kEventsDisabled;
  } else if (features_.event_index) {
    // 2.8.10: a call for the next descriptor that is used. reap() moves it on.
    wish = {used_.raw(), kEventsAtDescriptor};
  }
  const EventSuppression stands = load_event_suppression(*ring_.driver_events);
  if (stands.flags != wish.flags || stands.offset_wrap != wish.offset_wrap) {
    store_event_suppression(*ring_.driver_events, wish);
  }
  // 2.8.22: the wish must be seen before the caller's last look at the ring, or a call for a
  // descriptor used in between is lost.
  if (!suppress) full_fence();
}

std::uint16_t PackedDriver::resume() {
  format();
  broken_ = false;
  batch_ = {};
  for (const std::uint16_t id : chains_.in_flight_oldest_first()) {
    std::uint16_t here = id;
    for (std::uint16_t left = chains_[id].descriptors; left > 0; --left) {
      write(elements_[here], id);
      here = chains_.next(here);
    }
  }
  suppress_calls(!calls_wanted_);
  expose();
  return kFreshBase;
}

}  // namespace vswitch::virtq
