// What both ring layouts share: the rule for event indices, and accesses that leave equal values
// alone.
#include "dataplane/virtq/ring_access.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <initializer_list>

namespace vswitch::virtq {
namespace {

// 2.7.7.2, as literal samples.
TEST(RingAccessTest, NeedEvent) {
  EXPECT_TRUE(need_event(10, 8, 14));
  EXPECT_TRUE(need_event(0xfffe, 0xfffc, 2));
  EXPECT_FALSE(need_event(20, 8, 14));
  EXPECT_FALSE(need_event(14, 8, 14));
}

// Every event index against the indices that were really passed, at places around the wrap.
TEST(RingAccessTest, NeedEventIfItsIndexWasPassed) {
  for (const std::uint16_t from :
       std::initializer_list<std::uint16_t>{0, 1, 0x7ffe, 0x8000, 0xfff0, 0xffff}) {
    for (std::uint32_t moved = 0; moved <= 40; ++moved) {
      const auto to = static_cast<std::uint16_t>(from + moved);
      for (std::uint32_t event = 0; event < 0x10000; ++event) {
        const bool passed = static_cast<std::uint16_t>(event - from) < moved;
        ASSERT_EQ(need_event(static_cast<std::uint16_t>(event), from, to), passed)
            << event << " " << from << " " << to;
      }
    }
  }
}

// A page that cannot be written shows whether a store happened.
TEST(RingAccessTest, EqualValuesAreNotStored) {
  void* const page =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& field = *static_cast<std::uint16_t*>(page);
  store_if_different(field, std::uint16_t{0x1234});
  EXPECT_EQ(field, 0x1234);
  ASSERT_EQ(mprotect(page, 4096, PROT_READ), 0);
  store_if_different(field, std::uint16_t{0x1234});
  EXPECT_EQ(load_relaxed(field), 0x1234);
  EXPECT_EQ(load_acquire(field), 0x1234);
  munmap(page, 4096);
}

}  // namespace
}  // namespace vswitch::virtq
