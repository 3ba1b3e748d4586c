// The header of virtio 1.2, 5.1.6, compared before it is written.
#include "dataplane/net_header/virtio_net_header.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace vswitch {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes store(Bytes place, const VirtioNetHeader& header, std::uint32_t bytes) {
  store_net_header_if_different(reinterpret_cast<std::byte*>(place.data()), header, bytes);
  return place;
}

// u8 flags, u8 gso_type, le16 hdr_len, le16 gso_size, le16 csum_start, le16 csum_offset, le16
// num_buffers.
const VirtioNetHeader kHeader{.flags = 1,
                              .gso_type = 4,
                              .header_length = 0x1234,
                              .gso_size = 0x05b4,
                              .checksum_start = 0x22,
                              .checksum_offset = 0x10,
                              .num_buffers = 0x0305};
const Bytes kLiteral{1, 4, 0x34, 0x12, 0xb4, 0x05, 0x22, 0x00, 0x10, 0x00, 0x05, 0x03};

TEST(StoreNetHeader, TwelveBytesAsSpecified) {
  EXPECT_EQ(store(Bytes(12, 0xaa), kHeader, 12), kLiteral);
}

TEST(StoreNetHeader, TenBytesLeaveTheRestAlone) {
  Bytes expected = kLiteral;
  expected[10] = expected[11] = 0xaa;
  EXPECT_EQ(store(Bytes(12, 0xaa), kHeader, 10), expected);
  // And nothing behind the tenth is touched, even read (ASan watches).
  expected.resize(10);
  EXPECT_EQ(store(Bytes(10, 0xaa), kHeader, 10), expected);
}

TEST(StoreNetHeader, EachByteThatDiffersIsRewritten) {
  for (const std::uint32_t bytes : {10u, 12u}) {
    for (std::size_t i = 0; i < bytes; ++i) {
      Bytes place = kLiteral;
      place[i] ^= 0x80;
      EXPECT_EQ(store(place, kHeader, bytes), kLiteral) << "byte " << i << " of " << bytes;
    }
  }
}

TEST(StoreNetHeader, AnyAlignment) {
  for (std::size_t shift = 0; shift < 8; ++shift) {
    Bytes place(32, 0xaa);
    store_net_header_if_different(reinterpret_cast<std::byte*>(place.data()) + shift, kHeader, 12);
    Bytes expected(32, 0xaa);
    std::copy(kLiteral.begin(), kLiteral.end(), expected.begin() + static_cast<long>(shift));
    EXPECT_EQ(place, expected);
  }
}

// An equal header is not stored again: a store into this page would end the test.
TEST(StoreNetHeader, EqualHeaderIsNotWritten) {
  auto* page = static_cast<std::uint8_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(page, MAP_FAILED);
  std::copy(kLiteral.begin(), kLiteral.end(), page);
  ASSERT_EQ(mprotect(page, 4096, PROT_READ), 0);
  store_net_header_if_different(reinterpret_cast<std::byte*>(page), kHeader, 12);
  store_net_header_if_different(reinterpret_cast<std::byte*>(page), kHeader, 10);
  munmap(page, 4096);
}

}  // namespace
}  // namespace vswitch
