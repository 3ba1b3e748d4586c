// Replays the files of a directory through a target and asserts that together they reach all of its
// outcomes: acceptance and every reason to refuse.
//
// Usage: fuzz_corpus_NAME DIRECTORY|FILE [-v]. Exit status 0: all was reached; 1: something is
// missing, which is then named; 2: wrong usage or nothing to replay. A single file is only
// replayed, and what it reached is printed.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/target.h"

namespace vswitch::fuzz {
namespace {

std::vector<std::uint8_t> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int replay(const std::filesystem::path& place, bool verbose) {
  std::vector<std::filesystem::path> files;
  const bool directory = std::filesystem::is_directory(place);
  if (directory) {
    for (const auto& entry : std::filesystem::directory_iterator(place)) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  } else if (std::filesystem::is_regular_file(place)) {
    files.push_back(place);
  }
  if (files.empty()) {
    std::fprintf(stderr, "nothing to replay in %s\n", place.c_str());
    return 2;
  }
  Report report(kTarget.outcomes.size());
  for (const auto& path : files) {
    // Said first: a broken invariant ends the process.
    if (verbose) std::fprintf(stderr, "%s\n", path.c_str());
    kTarget.run(read_file(path), report);
  }
  std::size_t missing = 0;
  for (std::size_t i = 0; i < kTarget.outcomes.size(); ++i) {
    const std::string_view name = kTarget.outcomes[i];
    std::printf("%10llu  %.*s\n", static_cast<unsigned long long>(report.count(i)),
                static_cast<int>(name.size()), name.data());
    if (report.count(i) == 0) ++missing;
  }
  std::printf("%zu files, %zu of %zu outcomes reached\n", files.size(),
              kTarget.outcomes.size() - missing, kTarget.outcomes.size());
  if (!directory || missing == 0) return 0;
  std::fprintf(stderr, "the corpus of %.*s does not reach:\n",
               static_cast<int>(kTarget.name.size()), kTarget.name.data());
  for (std::size_t i = 0; i < kTarget.outcomes.size(); ++i) {
    const std::string_view name = kTarget.outcomes[i];
    if (report.count(i) == 0) {
      std::fprintf(stderr, "  %.*s\n", static_cast<int>(name.size()), name.data());
    }
  }
  return 1;
}

}  // namespace
}  // namespace vswitch::fuzz

int main(int argc, char** argv) {
  const bool verbose = argc == 3 && std::string_view(argv[2]) == "-v";
  if (argc != 2 && !verbose) {
    std::fprintf(stderr, "usage: %s DIRECTORY|FILE [-v]\n", argv[0]);
    return 2;
  }
  return vswitch::fuzz::replay(argv[1], verbose);
}
