// Tables of memory regions as a front-end may send them, and the translation of addresses.
#include "dataplane/guest_memory/guest_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

namespace vswitch {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kTop = 0xffffffffffffffff;

UniqueFd memory_file(std::uint64_t size, unsigned flags = 0) {
  UniqueFd file(memfd_create("guest", MFD_CLOEXEC | flags));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(size)), 0);
  return file;
}

RegionDescription region(std::uint64_t guest, std::uint64_t size, std::uint64_t user,
                         std::uint64_t offset = 0) {
  return {guest, size, user, offset, memory_file(offset + size)};
}

absl::StatusOr<std::shared_ptr<const GuestMemory>> map_one(RegionDescription description) {
  std::vector<RegionDescription> descriptions;
  descriptions.push_back(std::move(description));
  return GuestMemory::map(std::move(descriptions));
}
absl::StatusOr<std::shared_ptr<const GuestMemory>> map_two(RegionDescription a,
                                                           RegionDescription b) {
  std::vector<RegionDescription> descriptions;
  descriptions.push_back(std::move(a));
  descriptions.push_back(std::move(b));
  return GuestMemory::map(std::move(descriptions));
}

void expect_invalid(const absl::StatusOr<std::shared_ptr<const GuestMemory>>& memory,
                    const char* text) {
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kInvalidArgument) << memory.status();
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr(text));
}

std::size_t mappings_of_guests() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:guest") != line.npos;
  return count;
}

TEST(GuestMemoryMap, ShowsTheFileFromItsOffset) {
  RegionDescription description = region(0x1000, 2 * kPage, 0x7f0000000000, kPage);
  const int file = description.file.get();
  const std::uint8_t bytes[] = {1, 2, 3};
  ASSERT_EQ(pwrite(file, bytes, 3, kPage), 3);
  const UniqueFd kept(dup(file));
  const auto memory = map_one(std::move(description)).value();
  ASSERT_EQ(memory->regions().size(), 1U);
  const Region& mapped = memory->regions()[0];
  EXPECT_EQ(mapped.guest_address, 0x1000U);
  EXPECT_EQ(mapped.size, 2 * kPage);
  EXPECT_EQ(mapped.user_address, 0x7f0000000000U);
  EXPECT_EQ(memory->total_bytes(), 2 * kPage);
  EXPECT_EQ(std::memcmp(mapped.host, bytes, 3), 0);
  mapped.host[2 * kPage - 1] = std::byte{9};
  std::uint8_t last = 0;
  ASSERT_EQ(pread(kept.get(), &last, 1, 3 * kPage - 1), 1);
  EXPECT_EQ(last, 9);
  EXPECT_FALSE(memory->vanished());
}

// vhost-user front-ends cut regions where they like (e.g. around the VGA hole).
TEST(GuestMemoryMap, OffsetAndSizeNeedNotBePages) {
  RegionDescription description = region(0xa0000, 1000, 0x7f00000a0000, 12345);
  const std::uint8_t byte = 7;
  ASSERT_EQ(pwrite(description.file.get(), &byte, 1, 12345), 1);
  const auto memory = map_one(std::move(description)).value();
  EXPECT_EQ(memory->regions()[0].host[0], std::byte{7});
}

TEST(GuestMemoryMap, UnmapsAndClosesEverything) {
  const std::size_t before = mappings_of_guests();
  const int probe = dup(0);
  close(probe);
  {
    const auto memory = map_two(region(0, kPage, 0), region(kPage, kPage, kPage)).value();
    EXPECT_EQ(mappings_of_guests(), before + 2);
    EXPECT_FALSE(map_two(region(0, kPage, 0), region(0, kPage, kPage)).ok());
    EXPECT_EQ(mappings_of_guests(), before + 2);
  }
  EXPECT_EQ(mappings_of_guests(), before);
  const int again = dup(0);
  EXPECT_EQ(again, probe);  // no descriptor was left open
  close(again);
}

TEST(GuestMemoryMap, EmptyRegion) {
  expect_invalid(map_one({0x1000, 0, 0x1000, 0, memory_file(kPage)}), "empty");
}

TEST(GuestMemoryMap, GuestAddressWraps) {
  expect_invalid(map_one(region(kTop - kPage + 2, kPage, 0)), "wraps");
}

TEST(GuestMemoryMap, UserAddressWraps) {
  expect_invalid(map_one(region(0, kPage, kTop - 10)), "wraps");
}

TEST(GuestMemoryMap, FileOffsetWraps) {
  expect_invalid(map_one({0, kPage, 0, kTop - 10, memory_file(kPage)}), "wraps");
}

TEST(GuestMemoryMap, SizeIsTheWholeAddressSpace) {
  EXPECT_EQ(map_one({0, kTop, 0, 0, memory_file(kPage)}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GuestMemoryMap, RegionsOverlapByOneByteForTheGuest) {
  expect_invalid(map_two(region(0, kPage, 0), region(kPage - 1, kPage, 0x100000)), "overlap");
  expect_invalid(map_two(region(kPage, kPage, 0), region(1, kPage, 0x100000)), "overlap");
}

TEST(GuestMemoryMap, RegionInsideAnother) {
  expect_invalid(map_two(region(0, 8 * kPage, 0), region(kPage, kPage, 0x100000)), "overlap");
  expect_invalid(map_two(region(kPage, kPage, 0), region(0, 8 * kPage, 0x100000)), "overlap");
}

TEST(GuestMemoryMap, RegionsOverlapForTheFrontEnd) {
  expect_invalid(map_two(region(0, kPage, 0x100000), region(0x10000, kPage, 0x100000 + kPage - 1)),
                 "overlap");
}

TEST(GuestMemoryMap, AdjacentRegionsAreFine) {
  EXPECT_TRUE(map_two(region(0, kPage, 0), region(kPage, kPage, kPage)).ok());
}

TEST(GuestMemoryMap, OneByteBehindTheEndOfTheFile) {
  expect_invalid(map_one({0, kPage + 1, 0, 0, memory_file(kPage)}), "ends at byte 4097");
  expect_invalid(map_one({0, kPage, 0, 1, memory_file(kPage)}), "ends at byte 4097");
  expect_invalid(map_one({0, kPage, 0, 0x7fffffffffff0000, memory_file(kPage)}), "ends at byte");
}

TEST(GuestMemoryMap, RegularFileOnDisk) {
  std::string path = testing::TempDir() + "guest_memory_test.XXXXXX";
  UniqueFd file(mkostemp(path.data(), O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  unlink(path.c_str());
  ASSERT_EQ(ftruncate(file.get(), kPage), 0);
  struct statfs file_system {};
  ASSERT_EQ(fstatfs(file.get(), &file_system), 0);
  constexpr long kTmpfs = 0x01021994;
  if (file_system.f_type == kTmpfs) {
    // This machine keeps its temporary files in memory, where they are as good as a memfd.
    EXPECT_TRUE(map_one({0, kPage, 0, 0, std::move(file)}).ok());
    return;
  }
  expect_invalid(map_one({0, kPage, 0, 0, std::move(file)}), "neither memfd");
}

TEST(GuestMemoryMap, ProcFile) {
  UniqueFd file(open("/proc/self/mem", O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  expect_invalid(map_one({0, kPage, 0, 0, std::move(file)}), "neither memfd");
}

TEST(GuestMemoryMap, Pipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd other(ends[1]);
  expect_invalid(map_one({0, kPage, 0, 0, UniqueFd(ends[0])}), "neither memfd");
}

// Devices live in a tmpfs on most systems and have no size.
TEST(GuestMemoryMap, DeviceFile) {
  UniqueFd file(open("/dev/zero", O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  EXPECT_EQ(map_one({0, kPage, 0, 0, std::move(file)}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GuestMemoryMap, NoFile) { EXPECT_FALSE(map_one({0, kPage, 0, 0, UniqueFd()}).ok()); }

TEST(GuestMemoryMap, FileThatCannotBeWritten) {
  UniqueFd file = memory_file(kPage, MFD_ALLOW_SEALING);
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_FALSE(map_one({0, kPage, 0, 0, std::move(file)}).ok());
}

class TranslatorTest : public testing::Test {
 protected:
  TranslatorTest() : arena_{segments_, 0, 4} {
    std::vector<RegionDescription> descriptions;
    // Not in the order of their addresses; 0x3000 and 0x5000 adjoin, 0x1000 stands alone.
    descriptions.push_back(region(0x5000, 0x1000, 0x75000));
    descriptions.push_back(region(0x1000, 0x1000, 0x71000));
    descriptions.push_back(region(0x3000, 0x2000, 0x73000));
    memory_ = GuestMemory::map(std::move(descriptions)).value();
    translator_.emplace(*memory_);
  }
  std::byte* host(std::uint64_t guest) const {
    const Region* found = memory_->find(guest);
    return found->host + (guest - found->guest_address);
  }
  Translator::Result append(std::uint64_t address, std::uint32_t length) {
    arena_.count = 0;
    return translator_->append(address, length, arena_);
  }

  std::shared_ptr<const GuestMemory> memory_;
  std::optional<Translator> translator_;
  Segment segments_[4];
  SegmentArena arena_;
};

TEST_F(TranslatorTest, FindsTheRegionOfEachEdge) {
  EXPECT_EQ(memory_->find(0xfff), nullptr);
  EXPECT_EQ(memory_->find(0x1000), &memory_->regions()[1]);
  EXPECT_EQ(memory_->find(0x1fff), &memory_->regions()[1]);
  EXPECT_EQ(memory_->find(0x2000), nullptr);
  EXPECT_EQ(memory_->find(0x4fff), &memory_->regions()[2]);
  EXPECT_EQ(memory_->find(0x5000), &memory_->regions()[0]);
  EXPECT_EQ(memory_->find(0x6000), nullptr);
  EXPECT_EQ(memory_->find(kTop), nullptr);
}

TEST_F(TranslatorTest, WholeRegion) {
  ASSERT_EQ(append(0x1000, 0x1000), Translator::Result::kOk);
  ASSERT_EQ(arena_.count, 1U);
  EXPECT_EQ(segments_[0].data, memory_->regions()[1].host);
  EXPECT_EQ(segments_[0].length, 0x1000U);
}

TEST_F(TranslatorTest, EveryByteIsChecked) {
  EXPECT_EQ(append(0x1fff, 1), Translator::Result::kOk);
  EXPECT_EQ(append(0x1fff, 2), Translator::Result::kUnmapped);
  EXPECT_EQ(append(0xfff, 2), Translator::Result::kUnmapped);
  EXPECT_EQ(append(0x2000, 1), Translator::Result::kUnmapped);
  EXPECT_EQ(append(0x1000, 0xffffffff), Translator::Result::kUnmapped);
  EXPECT_EQ(append(0x5fff, 2), Translator::Result::kUnmapped);
  EXPECT_EQ(append(0x1800, 0x2000), Translator::Result::kUnmapped);  // a hole in the middle
}

// The answer is the same whatever the last hit was.
TEST_F(TranslatorTest, TheLastHitDoesNotMatter) {
  for (const std::uint64_t before : {0x1000, 0x3000, 0x5000}) {
    EXPECT_EQ(append(before, 16), Translator::Result::kOk);
    EXPECT_EQ(append(0x1ff0, 17), Translator::Result::kUnmapped);
    EXPECT_EQ(append(before, 16), Translator::Result::kOk);
    EXPECT_EQ(append(0xff0, 32), Translator::Result::kUnmapped);
    EXPECT_EQ(append(before, 16), Translator::Result::kOk);
    ASSERT_EQ(append(0x4ff0, 32), Translator::Result::kOk);
    ASSERT_EQ(arena_.count, 2U);
    EXPECT_EQ(segments_[0].data, host(0x4ff0));
    EXPECT_EQ(segments_[0].length, 16U);
    EXPECT_EQ(segments_[1].data, host(0x5000));
    EXPECT_EQ(segments_[1].length, 16U);
  }
}

TEST_F(TranslatorTest, RangeThatWraps) {
  EXPECT_EQ(append(kTop, 2), Translator::Result::kUnmapped);
  EXPECT_EQ(append(kTop - 0xfff, 0x1001), Translator::Result::kUnmapped);
  EXPECT_EQ(append(kTop, 1), Translator::Result::kUnmapped);
}

TEST_F(TranslatorTest, NoBytesNeedNoAddress) {
  EXPECT_EQ(append(0xdead0000, 0), Translator::Result::kOk);
  EXPECT_EQ(arena_.count, 0U);
  EXPECT_EQ(append(0x1000, 0), Translator::Result::kOk);
  EXPECT_EQ(arena_.count, 0U);
}

TEST_F(TranslatorTest, FullArena) {
  SegmentArena one{segments_, 0, 1};
  EXPECT_EQ(translator_->append(0x1000, 8, one), Translator::Result::kOk);
  EXPECT_EQ(translator_->append(0x1000, 8, one), Translator::Result::kArenaFull);
  EXPECT_EQ(translator_->append(0x1000, 0, one), Translator::Result::kOk);
  EXPECT_EQ(one.count, 1U);
  SegmentArena crossing{segments_, 0, 1};
  EXPECT_EQ(translator_->append(0x4ff0, 32, crossing), Translator::Result::kArenaFull);
}

TEST_F(TranslatorTest, UserAddressesWithinOneRegion) {
  EXPECT_EQ(memory_->at_user_address(0x71000, 0x1000), host(0x1000));
  EXPECT_EQ(memory_->at_user_address(0x71fff, 1), host(0x1fff));
  EXPECT_EQ(memory_->at_user_address(0x71fff, 2), nullptr);
  EXPECT_EQ(memory_->at_user_address(0x70fff, 1), nullptr);
  EXPECT_EQ(memory_->at_user_address(0x71000, 0x1001), nullptr);
  EXPECT_EQ(memory_->at_user_address(0x71000, kTop), nullptr);
  // Rings must be contiguous in our addresses: adjoining regions do not help.
  EXPECT_EQ(memory_->at_user_address(0x74ff0, 32), nullptr);
  EXPECT_EQ(memory_->at_user_address(kTop, 2), nullptr);
}

}  // namespace
}  // namespace vswitch
