#include "dataplane/frame/memory_access.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dataplane/frame/frame.h"

namespace vswitch {
namespace {

// Every size around the switches between the ways to copy, at every alignment, and nothing beside.
TEST(CopyBytes, EverySizeExactly) {
  std::vector<std::byte> from(400);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 11 + 3);
  for (std::size_t size = 0; size <= 300; ++size) {
    for (std::size_t shift = 0; shift < 16; shift += 3) {
      for (const auto copy : {copy_bytes, copy_header}) {
        std::vector<std::byte> to(400, std::byte{0xaa});
        copy(to.data() + 16 + shift, from.data() + shift, size);
        for (std::size_t i = 0; i < to.size(); ++i) {
          const bool inside = i >= 16 + shift && i < 16 + shift + size;
          ASSERT_EQ(to[i], inside ? from[i - 16] : std::byte{0xaa})
              << "size " << size << " shift " << shift << " byte " << i;
        }
      }
    }
  }
}

TEST(CopyBytes, LargeSizes) {
  for (const std::size_t size : {1499, 1500, 9000, 65535}) {
    std::vector<std::byte> from(size);
    for (std::size_t i = 0; i < size; ++i) from[i] = static_cast<std::byte>(i * 7);
    std::vector<std::byte> to(size + 1, std::byte{0xaa});
    copy_bytes(to.data(), from.data(), size);
    EXPECT_EQ(to.back(), std::byte{0xaa});
    to.pop_back();
    EXPECT_EQ(to, from);
  }
}

TEST(FrameBurst, PrivateHeadersHaveRoomInFrontAndDoNotMeet) {
  const auto burst = std::make_unique<FrameBurst>();
  for (std::uint32_t i = 0; i < kBurstFrames; ++i) {
    EXPECT_EQ(burst->header_of(i) - burst->headers[i].data(), 128);
    EXPECT_EQ(burst->headers[i].data() + burst->headers[i].size() - burst->header_of(i), 128);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(burst->header_of(i)) % 64, 0U);
  }
}

TEST(Frame, BytesAreHeaderAndPayload) {
  Frame frame;
  frame.header_bytes = 128;
  frame.payload_bytes = 1386;
  EXPECT_EQ(frame.bytes(), 1514U);
}

}  // namespace
}  // namespace vswitch
