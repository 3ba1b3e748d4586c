#include "tests/cli/guest/loopback_switch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace vswitch::guest {
namespace {

using vhost_user::Message;
using vhost_user::MessageChannel;
using vhost_user::payload_as;
using vhost_user::ReadResult;
using vhost_user::Request;

constexpr std::uint64_t kMergeable = std::uint64_t{1} << 15;
constexpr std::uint64_t kVersion1 = std::uint64_t{1} << 32;

}  // namespace

LoopbackSwitch::LoopbackSwitch(const std::string& path, const Faults& faults,
                               std::uint64_t features)
    : path_(path), faults_(faults), offered_(features) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  ::unlink(path.c_str());
  listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::listen(listener_.get(), 4), 0);
  thread_ = std::thread([this] { run(); });
}

LoopbackSwitch::~LoopbackSwitch() {
  stop_ = true;
  thread_.join();
  ::unlink(path_.c_str());
}

void LoopbackSwitch::run() {
  while (!stop_) {
    pollfd ready{listener_.get(), POLLIN, 0};
    if (::poll(&ready, 1, 5) <= 0) continue;
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) continue;
    ++connections_;
    serve(std::move(socket));
    for (Ring& ring : rings_) ring = Ring{};
    unmap();
  }
}

void LoopbackSwitch::serve(UniqueFd socket) {
  MessageChannel channel(std::move(socket));
  while (!stop_ && !hang_up_.exchange(false)) {
    const ReadResult result = channel.read();
    if (result == ReadResult::kMessage) {
      Message message = channel.take();
      handle(channel, message);
    } else if (result != ReadResult::kAgain) {
      return;
    }
    if (rings_[0].enabled && rings_[1].enabled) {
      forward();
      std::this_thread::yield();
    } else {
      pollfd ready{channel.fd(), POLLIN, 0};
      ::poll(&ready, 1, 5);
    }
  }
}

void LoopbackSwitch::map(const Message& message) {
  unmap();
  region_ = payload_as<vhost_user::MemoryRegion>(message.payload.data() + 8);
  void* place = ::mmap(nullptr, region_.size, PROT_READ | PROT_WRITE, MAP_SHARED,
                       message.fds.at(0).get(), static_cast<off_t>(region_.mmap_offset));
  ASSERT_NE(place, MAP_FAILED);
  mapping_ = static_cast<std::byte*>(place);
}

void LoopbackSwitch::unmap() {
  if (mapping_ != nullptr) ::munmap(mapping_, region_.size);
  mapping_ = nullptr;
}

template <typename T>
T* LoopbackSwitch::user_pointer(std::uint64_t address) const {
  return reinterpret_cast<T*>(mapping_ + (address - region_.user_address));
}

std::byte* LoopbackSwitch::guest_pointer(std::uint64_t address) const {
  return mapping_ + (address - region_.guest_address);
}

void LoopbackSwitch::handle(MessageChannel& channel, Message& message) {
  const auto reply = [&](std::uint64_t value) {
    EXPECT_TRUE(channel.send(message.request, vhost_user::kFlagReply, &value, 8).ok());
  };
  const std::byte* payload = message.payload.data();
  switch (message.request) {
    case Request::kGetFeatures:
      return reply(offered_ | std::uint64_t{1} << 30);
    case Request::kGetProtocolFeatures:
      return reply(vhost_user::kProtocolReplyAck);
    case Request::kSetFeatures:
      features_ = payload_as<std::uint64_t>(payload);
      break;
    case Request::kSetMemTable:
      map(message);
      break;
    case Request::kSetVringNum: {
      const auto state = payload_as<vhost_user::VringState>(payload);
      rings_[state.index].memory.size = state.value;
      break;
    }
    case Request::kSetVringBase: {
      const auto state = payload_as<vhost_user::VringState>(payload);
      rings_[state.index].next = static_cast<std::uint16_t>(state.value);
      break;
    }
    case Request::kSetVringAddr: {
      const auto address = payload_as<vhost_user::VringAddress>(payload);
      virtq::SplitRing& ring = rings_[address.index].memory;
      ring.descriptors = user_pointer<virtq::Descriptor>(address.descriptors);
      ring.avail = user_pointer<virtq::RingHeader>(address.available);
      ring.used = user_pointer<virtq::RingHeader>(address.used);
      break;
    }
    case Request::kSetVringCall:
      rings_[payload_as<std::uint64_t>(payload) & 0xff].call = std::move(message.fds.at(0));
      break;
    case Request::kSetVringEnable: {
      const auto state = payload_as<vhost_user::VringState>(payload);
      rings_[state.index].enabled = state.value != 0;
      break;
    }
    case Request::kGetVringBase: {
      auto state = payload_as<vhost_user::VringState>(payload);
      rings_[state.index].enabled = false;
      state.value = rings_[state.index].next;
      EXPECT_TRUE(
          channel.send(message.request, vhost_user::kFlagReply, &state, sizeof(state)).ok());
      return;
    }
    default:
      break;
  }
  if (message.needs_reply()) reply(0);
}

std::uint32_t LoopbackSwitch::header_bytes() const {
  return (features_ & (kMergeable | kVersion1)) != 0 ? 12 : 10;
}

void LoopbackSwitch::forward() {
  Ring& transmit = rings_[1];
  const virtq::SplitRing& ring = transmit.memory;
  std::vector<std::byte> frame;
  while (transmit.next != virtq::load_acquire(ring.avail->index)) {
    const std::uint32_t slot = transmit.next % ring.size;
    const std::uint16_t head = virtq::load_relaxed(ring.avail_entries()[slot]);
    const virtq::Descriptor descriptor = virtq::load_descriptor(ring.descriptors[head]);
    const std::byte* start = guest_pointer(descriptor.address);
    frame.assign(start + header_bytes(), start + descriptor.length);
    std::swap_ranges(frame.begin(), frame.begin() + 6, frame.begin() + 6);
    const auto hits = [&](unsigned every) { return every != 0 && frames_ % every == every - 1; };
    // Frames to everybody are not echoed.
    const bool broadcast = start[header_bytes()] == std::byte{0xff};
    if (!broadcast) {
      const bool drop = hits(faults_.drop);
      if (hits(faults_.damage)) frame.back() ^= std::byte{1};
      if (!drop && !deliver(frame)) return;
      if (hits(faults_.duplicate)) deliver(frame);
      ++frames_;
    }
    virtq::store_relaxed(ring.used_elements()[slot].id, std::uint32_t{head});
    virtq::store_relaxed(ring.used_elements()[slot].length, std::uint32_t{0});
    virtq::store_release(ring.used->index, ++transmit.next);
  }
}

bool LoopbackSwitch::deliver(const std::vector<std::byte>& frame) {
  Ring& receive = rings_[0];
  const virtq::SplitRing& ring = receive.memory;
  std::vector<std::byte> data(header_bytes());
  data.insert(data.end(), frame.begin(), frame.end());
  std::byte* first = nullptr;
  std::uint16_t buffers = 0;
  const auto available =
      static_cast<std::uint16_t>(virtq::load_acquire(ring.avail->index) - receive.next);
  for (std::size_t offset = 0; offset < data.size(); ++buffers) {
    if (buffers == available) return false;
    const std::uint32_t slot = (receive.next + buffers) % ring.size;
    const std::uint16_t head = virtq::load_relaxed(ring.avail_entries()[slot]);
    const virtq::Descriptor descriptor = virtq::load_descriptor(ring.descriptors[head]);
    EXPECT_EQ(descriptor.flags, virtq::kDescWrite);
    const std::size_t part = std::min<std::size_t>(descriptor.length, data.size() - offset);
    std::byte* place = guest_pointer(descriptor.address);
    if (first == nullptr) first = place;
    std::memcpy(place, data.data() + offset, part);
    offset += part;
    virtq::store_relaxed(ring.used_elements()[slot].id, std::uint32_t{head});
    virtq::store_relaxed(ring.used_elements()[slot].length, static_cast<std::uint32_t>(part));
  }
  if (header_bytes() == 12) std::memcpy(first + 10, &buffers, 2);
  receive.next = static_cast<std::uint16_t>(receive.next + buffers);
  virtq::store_release(ring.used->index, receive.next);
  virtq::full_fence();
  if ((virtq::load_relaxed(ring.avail->flags) & virtq::kAvailNoInterrupt) == 0) {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(receive.call.get(), &one, 8), 8);
    ++calls_;
  }
  return true;
}

}  // namespace vswitch::guest
