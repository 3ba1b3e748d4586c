#include "cli/guest/accounting.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace vswitch::guest {

SequenceTracker::Arrival SequenceTracker::advance(std::uint64_t sequence) {
  if (sequence - next_ >= kWindow) {
    std::fill(seen_.begin(), seen_.end(), 0);
  } else {
    for (std::uint64_t skipped = next_; skipped < sequence; ++skipped) clear(skipped);
  }
  set(sequence);
  next_ = sequence + 1;
  ++unique_;
  return Arrival::kInOrder;
}

SequenceTracker::Arrival SequenceTracker::record(std::uint64_t sequence) {
  if (!started_) {
    started_ = true;
    lowest_ = sequence;
    next_ = sequence;
  }
  if (sequence >= next_) return advance(sequence);
  const bool remembered = next_ - sequence <= kWindow;
  if (remembered && seen(sequence)) {
    ++duplicates_;
    return Arrival::kDuplicate;
  }
  if (remembered) set(sequence);
  lowest_ = std::min(lowest_, sequence);
  ++unique_;
  ++reordered_;
  return Arrival::kReordered;
}

std::uint64_t SequenceTracker::missing() const {
  const std::uint64_t span = next_ - lowest_;
  return span > unique_ ? span - unique_ : 0;
}

Stream* StreamTable::find(std::uint64_t id, MacKey source) {
  if (last_ < streams_.size() && streams_[last_].id == id) return &streams_[last_];
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].id != id) continue;
    last_ = i;
    return &streams_[i];
  }
  if (streams_.size() == kMaxStreams) {
    ++untracked_;
    return nullptr;
  }
  last_ = streams_.size();
  Stream& stream = streams_.emplace_back();
  stream.id = id;
  stream.source = source;
  return &stream;
}

std::size_t Histogram::bucket(std::uint64_t value) {
  if (value < (std::uint64_t{1} << kSubBits)) return static_cast<std::size_t>(value);
  const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - kSubBits - 1;
  return (std::size_t{shift} << kSubBits) + static_cast<std::size_t>(value >> shift);
}

std::uint64_t Histogram::upper_end(std::size_t bucket) {
  if (bucket < (std::size_t{2} << kSubBits)) return bucket;
  const unsigned shift = static_cast<unsigned>(bucket >> kSubBits) - 1;
  const std::uint64_t top = bucket - (std::size_t{shift} << kSubBits);
  return (top << shift) + ((std::uint64_t{1} << shift) - 1);
}

void Histogram::add(std::uint64_t value) {
  ++buckets_[bucket(value)];
  ++count_;
  sum_ += value;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
}

std::uint64_t Histogram::quantile(double fraction) const {
  if (count_ == 0) return 0;
  const double exact = std::ceil(fraction * count_as_double());
  const auto rank = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(exact), 1, count_);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    below += buckets_[i];
    if (below >= rank) return std::min(upper_end(i), max_);
  }
  return max_;
}

}  // namespace vswitch::guest
