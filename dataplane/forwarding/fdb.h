// The MAC table of one bridge.
//
// Who writes what, and how:
//  - Workers look up (lookup) and learn (learn) without ever waiting. A bucket carries a version
//    that is odd while somebody changes its keys; whoever finds it odd does not wait: a lookup that
//    cannot read a bucket undisturbed misses (the frame is flooded), a learn gives up (the next
//    frame of that source tries again).
//  - The vhost-user loop expires, forgets outputs and lists. It may wait for a worker's few stores.
//  - The "last seen" half of a value is refreshed in place by compare-and-swap, at most once a
//    second an entry, without touching the version.
// Every field is atomic; nothing here is undefined whatever the interleaving.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "dataplane/net_header/ethernet.h"

namespace vswitch::forwarding {

// vlan << 48 | MAC address. 0 is no key: the zero address is never learned.
using FdbKey = std::uint64_t;
constexpr FdbKey fdb_key(std::uint16_t vlan, MacKey mac) {
  return static_cast<FdbKey>(vlan) << 48 | mac;
}

// Where a station is: an output number and the generation of its port. Numbers are reused; an entry
// whose generation is not the output's current one is stale and must be treated as unknown.
struct Location {
  std::uint16_t output = 0;
  std::uint16_t generation = 0;
  bool operator==(const Location&) const = default;
};

class Fdb {
 public:
  static constexpr std::uint32_t kEntriesPerBucket = 7;
  static constexpr std::uint32_t kDefaultBuckets = 4096;
  static constexpr std::uint32_t kDefaultCapacity = 8192;

  // Zeroed memory for `buckets` (a power of two), 64-byte aligned, released with its deleter.
  using Storage = std::unique_ptr<void, void (*)(void*)>;
  static constexpr std::size_t storage_bytes(std::uint32_t buckets) {
    return std::size_t{buckets} * sizeof(Bucket);
  }

  Fdb(Storage storage, std::uint32_t buckets, std::uint32_t capacity);

  // --- Workers. `now` is in seconds of any monotonic clock shared by all callers.
  bool lookup(FdbKey key, Location& location) const;
  void learn(FdbKey key, Location location, std::uint32_t now);
  void prefetch(FdbKey key) const { __builtin_prefetch(&bucket_of(key)); }

  // --- The vhost-user loop.
  // Forgets entries not seen for more than `max_age` seconds.
  void expire(std::uint32_t now, std::uint32_t max_age);
  // Forgets every entry of an output, whatever its generation.
  void forget_output(std::uint16_t output);
  // `seen`: second of the last frame from the station.
  void for_each(
      const std::function<void(FdbKey key, Location location, std::uint32_t seen)>& visit) const;

  // --- Anybody.
  std::uint32_t entries() const { return entries_.load(std::memory_order_relaxed); }
  std::uint64_t evictions() const { return evictions_.load(std::memory_order_relaxed); }
  std::uint64_t moves() const { return moves_.load(std::memory_order_relaxed); }

 private:
  // The keys and their version share a cache line; a lookup takes the second line only on a match.
  struct alignas(64) Bucket {
    std::atomic<std::uint64_t> version;
    std::atomic<FdbKey> keys[kEntriesPerBucket];
    std::atomic<std::uint64_t> values[kEntriesPerBucket];  // seen << 32 | generation << 16 | output
    std::uint64_t unused;
  };
  static_assert(sizeof(Bucket) == 128);

  Bucket& bucket_of(FdbKey key) const {
    // Multiplicative hashing (2^64 / golden ratio): the high bits depend on all bits of the key.
    return buckets_[static_cast<std::uint32_t>(key * 0x9e3779b97f4a7c15ull >> 32) & mask_];
  }
  static bool try_lock(Bucket& bucket);
  static void lock(Bucket& bucket);
  static void unlock(Bucket& bucket);
  bool take_place();
  void learn_locked(Bucket& bucket, FdbKey key, std::uint64_t value);
  template <typename Predicate>
  void remove_if(const Predicate& predicate);

  Storage storage_;
  Bucket* buckets_;
  std::uint32_t mask_;
  std::uint32_t capacity_;
  std::atomic<std::uint32_t> entries_{0};
  std::atomic<std::uint64_t> evictions_{0};
  std::atomic<std::uint64_t> moves_{0};
};

}  // namespace vswitch::forwarding
