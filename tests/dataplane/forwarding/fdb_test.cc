#include "dataplane/forwarding/fdb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace vswitch::forwarding {
namespace {

Fdb::Storage storage(std::uint32_t buckets) {
  void* memory = nullptr;
  EXPECT_EQ(posix_memalign(&memory, 64, Fdb::storage_bytes(buckets)), 0);
  return {memory, std::free};
}
Fdb make(std::uint32_t buckets = 16, std::uint32_t capacity = 64) {
  return Fdb(storage(buckets), buckets, capacity);
}

struct Entry {
  Location location;
  std::uint32_t seen = 0;
  bool operator==(const Entry&) const = default;
};
std::map<FdbKey, Entry> list(const Fdb& fdb) {
  std::map<FdbKey, Entry> entries;
  fdb.for_each([&](FdbKey key, Location location, std::uint32_t seen) {
    EXPECT_TRUE(entries.emplace(key, Entry{location, seen}).second) << "listed twice";
  });
  return entries;
}

constexpr FdbKey kStation = 0x020000000001;

TEST(Fdb, LearnsAndFinds) {
  Fdb fdb = make();
  Location found;
  EXPECT_FALSE(fdb.lookup(kStation, found));
  fdb.learn(kStation, {4095, 65535}, 10);
  ASSERT_TRUE(fdb.lookup(kStation, found));
  EXPECT_EQ(found, (Location{4095, 65535}));
  EXPECT_FALSE(fdb.lookup(kStation + 1, found));
  EXPECT_EQ(fdb.entries(), 1u);
  EXPECT_EQ(fdb.moves(), 0u);
  EXPECT_EQ(fdb.evictions(), 0u);
  EXPECT_EQ(list(fdb), (std::map<FdbKey, Entry>{{kStation, {{4095, 65535}, 10}}}));
}

TEST(Fdb, VlansAreApart) {
  EXPECT_EQ(fdb_key(0xabc, 0x020000000001), 0x0abc020000000001u);
  Fdb fdb = make();
  fdb.learn(fdb_key(1, kStation), {1, 1}, 0);
  fdb.learn(fdb_key(2, kStation), {2, 1}, 0);
  Location found;
  ASSERT_TRUE(fdb.lookup(fdb_key(2, kStation), found));
  EXPECT_EQ(found.output, 2);
  EXPECT_FALSE(fdb.lookup(kStation, found));
}

TEST(Fdb, RefreshesWhatItKnows) {
  Fdb fdb = make();
  fdb.learn(kStation, {1, 1}, 10);
  fdb.learn(kStation, {1, 1}, 310);
  EXPECT_EQ(list(fdb), (std::map<FdbKey, Entry>{{kStation, {{1, 1}, 310}}}));
  EXPECT_EQ(fdb.entries(), 1u);
  EXPECT_EQ(fdb.moves(), 0u);
}

TEST(Fdb, AStationMoves) {
  Fdb fdb = make();
  fdb.learn(kStation, {1, 1}, 10);
  fdb.learn(kStation, {2, 1}, 11);
  Location found;
  ASSERT_TRUE(fdb.lookup(kStation, found));
  EXPECT_EQ(found, (Location{2, 1}));
  EXPECT_EQ(fdb.entries(), 1u);
  EXPECT_EQ(fdb.moves(), 1u);
  // The same output of another port is another place.
  fdb.learn(kStation, {2, 2}, 11);
  ASSERT_TRUE(fdb.lookup(kStation, found));
  EXPECT_EQ(found, (Location{2, 2}));
  EXPECT_EQ(fdb.moves(), 2u);
  EXPECT_EQ(fdb.entries(), 1u);
}

TEST(Fdb, ForgetsAfterItsAgeAndNotBefore) {
  Fdb fdb = make();
  fdb.learn(kStation, {1, 1}, 100);
  fdb.expire(400, 300);
  EXPECT_EQ(fdb.entries(), 1u) << "300 seconds are not more than 300";
  fdb.expire(401, 300);
  EXPECT_EQ(fdb.entries(), 0u);
  Location found;
  EXPECT_FALSE(fdb.lookup(kStation, found));
  EXPECT_TRUE(list(fdb).empty());
  // The slot is as good as new.
  fdb.learn(kStation, {1, 1}, 401);
  EXPECT_EQ(fdb.entries(), 1u);
  EXPECT_EQ(fdb.moves(), 0u);
}

TEST(Fdb, AWorkersClockMayBeAhead) {
  Fdb fdb = make();
  fdb.learn(kStation, {1, 1}, 1001);
  fdb.expire(1000, 300);
  EXPECT_EQ(fdb.entries(), 1u);
}

TEST(Fdb, ForgetsAnOutputOfAnyGeneration) {
  Fdb fdb = make();
  fdb.learn(kStation + 0, {1, 1}, 0);
  fdb.learn(kStation + 1, {1, 2}, 0);
  fdb.learn(kStation + 2, {2, 1}, 0);
  fdb.forget_output(1);
  EXPECT_EQ(list(fdb), (std::map<FdbKey, Entry>{{kStation + 2, {{2, 1}, 0}}}));
  EXPECT_EQ(fdb.entries(), 1u);
}

TEST(Fdb, TheZeroKeyIsNobody) {
  Fdb fdb = make(1, 100);
  Location found;
  EXPECT_FALSE(fdb.lookup(0, found));
  fdb.learn(kStation, {1, 1}, 0);
  fdb.forget_output(1);
  EXPECT_FALSE(fdb.lookup(0, found)) << "a free slot is no entry";
}

TEST(Fdb, AFullBucketGivesUpItsOldest) {
  Fdb fdb = make(1, 100);
  for (std::uint32_t i = 0; i < Fdb::kEntriesPerBucket; ++i)
    fdb.learn(kStation + i, {1, 1}, 10 + i);
  fdb.learn(kStation, {1, 1}, 50);  // now the second one is the oldest
  fdb.learn(0x020000000099, {2, 1}, 60);
  EXPECT_EQ(fdb.entries(), Fdb::kEntriesPerBucket);
  EXPECT_EQ(fdb.evictions(), 1u);
  const auto entries = list(fdb);
  EXPECT_TRUE(entries.contains(kStation));
  EXPECT_FALSE(entries.contains(kStation + 1));
  EXPECT_EQ(entries.at(0x020000000099), (Entry{{2, 1}, 60}));
}

// Never more than its capacity, and every station that gave way is counted.
TEST(Fdb, AFullTableCountsEvictions) {
  Fdb fdb = make(4, 10);
  std::uint32_t not_learned = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    fdb.learn(kStation + i, {1, 1}, i);
    Location found;
    not_learned += !fdb.lookup(kStation + i, found);
    ASSERT_LE(fdb.entries(), 10u);
  }
  EXPECT_EQ(fdb.entries(), 10u);
  EXPECT_EQ(list(fdb).size(), 10u);
  EXPECT_EQ(fdb.evictions() + not_learned, 990u);
}

TEST(Fdb, ManyStations) {
  Fdb fdb = make(Fdb::kDefaultBuckets, Fdb::kDefaultCapacity);
  std::mt19937_64 random(7);
  std::map<FdbKey, Entry> expected;
  for (std::uint32_t i = 0; i < 4000; ++i) {
    const FdbKey key = (random() & 0xfeffffffffff) | 1;
    const Entry entry{{static_cast<std::uint16_t>(i % 4096), static_cast<std::uint16_t>(i)}, i};
    fdb.learn(key, entry.location, entry.seen);
    expected[key] = entry;
  }
  EXPECT_EQ(fdb.evictions(), 0u) << "a table half full must not lose stations";
  EXPECT_EQ(list(fdb), expected);
}

// Vendors number their stations one after the other.
TEST(Fdb, NeighbouringAddressesSpread) {
  Fdb fdb = make(Fdb::kDefaultBuckets, Fdb::kDefaultCapacity);
  for (std::uint32_t i = 0; i < 4000; ++i) fdb.learn(kStation + i, {1, 1}, 0);
  for (std::uint32_t i = 0; i < 4000; ++i) fdb.learn(0x0a0000000000 + (i << 8), {1, 1}, 0);
  EXPECT_LT(fdb.evictions(), 80u);
}

// Learners, moves, look-ups, expiry, forgetting and listing, all at once on a small table. A
// location carries its key in its generation, so that a mix-up of two entries shows.
TEST(Fdb, HammeredFromAllSides) {
  constexpr std::uint32_t kKeys = 200;
  constexpr std::uint32_t kCapacity = 48;
  Fdb fdb = make(8, kCapacity);
  std::atomic<std::uint32_t> now{1000};
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> mixed_up{0}, hits{0}, over{0};
  const auto generation = [](FdbKey key) { return static_cast<std::uint16_t>(key * 7919); };

  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      while (!stop.load(std::memory_order_relaxed)) {
        const FdbKey key = kStation + random() % kKeys;
        if (random() % 2 == 0) {
          // One output a learner: what is found must be one of three.
          fdb.learn(key, {static_cast<std::uint16_t>(t), generation(key)},
                    now.load(std::memory_order_relaxed) + random() % 2);
        }
        Location found;
        if (fdb.lookup(key, found)) {
          hits.fetch_add(1, std::memory_order_relaxed);
          if (found.generation != generation(key) || found.output > 2) mixed_up.fetch_add(1);
        }
        if (fdb.entries() > kCapacity) over.fetch_add(1);
      }
    });
  }
  for (int round = 0; round < 4000; ++round) {
    now.fetch_add(1);
    if (round % 3 == 0) fdb.expire(now.load(), 2);
    if (round % 16 == 0) fdb.forget_output(static_cast<std::uint16_t>(round / 16 % 3));
    if (round % 8 == 0) {
      fdb.for_each([&](FdbKey key, Location location, std::uint32_t) {
        if (location.generation != generation(key) || location.output > 2) mixed_up.fetch_add(1);
      });
    }
    if (round % 64 == 0) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mixed_up, 0u);
  EXPECT_EQ(over, 0u) << "more entries than the capacity";
  EXPECT_GT(hits, 1000u);
  EXPECT_EQ(list(fdb).size(), fdb.entries()) << "the count has drifted";
  for (std::uint16_t output = 0; output < 3; ++output) fdb.forget_output(output);
  EXPECT_EQ(fdb.entries(), 0u);
  EXPECT_TRUE(list(fdb).empty());
}

// Two workers that meet the same new station in the same moment: it has not moved.
TEST(Fdb, LearningTogetherIsNoMove) {
  Fdb fdb = make(1, 100);
  std::atomic<std::uint32_t> turn{0};
  std::atomic<std::uint32_t> done{0};
  std::vector<std::thread> threads;
  constexpr std::uint32_t kTurns = 20'000;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (std::uint32_t i = 1; i <= kTurns; ++i) {
        while (turn.load(std::memory_order_acquire) < i) std::this_thread::yield();
        fdb.learn(kStation, {1, 1}, 1);
        done.fetch_add(1, std::memory_order_release);
      }
    });
  }
  for (std::uint32_t i = 1; i <= kTurns; ++i) {
    turn.store(i, std::memory_order_release);
    while (done.load(std::memory_order_acquire) < 2 * i) std::this_thread::yield();
    fdb.forget_output(1);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fdb.moves(), 0u);
}

}  // namespace
}  // namespace vswitch::forwarding
