// A front-end that speaks vhost-user in literal bytes, independent of our own message types.
//
// Numbers and layouts are copied by hand from vhost-user.rst: a message is le32 request, le32 flags
// (1, | 8 "need reply"), le32 payload size, payload.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "dataplane/os/unique_fd.h"

namespace vswitch::test {

inline constexpr std::uint32_t kGetFeatures = 1;
inline constexpr std::uint32_t kSetFeatures = 2;
inline constexpr std::uint32_t kSetOwner = 3;
inline constexpr std::uint32_t kResetOwner = 4;
inline constexpr std::uint32_t kSetMemTable = 5;
inline constexpr std::uint32_t kSetVringNum = 8;
inline constexpr std::uint32_t kSetVringAddr = 9;
inline constexpr std::uint32_t kSetVringBase = 10;
inline constexpr std::uint32_t kGetVringBase = 11;
inline constexpr std::uint32_t kSetVringKick = 12;
inline constexpr std::uint32_t kSetVringCall = 13;
inline constexpr std::uint32_t kSetVringErr = 14;
inline constexpr std::uint32_t kGetProtocolFeatures = 15;
inline constexpr std::uint32_t kSetProtocolFeatures = 16;
inline constexpr std::uint32_t kGetQueueNum = 17;
inline constexpr std::uint32_t kSetVringEnable = 18;
inline constexpr std::uint32_t kNetSetMtu = 20;

inline constexpr std::uint32_t kPlain = 1;      // version 1
inline constexpr std::uint32_t kNeedReply = 9;  // version 1, bit 3
inline constexpr std::uint32_t kReply = 5;      // version 1, bit 2

inline constexpr std::uint64_t kNoFd = 0x100;

inline constexpr std::uint64_t kMrgRxbufBit = 1ull << 15;
inline constexpr std::uint64_t kIndirectBit = 1ull << 28;
inline constexpr std::uint64_t kProtocolFeaturesBit = 1ull << 30;
inline constexpr std::uint64_t kVersion1Bit = 1ull << 32;
inline constexpr std::uint64_t kRingPackedBit = 1ull << 34;
inline constexpr std::uint64_t kMqProtocol = 1ull << 0;
inline constexpr std::uint64_t kReplyAckProtocol = 1ull << 3;
inline constexpr std::uint64_t kNetMtuProtocol = 1ull << 4;

template <typename T>
std::string le(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
  }
  return bytes;
}
inline std::string u32(std::uint32_t value) { return le(value); }
inline std::string u64(std::uint64_t value) { return le(value); }

inline std::string message(std::uint32_t request, const std::string& payload = "",
                           std::uint32_t flags = kPlain) {
  return u32(request) + u32(flags) + u32(static_cast<std::uint32_t>(payload.size())) + payload;
}
// "vring state description"
inline std::string vring_message(std::uint32_t request, std::uint32_t index, std::uint32_t value,
                                 std::uint32_t flags = kPlain) {
  return message(request, u32(index) + u32(value), flags);
}
// "vring address description"
inline std::string vring_address_message(std::uint32_t index, std::uint64_t descriptors,
                                         std::uint64_t used, std::uint64_t available,
                                         std::uint32_t flags = kPlain) {
  return message(kSetVringAddr,
                 u32(index) + u32(0) + u64(descriptors) + u64(used) + u64(available) + u64(0),
                 flags);
}
struct RawRegion {
  std::uint64_t guest_address;
  std::uint64_t size;
  std::uint64_t user_address;
  std::uint64_t mmap_offset = 0;
};
// "memory regions description"
inline std::string memory_table_message(const std::vector<RawRegion>& regions,
                                        std::uint32_t flags = kPlain) {
  std::string payload = u32(static_cast<std::uint32_t>(regions.size())) + u32(0);
  for (const RawRegion& region : regions) {
    payload += u64(region.guest_address) + u64(region.size) + u64(region.user_address) +
               u64(region.mmap_offset);
  }
  return message(kSetMemTable, payload, flags);
}

struct RawAnswer {
  std::uint32_t request = 0;
  std::uint32_t flags = 0;
  std::string payload;

  std::uint64_t number() const {
    std::uint64_t value = 0;
    std::memcpy(&value, payload.data(), payload.size() < 8 ? payload.size() : 8);
    return value;
  }
  // The second half of a "vring state description".
  std::uint32_t vring_value() const { return static_cast<std::uint32_t>(number() >> 32); }
};

// Our end of the socket. Sends are whole or fail; receives wait as long as they are told to.
class RawFrontend {
 public:
  RawFrontend() = default;
  explicit RawFrontend(UniqueFd socket) : socket_(std::move(socket)) {}

  static RawFrontend connect(const std::string& path) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
        0) {
      socket.reset();
    }
    return RawFrontend(std::move(socket));
  }

  bool connected() const { return socket_.valid(); }
  int fd() const { return socket_.get(); }
  void hang_up() { socket_.reset(); }

  bool send(const std::string& bytes, const std::vector<int>& fds = {}) {
    iovec data{const_cast<char*>(bytes.data()), bytes.size()};
    std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    return ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

  // Nothing: no answer within the time, or the connection is over.
  std::optional<RawAnswer> receive(int milliseconds = 0) {
    std::string header;
    if (!read(header, 12, milliseconds)) return std::nullopt;
    RawAnswer answer;
    std::uint32_t size = 0;
    std::memcpy(&answer.request, header.data(), 4);
    std::memcpy(&answer.flags, header.data() + 4, 4);
    std::memcpy(&size, header.data() + 8, 4);
    if (!read(answer.payload, size, milliseconds)) return std::nullopt;
    return answer;
  }
  // The other side has closed, and nothing is left to be read.
  bool closed(int milliseconds = 0) {
    pollfd events{socket_.get(), POLLIN, 0};
    if (::poll(&events, 1, milliseconds) <= 0) return false;
    char byte = 0;
    const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && (errno == ECONNRESET || errno == EPIPE));
  }

 private:
  bool read(std::string& bytes, std::size_t wanted, int milliseconds) {
    while (bytes.size() < wanted) {
      pollfd events{socket_.get(), POLLIN, 0};
      if (::poll(&events, 1, milliseconds) <= 0) return false;
      char buffer[512];
      const std::size_t rest = wanted - bytes.size();
      const ssize_t got = ::recv(socket_.get(), buffer,
                                 rest < sizeof(buffer) ? rest : sizeof(buffer), MSG_DONTWAIT);
      if (got <= 0) return false;
      bytes.append(buffer, static_cast<std::size_t>(got));
    }
    return true;
  }

  UniqueFd socket_;
};

}  // namespace vswitch::test
