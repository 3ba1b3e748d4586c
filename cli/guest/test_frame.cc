#include "cli/guest/test_frame.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace vswitch::guest {
namespace {

constexpr std::size_t kOffsetMagic = 14;
constexpr std::size_t kOffsetKind = 18;
constexpr std::size_t kOffsetSize = 20;
constexpr std::size_t kOffsetStream = 22;
constexpr std::size_t kOffsetSequence = 30;
constexpr std::size_t kOffsetTime = 38;
constexpr std::size_t kOffsetSum = 46;

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio, odd

__extension__ using Uint128 = unsigned __int128;

template <typename T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* bytes, T value) {
  std::memcpy(bytes, &value, sizeof(T));
}

// One term of the checksum: both words matter, and so does the position of the pair.
std::uint64_t term(std::uint64_t first, std::uint64_t second, std::uint64_t position) {
  const Uint128 product = static_cast<Uint128>(first ^ (kGolden * (2 * position + 1))) *
                          (second ^ (kGolden * (2 * position + 2)));
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t changing_term(std::uint64_t sequence, std::uint64_t time) {
  return term(sequence, time, 1);
}

// All terms but changing_term().
std::uint64_t constant_terms(const std::byte* frame, std::size_t bytes) {
  std::uint64_t sum = term(load<std::uint64_t>(frame + kOffsetMagic),
                           load<std::uint64_t>(frame + kOffsetStream), 0);
  std::uint64_t position = 2;
  std::size_t offset = kTestHeaderBytes;
  for (; offset + 16 <= bytes; offset += 16) {
    sum += term(load<std::uint64_t>(frame + offset), load<std::uint64_t>(frame + offset + 8),
                position++);
  }
  if (offset < bytes) {
    std::uint64_t rest[2] = {0, 0};
    std::memcpy(rest, frame + offset, bytes - offset);
    sum += term(rest[0], rest[1], position);
  }
  return sum;
}

void store_mac(std::byte* place, MacKey mac) {
  const auto bytes = mac_bytes(mac);
  std::memcpy(place, bytes.data(), bytes.size());
}

}  // namespace

Verdict parse_frame(std::span<const std::byte> frame, Verify verify, TestHeader& header) {
  const std::byte* bytes = frame.data();
  if (frame.size() < kEthernetHeaderBytes || load_ether_type(bytes + 12) != kTestEtherType) {
    return Verdict::kForeign;
  }
  if (frame.size() < kMinFrameBytes || load<std::uint32_t>(bytes + kOffsetMagic) != kTestMagic ||
      load<std::uint16_t>(bytes + kOffsetSize) != frame.size()) {
    return Verdict::kDamaged;
  }
  const auto kind = load<std::uint16_t>(bytes + kOffsetKind);
  if (kind < static_cast<std::uint16_t>(Kind::kData) ||
      kind > static_cast<std::uint16_t>(Kind::kAck)) {
    return Verdict::kDamaged;
  }
  header.kind = static_cast<Kind>(kind);
  header.stream = load<std::uint64_t>(bytes + kOffsetStream);
  header.sequence = load<std::uint64_t>(bytes + kOffsetSequence);
  header.time = load<std::uint64_t>(bytes + kOffsetTime);
  if (verify == Verify::kFull) {
    const std::uint64_t sum =
        constant_terms(bytes, frame.size()) + changing_term(header.sequence, header.time);
    if (sum != load<std::uint64_t>(bytes + kOffsetSum)) return Verdict::kDamaged;
  }
  return Verdict::kGood;
}

FrameWriter::FrameWriter(MacKey source, MacKey destination, std::uint64_t stream,
                         std::uint32_t max_bytes, std::uint32_t buffers, Kind kind)
    : stream_(stream),
      image_(std::max(max_bytes, kMinFrameBytes)),
      sums_(image_.size() + 1),
      written_(buffers) {
  std::uint64_t state = kGolden;
  for (std::size_t i = kTestHeaderBytes; i < image_.size(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    image_[i] = static_cast<std::byte>(state >> 56);
  }
  store_mac(image_.data(), destination);
  store_mac(image_.data() + 6, source);
  store(image_.data() + 12, __builtin_bswap16(kTestEtherType));
  store(image_.data() + kOffsetMagic, kTestMagic);
  store(image_.data() + kOffsetKind, static_cast<std::uint16_t>(kind));
  store(image_.data() + kOffsetStream, stream);
}

void FrameWriter::write_whole(std::byte* place, Written& written, std::uint32_t bytes) {
  store(image_.data() + kOffsetSize, static_cast<std::uint16_t>(bytes));
  if (sums_[bytes] == 0) sums_[bytes] = constant_terms(image_.data(), bytes);
  const std::uint32_t from = std::max(written.filled, kTestHeaderBytes);
  if (bytes > from) std::memcpy(place + from, image_.data() + from, bytes - from);
  std::memcpy(place, image_.data(), kTestHeaderBytes);
  written.size = bytes;
  written.filled = std::max(written.filled, bytes);
}

void FrameWriter::write(std::byte* place, std::uint16_t buffer, std::uint32_t bytes,
                        std::uint64_t sequence, std::uint64_t time) {
  Written& written = written_[buffer];
  if (written.size != bytes) write_whole(place, written, bytes);
  store(place + kOffsetSequence, sequence);
  store(place + kOffsetTime, time);
  store(place + kOffsetSum, sums_[bytes] + changing_term(sequence, time));
}

void FrameWriter::write_control(std::byte* place, std::uint16_t buffer, MacKey destination,
                                Kind kind, std::uint64_t sequence, std::uint64_t time) {
  Written& written = written_[buffer];
  write_whole(place, written, kMinFrameBytes);
  written.size = 0;
  store_mac(place, destination);
  store(place + kOffsetKind, static_cast<std::uint16_t>(kind));
  store(place + kOffsetSequence, sequence);
  store(place + kOffsetTime, time);
  store(place + kOffsetSum, constant_terms(place, kMinFrameBytes) + changing_term(sequence, time));
}

std::uint64_t random_stream() {
  std::uint64_t stream = 0;
  if (::getrandom(&stream, sizeof(stream), 0) != sizeof(stream)) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    stream =
        kGolden * static_cast<std::uint64_t>(now.tv_nsec) + static_cast<std::uint64_t>(getpid());
  }
  return stream;
}

}  // namespace vswitch::guest
