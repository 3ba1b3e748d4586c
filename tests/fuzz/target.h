// What every fuzz target is made of: a script reader over the input's bytes, a report of what was
// reached, and a check that ends the process.
//
// A target is one file that defines `kTarget`. It is linked into two programs: `fuzz_NAME`, which
// libFuzzer drives (preset fuzz), and `fuzz_corpus_NAME`, which replays the committed corpus in
// every build and asserts that all of `outcomes` were reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace vswitch::fuzz {

// Unlike assert() in every build: an input that breaks an invariant is a finding.
#define FUZZ_CHECK(condition)                                                                \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: invariant broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

// The input, read from front to back as little-endian numbers. Behind its end everything is 0.
class Script {
 public:
  explicit Script(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool done() const { return next_ >= bytes_.size(); }
  std::uint8_t u8() { return done() ? std::uint8_t{0} : bytes_[next_++]; }
  std::uint16_t u16() { return static_cast<std::uint16_t>(number(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }

 private:
  std::uint64_t number(int bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= std::uint64_t{u8()} << (8 * i);
    return value;
  }

  std::span<const std::uint8_t> bytes_;
  std::size_t next_ = 0;
};

// How often each outcome of a target (by index into its `outcomes`) was seen.
class Report {
 public:
  explicit Report(std::size_t outcomes) : counts_(outcomes) {}

  template <typename Outcome>
  void reach(Outcome outcome, std::uint64_t times = 1) {
    counts_[static_cast<std::size_t>(outcome)] += times;
  }
  std::uint64_t count(std::size_t outcome) const { return counts_[outcome]; }

 private:
  std::vector<std::uint64_t> counts_;
};

struct Target {
  std::string_view name;
  // What the corpus as a whole has to reach: acceptance and every reason to refuse.
  std::span<const std::string_view> outcomes;
  // Plays one input. Ends the process where an invariant is broken.
  void (*run)(std::span<const std::uint8_t> input, Report& report);
};

extern const Target kTarget;

}  // namespace vswitch::fuzz
