#include "dataplane/forwarding/fdb.h"

#include <new>
#include <thread>
#include <utility>

namespace vswitch::forwarding {
namespace {

constexpr std::uint64_t pack(Location location, std::uint32_t seen) {
  return std::uint64_t{seen} << 32 | std::uint32_t{location.generation} << 16 | location.output;
}
constexpr Location location_of(std::uint64_t value) {
  return {static_cast<std::uint16_t>(value), static_cast<std::uint16_t>(value >> 16)};
}
constexpr std::uint32_t seen_of(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

}  // namespace

Fdb::Fdb(Storage storage, std::uint32_t buckets, std::uint32_t capacity)
    : storage_(std::move(storage)),
      buckets_(static_cast<Bucket*>(storage_.get())),
      mask_(buckets - 1),
      capacity_(capacity) {
  for (std::uint32_t i = 0; i < buckets; ++i) new (&buckets_[i]) Bucket{};
}

// The version is odd while the bucket's owner changes it.
bool Fdb::try_lock(Bucket& bucket) {
  std::uint64_t version = bucket.version.load(std::memory_order_relaxed);
  // Acquire: the changes of the previous owner are seen. The release fence keeps our stores behind
  // the odd version for readers.
  if ((version & 1) != 0 ||
      !bucket.version.compare_exchange_strong(version, version + 1, std::memory_order_acquire,
                                              std::memory_order_relaxed)) {
    return false;
  }
  std::atomic_thread_fence(std::memory_order_release);
  return true;
}

void Fdb::lock(Bucket& bucket) {
  while (!try_lock(bucket)) std::this_thread::yield();
}

void Fdb::unlock(Bucket& bucket) {
  // Release: a reader that sees the even version sees the changes.
  bucket.version.store(bucket.version.load(std::memory_order_relaxed) + 1,
                       std::memory_order_release);
}

bool Fdb::lookup(FdbKey key, Location& location) const {
  if (key == 0) return false;  // marks free slots, whose values are stale
  const Bucket& bucket = bucket_of(key);
  const std::uint64_t version = bucket.version.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < kEntriesPerBucket; ++i) {
    if (bucket.keys[i].load(std::memory_order_relaxed) != key) continue;
    const std::uint64_t value = bucket.values[i].load(std::memory_order_relaxed);
    // Acquire fence: key and value were loaded before the version is loaded again. An unchanged
    // even version means that they belong together.
    std::atomic_thread_fence(std::memory_order_acquire);
    if ((version & 1) != 0 || bucket.version.load(std::memory_order_relaxed) != version) {
      return false;
    }
    location = location_of(value);
    return true;
  }
  return false;
}

void Fdb::learn(FdbKey key, Location location, std::uint32_t now) {
  Bucket& bucket = bucket_of(key);
  for (std::uint32_t i = 0; i < kEntriesPerBucket; ++i) {
    if (bucket.keys[i].load(std::memory_order_relaxed) != key) continue;
    std::uint64_t value = bucket.values[i].load(std::memory_order_relaxed);
    if (location_of(value) != location) break;  // moved, or the slot changed under us
    if (seen_of(value) != now) {
      // Fails, harmlessly, where somebody changed the slot meanwhile.
      bucket.values[i].compare_exchange_strong(value, pack(location, now),
                                               std::memory_order_relaxed);
    }
    return;
  }
  if (!try_lock(bucket)) return;
  learn_locked(bucket, key, pack(location, now));
  unlock(bucket);
}

// Counts one more entry, unless the table is full. Workers do so in different buckets at once.
bool Fdb::take_place() {
  std::uint32_t entries = entries_.load(std::memory_order_relaxed);
  do {
    if (entries >= capacity_) return false;
  } while (!entries_.compare_exchange_weak(entries, entries + 1, std::memory_order_relaxed));
  return true;
}

void Fdb::learn_locked(Bucket& bucket, FdbKey key, std::uint64_t value) {
  std::uint32_t slot = kEntriesPerBucket;    // a free one
  std::uint32_t oldest = kEntriesPerBucket;  // the one to give way
  for (std::uint32_t i = 0; i < kEntriesPerBucket; ++i) {
    const FdbKey other = bucket.keys[i].load(std::memory_order_relaxed);
    if (other == key) {
      // Another worker may have learned the same since the caller looked: that is no move.
      const bool moved =
          location_of(bucket.values[i].load(std::memory_order_relaxed)) != location_of(value);
      bucket.values[i].store(value, std::memory_order_relaxed);
      if (moved) moves_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (other == 0) {
      if (slot == kEntriesPerBucket) slot = i;
    } else if (oldest == kEntriesPerBucket ||
               seen_of(bucket.values[i].load(std::memory_order_relaxed)) <
                   seen_of(bucket.values[oldest].load(std::memory_order_relaxed))) {
      oldest = i;
    }
  }
  if (slot == kEntriesPerBucket || !take_place()) {
    if (oldest == kEntriesPerBucket)
      return;  // the table is full and this bucket has nothing to give
    slot = oldest;
    evictions_.fetch_add(1, std::memory_order_relaxed);
  }
  bucket.keys[slot].store(key, std::memory_order_relaxed);
  bucket.values[slot].store(value, std::memory_order_relaxed);
}

template <typename Predicate>
void Fdb::remove_if(const Predicate& predicate) {
  for (std::uint32_t b = 0; b <= mask_; ++b) {
    Bucket& bucket = buckets_[b];
    for (std::uint32_t i = 0; i < kEntriesPerBucket; ++i) {
      if (bucket.keys[i].load(std::memory_order_relaxed) == 0 ||
          !predicate(bucket.values[i].load(std::memory_order_relaxed))) {
        continue;
      }
      lock(bucket);
      // Again, now that nobody else changes keys: a worker may have refreshed or replaced it.
      if (bucket.keys[i].load(std::memory_order_relaxed) != 0 &&
          predicate(bucket.values[i].load(std::memory_order_relaxed))) {
        bucket.keys[i].store(0, std::memory_order_relaxed);
        entries_.fetch_sub(1, std::memory_order_relaxed);
      }
      unlock(bucket);
    }
  }
}

void Fdb::expire(std::uint32_t now, std::uint32_t max_age) {
  // A worker's clock may be a second ahead of the caller's, hence the signed difference.
  remove_if([&](std::uint64_t value) {
    return static_cast<std::int32_t>(now - seen_of(value)) > static_cast<std::int32_t>(max_age);
  });
}

void Fdb::forget_output(std::uint16_t output) {
  remove_if([&](std::uint64_t value) { return location_of(value).output == output; });
}

void Fdb::for_each(const std::function<void(FdbKey, Location, std::uint32_t)>& visit) const {
  for (std::uint32_t b = 0; b <= mask_; ++b) {
    const Bucket& bucket = buckets_[b];
    for (std::uint32_t i = 0; i < kEntriesPerBucket; ++i) {
      const FdbKey key = bucket.keys[i].load(std::memory_order_relaxed);
      if (key == 0) continue;
      Location location;
      const std::uint64_t value = bucket.values[i].load(std::memory_order_relaxed);
      // Through lookup, so that key and location belong together.
      if (lookup(key, location)) visit(key, location, seen_of(value));
    }
  }
}

}  // namespace vswitch::forwarding
