// What became of the frames of each stream: lost, doubled, out of order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dataplane/net_header/ethernet.h"

namespace vswitch::guest {

// Follows the sequence numbers of one stream. A frame that comes more than kWindow numbers behind
// the highest one counts as reordered; whether it is a duplicate as well is no longer known.
class SequenceTracker {
 public:
  static constexpr std::uint64_t kWindow = 65'536;

  enum class Arrival { kInOrder, kReordered, kDuplicate };

  SequenceTracker() : seen_(kWindow / 64) {}

  Arrival record(std::uint64_t sequence);

  // Different sequence numbers seen.
  std::uint64_t unique() const { return unique_; }
  std::uint64_t duplicates() const { return duplicates_; }
  std::uint64_t reordered() const { return reordered_; }
  // Numbers between the lowest and the highest seen that did not come (yet).
  std::uint64_t missing() const;
  // Of `total` frames numbered from 0: those that did not come (yet).
  std::uint64_t missing_of(std::uint64_t total) const {
    return total > unique_ ? total - unique_ : 0;
  }

 private:
  bool seen(std::uint64_t sequence) const {
    return (seen_[sequence % kWindow / 64] >> (sequence % 64) & 1) != 0;
  }
  void set(std::uint64_t sequence) {
    seen_[sequence % kWindow / 64] |= std::uint64_t{1} << (sequence % 64);
  }
  void clear(std::uint64_t sequence) {
    seen_[sequence % kWindow / 64] &= ~(std::uint64_t{1} << (sequence % 64));
  }
  Arrival advance(std::uint64_t sequence);

  std::vector<std::uint64_t> seen_;  // the last kWindow numbers up to next_ - 1, one bit each
  bool started_ = false;
  std::uint64_t lowest_ = 0;
  std::uint64_t next_ = 0;  // one above the highest seen
  std::uint64_t unique_ = 0;
  std::uint64_t duplicates_ = 0;
  std::uint64_t reordered_ = 0;
};

struct Stream {
  std::uint64_t id = 0;
  MacKey source = 0;
  std::uint64_t frames = 0;  // duplicates included
  std::uint64_t bytes = 0;
  SequenceTracker sequence;
  std::optional<std::uint64_t> total;  // the sender's own count, from its end-of-stream frame
  bool owes_acknowledgement = false;

  // With the sender's count all losses are known; without it only those between frames that came.
  std::uint64_t lost() const { return total ? sequence.missing_of(*total) : sequence.missing(); }
};

// The streams one guest receives. At most kMaxStreams, so that damaged or hostile frames cannot
// make it grow; frames of further ones are counted in untracked().
class StreamTable {
 public:
  static constexpr std::size_t kMaxStreams = 256;

  // The stream with this id, made if new; null if the table is full.
  Stream* find(std::uint64_t id, MacKey source);
  const std::vector<Stream>& streams() const { return streams_; }
  std::vector<Stream>& streams() { return streams_; }
  std::uint64_t untracked() const { return untracked_; }

 private:
  std::vector<Stream> streams_;
  std::size_t last_ = 0;
  std::uint64_t untracked_ = 0;
};

// Values (nanoseconds) in buckets of at most 1/32 of their size.
class Histogram {
 public:
  void add(std::uint64_t value);
  std::uint64_t count() const { return count_; }
  std::uint64_t min() const { return count_ == 0 ? 0 : min_; }
  std::uint64_t max() const { return max_; }
  double mean() const { return count_ == 0 ? 0 : static_cast<double>(sum_) / count_as_double(); }
  // The value that `fraction` (0 to 1) of all values do not exceed; the upper end of its bucket,
  // but never more than max(). 0 if there is none.
  std::uint64_t quantile(double fraction) const;

 private:
  static constexpr unsigned kSubBits = 5;
  static constexpr std::size_t kBuckets = (64 - kSubBits + 1) << kSubBits;
  static std::size_t bucket(std::uint64_t value);
  static std::uint64_t upper_end(std::size_t bucket);
  double count_as_double() const { return static_cast<double>(count_); }

  std::vector<std::uint64_t> buckets_ = std::vector<std::uint64_t>(kBuckets);
  std::uint64_t count_ = 0;
  std::uint64_t sum_ = 0;
  std::uint64_t min_ = UINT64_MAX;
  std::uint64_t max_ = 0;
};

}  // namespace vswitch::guest
