#include "dataplane/virtq/split_driver.h"

namespace vswitch::virtq {
SplitDriver::SplitDriver(const SplitRing& ring, RingFeatures features)
    : ring_(ring),
      features_(features),
      mask_(static_cast<std::uint16_t>(ring.size - 1)),
      chains_(ring.size) {
  for (std::uint32_t i = 0; i < ring.size; ++i) {
    store_descriptor(ring_.descriptors[i], Descriptor{});
    store_relaxed(ring_.avail_entries()[i], std::uint16_t{0});
    store_relaxed(ring_.used_elements()[i].id, std::uint32_t{0});
    store_relaxed(ring_.used_elements()[i].length, std::uint32_t{0});
  }
  store_relaxed(ring_.avail->flags, std::uint16_t{0});
  store_relaxed(ring_.avail->index, std::uint16_t{0});
  store_relaxed(ring_.used->flags, std::uint16_t{0});
  store_relaxed(ring_.used->index, std::uint16_t{0});
  if (features_.event_index) {
    store_relaxed(ring_.used_event(), std::uint16_t{0});
    store_relaxed(ring_.avail_event(), std::uint16_t{0});
  }
}

std::optional<std::uint16_t> SplitDriver::post_list(std::span<const DriverSegment> chain) {
  if (chain.empty() || chain.size() > chains_.free()) return std::nullopt;
  const std::uint16_t head = chains_.take();
  std::uint16_t here = head;
  std::uint32_t writable = 0;
  // 2.7.13.1: fill the descriptors. An ordinary store each; expose() orders them.
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const DriverSegment& segment = chain[i];
    Descriptor descriptor{segment.address, segment.length, 0, 0};
    if (segment.device_writable) {
      descriptor.flags = kDescWrite;
      writable += segment.length;
    }
    const std::uint16_t current = here;
    if (i + 1 < chain.size()) {
      // 2.7.5: with VIRTIO_F_IN_ORDER the next one must be the next in the table. It is: chains
      // come back oldest first then, and free descriptors are taken first in first out.
      here = chains_.take();
      descriptor.flags = static_cast<std::uint16_t>(descriptor.flags | kDescNext);
      descriptor.next = here;
      chains_.link(current, here);
    }
    store_descriptor_if_different(ring_.descriptors[current], descriptor);
  }
  make_available(head, writable, chain.size());
  return head;
}

std::optional<std::uint16_t> SplitDriver::post_indirect(const IndirectTable& table,
                                                        std::span<const DriverSegment> chain) {
  if (!features_.indirect || chain.empty() || chain.size() > size() || chains_.free() == 0) {
    return std::nullopt;
  }
  auto* entries = reinterpret_cast<Descriptor*>(table.host);
  std::uint32_t writable = 0;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const DriverSegment& segment = chain[i];
    Descriptor entry{segment.address, segment.length, 0, 0};
    if (segment.device_writable) {
      entry.flags = kDescWrite;
      writable += segment.length;
    }
    if (i + 1 < chain.size()) {
      // 2.7.5.3: linked by index into the table; VIRTIO_F_IN_ORDER wants them one after the other.
      entry.flags = static_cast<std::uint16_t>(entry.flags | kDescNext);
      entry.next = static_cast<std::uint16_t>(i + 1);
    }
    store_descriptor_if_different(entries[i], entry);
  }
  const std::uint16_t head = chains_.take();
  store_descriptor_if_different(
      ring_.descriptors[head],
      {table.guest_address, static_cast<std::uint32_t>(indirect_table_bytes(chain.size())),
       kDescIndirect, 0});
  make_available(head, writable, 1);
  return head;
}

void SplitDriver::expose() {
  if (available() == exposed_) return;
  // 2.7.13.3: release orders descriptors, indirect tables, ring entries and the frames themselves
  // before the index that reveals them.
  store_release(ring_.avail->index, available());
  exposed_ = available();
}

// 2.7.8: without VIRTIO_F_IN_ORDER an element stands for the chain it names.
std::uint32_t SplitDriver::reap_each(std::span<UsedChain> out, std::uint16_t pending) {
  std::uint32_t count = 0;
  for (; pending > 0 && count < out.size(); --pending) {
    const UsedElement& shared = ring_.used_elements()[used_ & mask_];
    const std::uint32_t id = load_relaxed(shared.id);
    ++used_;
    if (!chains_.in_flight(id)) {
      ++counters_.bad_ids;
      continue;
    }
    out[count++] =
        chains_.finish(static_cast<std::uint16_t>(id), load_relaxed(shared.length), counters_);
  }
  return count;
}

// 2.7.9: an element stands where its batch begins and names the batch's last chain; the device
// skipped as many entries as the batch has other chains. One that skipped fewer (it returned
// something else in between, which was refused) is taken by what it names: so the two of us agree
// again.
std::uint32_t SplitDriver::reap_batches(std::span<UsedChain> out, std::uint16_t pending) {
  std::uint32_t count = 0;
  while (count < out.size()) {
    if (!batch_.open) {
      if (pending == 0) break;
      const UsedElement& shared = ring_.used_elements()[used_ & mask_];
      const std::uint32_t id = load_relaxed(shared.id);
      const std::uint32_t length = load_relaxed(shared.length);
      std::uint16_t entries = 1;
      if (chains_.in_flight(id)) {
        batch_ = {static_cast<std::uint16_t>(id), length, true};
        const std::uint64_t chains =
            chains_[batch_.last].order - chains_[chains_.oldest()].order + 1;
        entries = chains < pending ? static_cast<std::uint16_t>(chains) : pending;
      } else {
        // What the entry stood for stays in flight; a later one covers it.
        ++counters_.bad_ids;
      }
      used_ = static_cast<std::uint16_t>(used_ + entries);
      pending = static_cast<std::uint16_t>(pending - entries);
      continue;
    }
    const std::uint16_t head = chains_.oldest();
    if (head == batch_.last) {
      out[count++] = chains_.finish(head, batch_.length, counters_);
      batch_.open = false;
    } else {
      out[count++] = chains_.finish_skipped(head);
    }
  }
  return count;
}

std::uint32_t SplitDriver::reap(std::span<UsedChain> out) {
  if (broken_) return 0;
  // 2.7.14: acquire orders this load before those of the used elements and of the buffers' content.
  const std::uint16_t index = load_acquire(ring_.used->index);
  const std::uint16_t before = used_;
  auto pending = static_cast<std::uint16_t>(index - used_);
  if (pending > ring_.size) {
    broken_ = true;
    return 0;
  }
  const std::uint32_t count =
      features_.in_order ? reap_batches(out, pending) : reap_each(out, pending);
  if (features_.event_index && calls_wanted_ && used_ != before) {
    // 2.7.7: a call for the next element, which must be wished before the caller looks again.
    store_relaxed(ring_.used_event(), used_);
    full_fence();
  }
  return count;
}

bool SplitDriver::wants_event() {
  // 2.7.13.3.1: the store of avail.idx must be seen before the device's wish is read. Without the
  // fence the device could change its wish and find nothing, while we still read the old one.
  full_fence();
  // 2.7.10: each of the two wishes is ignored in favour of the other.
  if (!features_.event_index) return (load_relaxed(ring_.used->flags) & kUsedNoNotify) == 0;
  const bool wanted = need_event(load_relaxed(ring_.avail_event()), notified_, exposed_);
  notified_ = exposed_;
  return wanted;
}

void SplitDriver::suppress_calls(bool suppress) {
  calls_wanted_ = !suppress;
  if (features_.event_index) {
    // 2.7.7: flags stay 0. An event index more than a queue behind is one that no element still on
    // its way can hit; it comes round after some 2^15 elements at the least, which costs one call.
    const auto never = static_cast<std::uint16_t>(used_ - ring_.size - 1);
    store_if_different(ring_.used_event(), suppress ? never : used_);
  } else {
    store_if_different(ring_.avail->flags, suppress ? kAvailNoInterrupt : std::uint16_t{0});
  }
  // 2.7.7 with 2.7.14: the wish must be seen before the caller's last look at used.idx, or a call
  // for an element published in between is lost.
  if (!suppress) full_fence();
}

std::uint16_t SplitDriver::resume() {
  const std::uint16_t base = load_acquire(ring_.used->index);
  used_ = base;
  posted_ = base;
  notified_ = base;
  broken_ = false;
  batch_ = {};
  for (const std::uint16_t head : chains_.in_flight_oldest_first()) {
    chains_.set_order(head, posted_);
    store_relaxed(ring_.avail_entries()[available() & mask_], head);
    ++posted_;
  }
  if (features_.event_index) suppress_calls(!calls_wanted_);
  exposed_ = available();
  // Release, as in expose(): the next device reads the entries after this index.
  store_release(ring_.avail->index, exposed_);
  return base;
}

}  // namespace vswitch::virtq
