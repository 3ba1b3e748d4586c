// A guest for tests: its memory (a memfd) and pairs of split rings of virtio 1.2 laid out by hand,
// with queue 0 to receive and queue 1 to send, and so on. Independent of our own ring code.
//
// Buffer i of a ring belongs to descriptor i. One thread drives a guest.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "dataplane/os/unique_fd.h"

namespace vswitch::test {

using Mac = std::uint64_t;  // 0x0200_0000_0001 is 02:00:00:00:00:01
inline constexpr Mac kBroadcast = 0xffffffffffff;

inline std::string mac_text(Mac mac) {
  std::string bytes;
  for (int shift = 40; shift >= 0; shift -= 8) bytes += static_cast<char>(mac >> shift & 0xff);
  return bytes;
}
// A frame of `bytes` bytes whose payload starts with `tag` and goes on with a pattern of it.
// `between`: what lies between the source address and the payload (EtherType, VLAN tags).
inline std::string make_frame(Mac destination, Mac source, std::size_t bytes, std::uint32_t tag = 0,
                              std::string_view between = std::string_view("\x08\x00", 2)) {
  std::string frame = mac_text(destination) + mac_text(source) + std::string(between);
  for (std::size_t i = 0; frame.size() < bytes; ++i) {
    frame += static_cast<char>(i < 4 ? tag >> (8 * i) & 0xff : (tag * 31 + i * 7) & 0xff);
  }
  frame.resize(bytes);
  return frame;
}
inline std::uint32_t frame_tag(const std::string& frame) {
  std::uint32_t tag = 0;
  if (frame.size() >= 18) std::memcpy(&tag, frame.data() + 14, 4);
  return tag;
}

class FakeRing {
 public:
  FakeRing(std::byte* host, std::uint64_t guest_address, std::uint16_t size,
           std::uint32_t buffer_bytes)
      : host_(host), guest_address_(guest_address), size_(size), buffer_bytes_(buffer_bytes) {
    for (std::uint16_t i = 0; i < size_; ++i) free_.push_back(i);
  }
  static std::size_t bytes(std::uint16_t size, std::uint32_t buffer_bytes) {
    return buffers_at(size) + std::size_t{size} * buffer_bytes;
  }

  // Offsets of the three parts (2.7: 16 bytes a descriptor; 6 + 2 a descriptor; 6 + 8).
  std::size_t descriptors_at() const { return 0; }
  static std::size_t available_at(std::uint16_t size) { return std::size_t{16} * size; }
  static std::size_t used_at(std::uint16_t size) {
    return (available_at(size) + 6 + std::size_t{2} * size + 3) / 4 * 4;
  }
  static std::size_t buffers_at(std::uint16_t size) {
    return (used_at(size) + 6 + std::size_t{8} * size + 63) / 64 * 64;
  }
  std::size_t available_at() const { return available_at(size_); }
  std::size_t used_at() const { return used_at(size_); }

  std::uint16_t size() const { return size_; }
  std::uint64_t guest_address() const { return guest_address_; }
  std::byte* host() const { return host_; }
  std::size_t free() const { return free_.size(); }
  std::byte* buffer(std::uint16_t index) const {
    return host_ + buffers_at(size_) + std::size_t{index} * buffer_bytes_;
  }
  std::uint64_t buffer_address(std::uint16_t index) const {
    return guest_address_ + buffers_at(size_) + std::uint64_t{index} * buffer_bytes_;
  }

  void set_descriptor(std::uint16_t index, std::uint64_t address, std::uint32_t length,
                      std::uint16_t flags, std::uint16_t next = 0) {
    std::byte* const place = host_ + std::size_t{16} * index;
    std::memcpy(place, &address, 8);
    std::memcpy(place + 8, &length, 4);
    std::memcpy(place + 12, &flags, 2);
    std::memcpy(place + 14, &next, 2);
  }
  // Makes a head available, with a release store of the index.
  void offer(std::uint16_t head) {
    std::memcpy(host_ + available_at() + 4 + std::size_t{2} * (available_ % size_), &head, 2);
    set_available(static_cast<std::uint16_t>(available_ + 1));
  }
  void set_available(std::uint16_t index) {
    available_ = index;
    u16(available_at() + 2).store(index, std::memory_order_release);
  }
  void set_no_interrupt(bool on) { u16(available_at()).store(on ? 1 : 0); }
  std::uint16_t available() const { return available_; }
  std::uint16_t used() const { return u16(used_at() + 2).load(std::memory_order_acquire); }
  std::uint16_t used_flags() const { return u16(used_at()).load(); }

  struct Used {
    std::uint32_t id = 0;
    std::uint32_t length = 0;
  };
  // The next used element not yet taken.
  bool take_used(Used& element) {
    if (used() == taken_) return false;
    const std::byte* const place = host_ + used_at() + 4 + std::size_t{8} * (taken_ % size_);
    std::memcpy(&element.id, place, 4);
    std::memcpy(&element.length, place + 4, 4);
    ++taken_;
    return true;
  }
  std::uint16_t taken() const { return taken_; }
  std::uint16_t take_free() {
    const std::uint16_t index = free_.front();
    free_.pop_front();
    return index;
  }
  void put_free(std::uint16_t index) { free_.push_back(index); }
  std::uint32_t buffer_bytes() const { return buffer_bytes_; }

  // As a driver does at a reset: all zero, all free.
  void reset() {
    std::memset(host_, 0, buffers_at(size_));
    available_ = taken_ = 0;
    free_.clear();
    for (std::uint16_t i = 0; i < size_; ++i) free_.push_back(i);
  }

 private:
  std::atomic_ref<std::uint16_t> u16(std::size_t offset) const {
    return std::atomic_ref<std::uint16_t>(*reinterpret_cast<std::uint16_t*>(host_ + offset));
  }

  std::byte* host_;
  std::uint64_t guest_address_;
  std::uint16_t size_;
  std::uint32_t buffer_bytes_;
  std::uint16_t available_ = 0;
  std::uint16_t taken_ = 0;
  std::deque<std::uint16_t> free_;
};

// 12-byte virtio-net headers (VERSION_1), no mergeable buffers.
class FakeGuest {
 public:
  static constexpr std::uint64_t kGuestBase = 0x40000000;
  static constexpr std::uint64_t kUserBase = 0x7e0000000000;
  static constexpr std::uint32_t kNetHeader = 12;

  explicit FakeGuest(std::uint16_t ring_size = 256, std::uint32_t buffer_bytes = 2048,
                     unsigned pairs = 1)
      : pairs_(pairs),
        ring_bytes_((FakeRing::bytes(ring_size, buffer_bytes) + 4095) / 4096 * 4096),
        memory_(::memfd_create("guest", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(memory_.get(), static_cast<off_t>(bytes())), 0);
    void* const map =
        ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
    EXPECT_NE(map, MAP_FAILED);
    host_ = static_cast<std::byte*>(map);
    for (std::uint64_t i = 0; i < 2 * pairs_; ++i) {
      rings_.emplace_back(host_ + i * ring_bytes_, kGuestBase + i * ring_bytes_, ring_size,
                          buffer_bytes);
    }
  }
  FakeGuest(const FakeGuest&) = delete;
  FakeGuest& operator=(const FakeGuest&) = delete;
  ~FakeGuest() { ::munmap(host_, bytes()); }

  FakeRing& rx(std::size_t pair = 0) { return rings_[2 * pair]; }
  FakeRing& tx(std::size_t pair = 0) { return rings_[2 * pair + 1]; }
  FakeRing& ring(std::size_t index) { return rings_[index]; }
  int memory() const { return memory_.get(); }
  std::size_t bytes() const { return 2 * pairs_ * ring_bytes_; }
  std::uint64_t user_address(std::size_t ring, std::size_t offset) const {
    return kUserBase + ring * ring_bytes_ + offset;
  }

  // Sends one frame as one descriptor; false: no free one.
  bool send(const std::string& frame, std::size_t pair = 0) {
    reclaim(pair);
    FakeRing& ring = tx(pair);
    if (ring.free() == 0) return false;
    const std::uint16_t head = ring.take_free();
    std::memset(ring.buffer(head), 0, kNetHeader);
    std::memcpy(ring.buffer(head) + kNetHeader, frame.data(), frame.size());
    ring.set_descriptor(head, ring.buffer_address(head),
                        kNetHeader + static_cast<std::uint32_t>(frame.size()), 0);
    ring.offer(head);
    return true;
  }
  // Takes back what was sent; returns how many chains are still with the switch.
  std::size_t reclaim(std::size_t pair = 0) {
    FakeRing& ring = tx(pair);
    FakeRing::Used element;
    while (ring.take_used(element)) {
      EXPECT_EQ(element.length, 0u) << "nothing is written into what a guest sends";
      ring.put_free(static_cast<std::uint16_t>(element.id));
    }
    return ring.size() - ring.free();
  }

  // Posts up to `count` receive buffers.
  void post(std::size_t count, std::size_t pair = 0) {
    FakeRing& ring = rx(pair);
    for (; count > 0 && ring.free() > 0; --count) {
      const std::uint16_t head = ring.take_free();
      std::memset(ring.buffer(head), 0xee, kNetHeader);
      ring.set_descriptor(head, ring.buffer_address(head), ring.buffer_bytes(), 2);
      ring.offer(head);
    }
  }
  // All frames that have arrived, in used order; their buffers are free, but not posted again.
  std::vector<std::string> receive(std::size_t pair = 0) {
    FakeRing& ring = rx(pair);
    std::vector<std::string> frames;
    FakeRing::Used element;
    while (ring.take_used(element)) {
      const auto index = static_cast<std::uint16_t>(element.id);
      ring.put_free(index);
      if (element.length < kNetHeader) {
        ADD_FAILURE() << "used element of " << element.length << " bytes";
        continue;
      }
      // 5.1.6.4: everything zero, num_buffers 1.
      EXPECT_EQ(std::memcmp(ring.buffer(index), "\0\0\0\0\0\0\0\0\0\0\1\0", kNetHeader), 0);
      frames.emplace_back(reinterpret_cast<const char*>(ring.buffer(index)) + kNetHeader,
                          element.length - kNetHeader);
    }
    return frames;
  }

 private:
  std::size_t pairs_;
  std::size_t ring_bytes_;
  UniqueFd memory_;
  std::byte* host_ = nullptr;
  std::vector<FakeRing> rings_;
};

}  // namespace vswitch::test
