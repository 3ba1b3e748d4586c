// The vhost-user message set, as bytes on the socket, shared by back-end and front-end sessions.
//
// Source: QEMU's docs/interop/vhost-user.rst. A message is a 12-byte header {request, flags, size},
// `size` bytes of payload and up to 8 file descriptors in the ancillary data of the first byte.
// All integers are in the host's byte order (the peer is on the same machine).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace vswitch::vhost_user {

// "Front-end message types".
enum class Request : std::uint32_t {
  kGetFeatures = 1,
  kSetFeatures = 2,
  kSetOwner = 3,
  kResetOwner = 4,
  kSetMemTable = 5,
  kSetLogBase = 6,
  kSetLogFd = 7,
  kSetVringNum = 8,
  kSetVringAddr = 9,
  kSetVringBase = 10,
  kGetVringBase = 11,
  kSetVringKick = 12,
  kSetVringCall = 13,
  kSetVringErr = 14,
  kGetProtocolFeatures = 15,
  kSetProtocolFeatures = 16,
  kGetQueueNum = 17,
  kSetVringEnable = 18,
  kNetSetMtu = 20,
};
// "SET_VRING_ADDR"; a number for one without a name.
std::string request_name(Request request);

// Header flags: bits 0-1 the version (always 1), bit 2 marks a reply, bit 3 asks for one.
inline constexpr std::uint32_t kFlagVersionMask = 0x3;
inline constexpr std::uint32_t kFlagVersion = 0x1;
inline constexpr std::uint32_t kFlagReply = 0x4;
inline constexpr std::uint32_t kFlagNeedReply = 0x8;

// SET_VRING_KICK/CALL/ERR: bits 0-7 the vring index, bit 8 "no file descriptor attached".
inline constexpr std::uint64_t kVringIndexMask = 0xff;
inline constexpr std::uint64_t kVringNoFd = 0x100;

// Protocol features ("Protocol features" in the document).
inline constexpr std::uint64_t kProtocolMq = std::uint64_t{1} << 0;
inline constexpr std::uint64_t kProtocolReplyAck = std::uint64_t{1} << 3;
inline constexpr std::uint64_t kProtocolNetMtu = std::uint64_t{1} << 4;
inline constexpr std::uint64_t kProtocolFeatures =
    kProtocolMq | kProtocolReplyAck | kProtocolNetMtu;
std::vector<std::string> protocol_feature_names(std::uint64_t features);

inline constexpr std::size_t kMaxFds = 8;            // VHOST_USER_MAX_RAM_SLOTS of SET_MEM_TABLE
inline constexpr std::size_t kMaxMemoryRegions = 8;  // "memory regions description"
inline constexpr std::size_t kMaxPayload = 8 + kMaxMemoryRegions * 32;

struct Header {
  std::uint32_t request;
  std::uint32_t flags;
  std::uint32_t size;  // payload bytes
};
static_assert(sizeof(Header) == 12);

struct VringState {  // "vring state description"
  std::uint32_t index;
  std::uint32_t value;  // NUM, BASE or ENABLE
};
static_assert(sizeof(VringState) == 8);

struct VringAddress {  // "vring address description": user addresses of the front-end
  std::uint32_t index;
  std::uint32_t flags;
  std::uint64_t descriptors;
  std::uint64_t used;
  std::uint64_t available;
  std::uint64_t log;  // guest-physical address of the used ring, for logging
};
static_assert(sizeof(VringAddress) == 40);

struct MemoryRegion {           // "memory region description"
  std::uint64_t guest_address;  // guest-physical
  std::uint64_t size;
  std::uint64_t user_address;  // in the front-end
  std::uint64_t mmap_offset;   // where the region starts in its file
};
static_assert(sizeof(MemoryRegion) == 32);

struct MemoryTableHeader {
  std::uint32_t regions;
  std::uint32_t padding;
};
static_assert(sizeof(MemoryTableHeader) == 8);

// NET_SET_MTU: what an MTU can be (virtio 1.2, 5.1.4).
inline constexpr std::uint64_t kMinNetMtu = 68;
inline constexpr std::uint64_t kMaxNetMtu = 65535;

template <typename T>
T payload_as(const std::byte* payload) {
  T value;
  std::memcpy(&value, payload, sizeof(T));
  return value;
}

}  // namespace vswitch::vhost_user
