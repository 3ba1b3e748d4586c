// What every driver ring end is: the types and the concept. Made for split rings in split_driver.h,
// for packed ones in packed_driver.h; driver_queue.h works on either.
//
// A ring end knows layout, order and barriers, and nothing of packets. What the device writes is
// never trusted. A ring end belongs to one thread and allocates only when it is made (and in
// resume()).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace vswitch::virtq {

// One piece of a chain the driver offers.
struct DriverSegment {
  std::uint64_t address;  // guest-physical
  std::uint32_t length;   // bytes
  bool device_writable;
};

// Memory for one indirect table (virtio 1.2, 2.7.5.3 and 2.8.7), shared with the device. It stays
// the caller's, and belongs to the chain while that is in flight.
struct IndirectTable {
  std::byte* host = nullptr;  // 16-byte aligned here, as we touch it atomically
  std::uint64_t guest_address = 0;
};
// Bytes of a table with this many entries.
constexpr std::size_t indirect_table_bytes(std::size_t entries) { return entries * 16; }

// One chain that came back.
struct UsedChain {
  std::uint16_t id;      // what post() returned
  std::uint32_t length;  // bytes the device says it wrote; never more than what was writable
};

// Things a device did that it must not do. Monotonic.
struct DriverRingCounters {
  std::uint64_t bad_ids = 0;         // id out of range, never posted, or used twice
  std::uint64_t capped_lengths = 0;  // more bytes "written" than were writable
};

// The operations, alike for all ring ends:
//
//   post            Stages one chain; the device sees it after expose(). Nothing if there are too
//                   few free descriptors, or no segments. Device-readable segments come first
//                   (2.7.4.2, 2.8.6). The id is below size().
//   post_indirect   The same with one descriptor, which points at `table`; the segments become its
//                   entries, at most size() of them (2.7.5.3.1). An entry that stands there already
//                   is not written again. Nothing without VIRTIO_F_INDIRECT_DESC.
//   expose          Makes everything staged available, in one store.
//   reap            Collects up to out.size() chains the device is done with and frees their
//                   descriptors. With VIRTIO_F_IN_ORDER the device may name only the last chain of
//                   a batch; those it skipped are handed out too, each as written completely
//                   (2.7.9, 2.8.8).
//   wants_event     Whether the device asks to be kicked for what was exposed since the last call.
//                   Call once after expose().
//   suppress_calls  Whether calls (interrupts) are unwanted; they are wanted at first. A hint: they
//                   may come anyway. After suppress_calls(false) sleep only when a later reap() has
//                   found nothing.
//   broken          The position in the ring is lost: reap() finds nothing until resume() or until
//                   the ring is made anew.
//   resume          For a device that comes back (a restarted back-end): offers again, in the order
//                   they were posted, all chains that were not collected. Returns the position the
//                   device starts from, as its layout writes it (SET_VRING_BASE). Only while no
//                   device runs; what a device returned before and reap() has not seen is lost.
//   kFreshBase      That position for a ring just made.
template <typename T>
concept DriverRing = requires(T ring, const T const_ring, std::span<const DriverSegment> chain,
                              const IndirectTable& table, std::span<UsedChain> used) {
  { ring.post(chain) } -> std::same_as<std::optional<std::uint16_t>>;
  { ring.post_indirect(table, chain) } -> std::same_as<std::optional<std::uint16_t>>;
  {ring.expose()};
  { ring.reap(used) } -> std::same_as<std::uint32_t>;
  { ring.wants_event() } -> std::same_as<bool>;
  {ring.suppress_calls(true)};
  { ring.resume() } -> std::same_as<std::uint16_t>;
  { const_ring.size() } -> std::same_as<std::uint32_t>;
  { const_ring.free_descriptors() } -> std::same_as<std::uint32_t>;
  { const_ring.broken() } -> std::same_as<bool>;
  { const_ring.counters() } -> std::same_as<const DriverRingCounters&>;
  { T::kFreshBase } -> std::convertible_to<std::uint16_t>;
};

}  // namespace vswitch::virtq
