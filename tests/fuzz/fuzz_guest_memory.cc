// Guest memory: tables of arbitrary regions, one after the other, and arbitrary ranges translated
// in each, all compared with a model that looks at one byte after the other.
//
// Source of the rules: guest_memory.h and vhost-user.rst, "Memory regions description".
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dataplane/guest_memory/guest_memory.h"
#include "dataplane/guest_memory/memory_fault.h"
#include "tests/fuzz/target.h"

namespace vswitch::fuzz {
namespace {

#define OUTCOMES(X)                                             \
  X(kMapped, "table mapped")                                    \
  X(kMappedNone, "table without regions mapped")                \
  X(kEmpty, "refused: empty region")                            \
  X(kGuestWraps, "refused: guest address wraps")                \
  X(kUserWraps, "refused: user address wraps")                  \
  X(kFileWraps, "refused: file offset wraps")                   \
  X(kGuestOverlap, "refused: guest addresses overlap")          \
  X(kUserOverlap, "refused: user addresses overlap")            \
  X(kTooLarge, "refused: more than 4 TiB")                      \
  X(kNotMemory, "refused: device file")                         \
  X(kNoFile, "refused: no file at all")                         \
  X(kBeyondFile, "refused: beyond the end of the file")         \
  X(kMmapFails, "refused: cannot be mapped")                    \
  X(kOnePiece, "translated: one piece")                         \
  X(kSeveralPieces, "translated: several adjoining regions")    \
  X(kSeveralTables, "translated: in a table that was replaced") \
  X(kNoBytes, "translated: zero bytes")                         \
  X(kUnmapped, "kUnmapped: first byte")                         \
  X(kUnmappedLater, "kUnmapped: a later byte")                  \
  X(kRangeWraps, "kUnmapped: the range wraps")                  \
  X(kArenaFull, "kArenaFull: no room at all")                   \
  X(kArenaFullLater, "kArenaFull: no room for a later piece")   \
  X(kUserAddress, "user address found")                         \
  X(kNoUserAddress, "user address not found")                   \
  X(kVanished, "memory vanished and read as zeros")

enum class Outcome {
#define X(name, text) name,
  OUTCOMES(X)
#undef X
};
constexpr std::string_view kOutcomes[] = {
#define X(name, text) text,
    OUTCOMES(X)
#undef X
};

constexpr std::uint64_t kTop = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kFileBytes = 0x8000;
constexpr std::uint64_t kOddFileBytes = 0x2345;

// A byte that depends on its place in the file, so that a translation to a wrong place shows.
std::uint8_t file_byte(std::uint64_t offset) {
  return static_cast<std::uint8_t>((offset * 0x9e3779b97f4a7c15) >> 56);
}

// The files that regions lie in; made once.
class Files {
 public:
  enum Kind : unsigned { kPlain, kOdd, kSparse, kDevice, kNone, kCount };

  Files() {
    for (const Kind kind : {kPlain, kOdd}) {
      std::vector<std::uint8_t> bytes(size(kind));
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = file_byte(i);
      files_[kind].reset(memfd_create("fuzz", MFD_CLOEXEC));
      FUZZ_CHECK(write(files_[kind].get(), bytes.data(), bytes.size()) ==
                 static_cast<ssize_t>(bytes.size()));
    }
    files_[kSparse].reset(memfd_create("fuzz", MFD_CLOEXEC));
    FUZZ_CHECK(ftruncate(files_[kSparse].get(), std::numeric_limits<off_t>::max()) == 0);
    files_[kDevice].reset(open("/dev/zero", O_RDWR | O_CLOEXEC));
  }

  static std::uint64_t size(Kind kind) {
    switch (kind) {
      case kPlain:
        return kFileBytes;
      case kOdd:
        return kOddFileBytes;
      case kSparse:
        return std::numeric_limits<off_t>::max();
      default:
        return 0;
    }
  }
  // The file's bytes are those of file_byte(); the sparse file's are better not touched.
  static bool has_content(Kind kind) { return kind == kPlain || kind == kOdd; }

  UniqueFd duplicate(Kind kind) const {
    return kind == kNone ? UniqueFd() : UniqueFd(dup(files_[kind].get()));
  }

 private:
  std::array<UniqueFd, kCount> files_;
};

struct ModelRegion {
  std::uint64_t guest;
  std::uint64_t size;
  std::uint64_t user;
  std::uint64_t offset;
  Files::Kind file;
};

// One table as described, and what became of it.
struct Table {
  std::vector<ModelRegion> model;
  std::shared_ptr<const GuestMemory> memory;
  std::optional<Translator> translator;
};

bool wraps(std::uint64_t start, std::uint64_t size) { return size > kTop - start; }

bool meet(std::uint64_t a, std::uint64_t size_a, std::uint64_t b, std::uint64_t size_b) {
  // Neither wraps. The last byte of each against the first of the other.
  return a <= b + (size_b - 1) && b <= a + (size_a - 1);
}

// Why a table must be refused; nothing: it must be mapped. The first fault decides, region by
// region, but the total is looked at before all else.
std::optional<Outcome> judge(const std::vector<ModelRegion>& regions) {
  std::uint64_t total = 0;
  for (const ModelRegion& region : regions) {
    if (wraps(total, region.size) || total + region.size > GuestMemory::kMaxBytes) {
      return Outcome::kTooLarge;
    }
    total += region.size;
  }
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const ModelRegion& r = regions[i];
    if (r.size == 0) return Outcome::kEmpty;
    if (wraps(r.guest, r.size)) return Outcome::kGuestWraps;
    if (wraps(r.user, r.size)) return Outcome::kUserWraps;
    if (wraps(r.offset, r.size)) return Outcome::kFileWraps;
    for (std::size_t k = 0; k < i; ++k) {
      if (meet(r.guest, r.size, regions[k].guest, regions[k].size)) return Outcome::kGuestOverlap;
      if (meet(r.user, r.size, regions[k].user, regions[k].size)) return Outcome::kUserOverlap;
    }
    if (r.file == Files::kDevice) return Outcome::kNotMemory;
    if (r.file == Files::kNone) return Outcome::kNoFile;
    if (r.offset + r.size > Files::size(r.file)) return Outcome::kBeyondFile;
    // The last page of the largest possible file ends beyond what an offset can express.
    if (r.offset + r.size > Files::size(Files::kSparse) / 4096 * 4096) return Outcome::kMmapFails;
  }
  return std::nullopt;
}

const char* message_of(Outcome refusal) {
  switch (refusal) {
    case Outcome::kEmpty:
      return "empty";
    case Outcome::kGuestWraps:
    case Outcome::kUserWraps:
    case Outcome::kFileWraps:
      return "wraps";
    case Outcome::kGuestOverlap:
    case Outcome::kUserOverlap:
      return "overlap";
    case Outcome::kTooLarge:
      return "4 TiB";
    case Outcome::kNotMemory:
    case Outcome::kNoFile:
      return "neither memfd";
    case Outcome::kBeyondFile:
      return "of a file of";
    default:
      return "cannot map";
  }
}

class Scenario {
 public:
  Scenario(std::span<const std::uint8_t> input, Report& report) : script_(input), report_(report) {}

  void run() {
    // Tables are cheap to ask for and dear to map.
    for (int steps = 0; !script_.done() && steps < 64; ++steps) {
      const std::uint8_t step = script_.u8();
      switch (step % 8) {
        case 0:
          new_table();
          break;
        case 1:
          look_up_user(current_);
          break;
        case 2:
          if (step == 0x82) vanish();
          break;
        case 3:
          if (previous_.memory != nullptr) translate(previous_, true);
          break;
        default:
          if (current_.memory != nullptr) translate(current_, false);
      }
    }
  }

 private:
  static const Files& files() {
    static const Files files;
    return files;
  }

  // Mostly small numbers that can meet each other or lie at the edge of a region, sometimes the end
  // of the address space, sometimes anything.
  std::uint64_t address() {
    const std::uint8_t kind = script_.u8();
    if (kind >= 0x80 && kind < 0xc0 && !current_.model.empty()) {
      const ModelRegion& region = current_.model[kind % current_.model.size()];
      const std::uint64_t edge = (kind & 0x20) != 0 ? region.size : 0;
      return region.guest + edge + script_.u8() - 0x80;
    }
    if (kind < 0xc0) return std::uint64_t{kind} << 8 | script_.u8();
    if (kind < 0xf0) return kTop - script_.u16();
    return script_.u64();
  }
  std::uint64_t length() {
    const std::uint8_t kind = script_.u8();
    if (kind < 0x80) return kind;
    if (kind < 0xf0) return script_.u16();
    return script_.u64();
  }

  void new_table() {
    Table table;
    const unsigned count = script_.u8() % 9;
    std::vector<RegionDescription> descriptions;
    for (unsigned i = 0; i < count; ++i) {
      ModelRegion region{};
      region.guest = address();
      region.size = length();
      region.user = address();
      // Half of them adjoin the one before.
      const std::uint8_t kind = script_.u8();
      if (i != 0 && (kind & 1) != 0) {
        region.guest = table.model.back().guest + table.model.back().size;
      }
      if (i != 0 && (kind & 2) != 0) {
        region.user = table.model.back().user + table.model.back().size;
      }
      region.file = static_cast<Files::Kind>((kind >> 2 & 0x1f) % Files::kCount);
      region.offset = (kind & 0x80) != 0 ? script_.u64() : script_.u16() % kFileBytes;
      table.model.push_back(region);
      descriptions.push_back(
          {region.guest, region.size, region.user, region.offset, files().duplicate(region.file)});
    }
    const std::optional<Outcome> refusal = judge(table.model);
    auto memory = GuestMemory::map(std::move(descriptions));
    if (refusal) {
      report_.reach(*refusal);
      FUZZ_CHECK(!memory.ok());
      FUZZ_CHECK(memory.status().message().find(message_of(*refusal)) != std::string::npos);
      return;  // the table in use stays in use
    }
    FUZZ_CHECK(memory.ok());
    report_.reach(count == 0 ? Outcome::kMappedNone : Outcome::kMapped);
    table.memory = *std::move(memory);
    check_regions(table);
    previous_ = std::move(current_);
    current_ = std::move(table);
    // Only now: they point to the memory, which does not move, but belong to it.
    current_.translator.emplace(*current_.memory);
  }

  static void check_regions(const Table& table) {
    FUZZ_CHECK(table.memory->regions().size() == table.model.size());
    FUZZ_CHECK(!table.memory->vanished());
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < table.model.size(); ++i) {
      const ModelRegion& want = table.model[i];
      const Region& have = table.memory->regions()[i];
      FUZZ_CHECK(have.guest_address == want.guest && have.size == want.size &&
                 have.user_address == want.user && have.host != nullptr);
      total += want.size;
      FUZZ_CHECK(table.memory->find(want.guest) == &have);
      FUZZ_CHECK(table.memory->find(want.guest + (want.size - 1)) == &have);
      if (!Files::has_content(want.file)) continue;
      for (std::uint64_t k = 0; k < want.size; ++k) {
        FUZZ_CHECK(static_cast<std::uint8_t>(have.host[k]) == file_byte(want.offset + k));
      }
    }
    FUZZ_CHECK(table.memory->total_bytes() == total);
  }

  // Index of the model's region that holds a byte.
  static std::optional<std::size_t> region_of(const Table& table, std::uint64_t address) {
    for (std::size_t i = 0; i < table.model.size(); ++i) {
      const ModelRegion& region = table.model[i];
      if (address >= region.guest && address - region.guest < region.size) return i;
    }
    return std::nullopt;
  }

  void translate(Table& table, bool replaced) {
    const std::uint64_t start = address();
    const auto bytes = static_cast<std::uint32_t>(length());
    std::array<Segment, 8> segments;
    const std::uint8_t room = script_.u8();
    SegmentArena arena{segments.data(), 0, static_cast<std::uint32_t>(segments.size())};
    arena.capacity = room % 9;
    arena.count = arena.capacity == 0 ? 0 : (room / 9) % (arena.capacity + 1);
    const std::uint32_t before = arena.count;
    const Translator::Result result = table.translator->append(start, bytes, arena);
    FUZZ_CHECK(arena.count >= before && arena.count <= arena.capacity);

    if (bytes == 0) {
      FUZZ_CHECK(result == Translator::Result::kOk && arena.count == before);
      report_.reach(Outcome::kNoBytes);
      return;
    }
    if (wraps(start, bytes)) {
      FUZZ_CHECK(result == Translator::Result::kUnmapped && arena.count == before);
      report_.reach(Outcome::kRangeWraps);
      return;
    }
    // Byte by byte; only the inside of a large region is skipped.
    std::uint32_t piece = before;
    std::uint32_t done = 0;
    while (done < bytes) {
      const std::optional<std::size_t> index = region_of(table, start + done);
      if (!index) {
        FUZZ_CHECK(result == Translator::Result::kUnmapped);
        report_.reach(done == 0 ? Outcome::kUnmapped : Outcome::kUnmappedLater);
        return;
      }
      if (piece == arena.capacity) {
        FUZZ_CHECK(result == Translator::Result::kArenaFull);
        report_.reach(done == 0 ? Outcome::kArenaFull : Outcome::kArenaFullLater);
        return;
      }
      const ModelRegion& region = table.model[*index];
      FUZZ_CHECK(piece < arena.count);
      const Segment& segment = segments[piece++];
      const std::uint64_t offset = start + done - region.guest;
      FUZZ_CHECK(segment.data == table.memory->regions()[*index].host + offset);
      std::uint32_t length_here = 0;
      while (done < bytes && offset + length_here < region.size) {
        if (Files::has_content(region.file)) {
          FUZZ_CHECK(static_cast<std::uint8_t>(segment.data[length_here]) ==
                     file_byte(region.offset + offset + length_here));
        } else {
          const std::uint64_t rest = region.size - offset - length_here;
          const std::uint64_t skipped = std::min<std::uint64_t>(rest, bytes - done) - 1;
          done += static_cast<std::uint32_t>(skipped);
          length_here += static_cast<std::uint32_t>(skipped);
        }
        ++done;
        ++length_here;
      }
      FUZZ_CHECK(segment.length == length_here);
    }
    FUZZ_CHECK(result == Translator::Result::kOk && piece == arena.count);
    report_.reach(piece - before == 1 ? Outcome::kOnePiece : Outcome::kSeveralPieces);
    if (replaced) report_.reach(Outcome::kSeveralTables);
  }

  void look_up_user(const Table& table) {
    const std::uint64_t start = address();
    const std::uint64_t bytes = length();
    if (table.memory == nullptr) return;
    const std::byte* const found = table.memory->at_user_address(start, bytes);
    const std::byte* expected = nullptr;
    for (std::size_t i = 0; i < table.model.size(); ++i) {
      const ModelRegion& region = table.model[i];
      // All bytes within, the first one in any case.
      if (start < region.user || start - region.user >= region.size) continue;
      if (bytes > region.size - (start - region.user)) continue;
      expected = table.memory->regions()[i].host + (start - region.user);
    }
    FUZZ_CHECK(found == expected);
    report_.reach(found != nullptr ? Outcome::kUserAddress : Outcome::kNoUserAddress);
  }

  // A file that is cut short under its mapping.
  void vanish() {
    FUZZ_CHECK(install_memory_fault_handler().ok());
    UniqueFd file(memfd_create("fuzz", MFD_CLOEXEC));
    const std::uint64_t size = 1 + script_.u16() % 0x3000;
    FUZZ_CHECK(ftruncate(file.get(), static_cast<off_t>(size)) == 0);
    std::vector<RegionDescription> descriptions;
    descriptions.push_back({0, size, 0, 0, UniqueFd(dup(file.get()))});
    const auto memory = GuestMemory::map(std::move(descriptions));
    FUZZ_CHECK(memory.ok());
    volatile std::byte* const host = (*memory)->regions()[0].host;
    host[size - 1] = std::byte{1};
    FUZZ_CHECK(!(*memory)->vanished());
    FUZZ_CHECK(ftruncate(file.get(), 0) == 0);
    FUZZ_CHECK(host[size - 1] == std::byte{0});
    FUZZ_CHECK((*memory)->vanished());
    if (current_.memory != nullptr) FUZZ_CHECK(!current_.memory->vanished());
    report_.reach(Outcome::kVanished);
  }

  Script script_;
  Report& report_;
  Table current_;
  Table previous_;
};

}  // namespace

const Target kTarget = {
    "guest_memory", kOutcomes,
    [](std::span<const std::uint8_t> input, Report& report) { Scenario(input, report).run(); }};

}  // namespace vswitch::fuzz
