#include "tests/cli/guest/loopback_switch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
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
constexpr std::uint64_t kEventIndex = std::uint64_t{1} << 29;
constexpr std::uint64_t kVersion1 = std::uint64_t{1} << 32;
constexpr std::uint64_t kPacked = std::uint64_t{1} << 34;
constexpr std::uint64_t kInOrder = std::uint64_t{1} << 35;

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
      rings_[state.index].size = state.value;
      break;
    }
    case Request::kSetVringBase: {
      const auto state = payload_as<vhost_user::VringState>(payload);
      if (packed()) {
        EXPECT_EQ(state.value >> 16, state.value & 0xffff);
        rings_[state.index].next = {static_cast<std::uint16_t>(state.value & 0x7fff),
                                    (state.value & 0x8000) != 0};
      } else {
        EXPECT_LE(state.value, 0xffffU);
        rings_[state.index].next = {static_cast<std::uint16_t>(state.value), true};
      }
      break;
    }
    case Request::kSetVringAddr: {
      const auto address = payload_as<vhost_user::VringAddress>(payload);
      Ring& ring = rings_[address.index];
      ring.split = {user_pointer<virtq::Descriptor>(address.descriptors),
                    user_pointer<virtq::RingHeader>(address.available),
                    user_pointer<virtq::RingHeader>(address.used), ring.size};
      ring.packed = {user_pointer<virtq::PackedDescriptor>(address.descriptors),
                     user_pointer<virtq::EventSuppression>(address.available),
                     user_pointer<virtq::EventSuppression>(address.used), ring.size};
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
      state.value = rings_[state.index].next.index;
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

bool LoopbackSwitch::packed() const { return (features_ & kPacked) != 0; }

void LoopbackSwitch::take_part(Chain& chain, std::uint64_t address, std::uint32_t length,
                               std::uint16_t flags) const {
  if ((flags & virtq::kDescIndirect) == 0) {
    chain.parts.push_back({guest_pointer(address), length, (flags & virtq::kDescWrite) != 0});
    return;
  }
  // Entries follow each other in the tables of both layouts, and begin alike.
  for (std::uint32_t i = 0; i < length / 16; ++i) {
    const std::byte* entry = guest_pointer(address) + std::size_t{i} * 16;
    const std::uint16_t entry_flags =
        packed() ? reinterpret_cast<const virtq::PackedDescriptor*>(entry)->flags
                 : reinterpret_cast<const virtq::Descriptor*>(entry)->flags;
    EXPECT_EQ(entry_flags & virtq::kDescIndirect, 0);
    const auto* descriptor = reinterpret_cast<const virtq::Descriptor*>(entry);
    chain.parts.push_back({guest_pointer(descriptor->address), descriptor->length,
                           (entry_flags & virtq::kDescWrite) != 0});
  }
}

bool LoopbackSwitch::take(const Ring& ring, Place& place, Chain& chain) const {
  chain = {};
  if (!packed()) {
    if (place.index == virtq::load_acquire(ring.split.avail->index)) return false;
    const std::uint32_t slot = place.index % ring.size;
    chain.id = virtq::load_relaxed(ring.split.avail_entries()[slot]);
    ++place.index;
    for (std::uint16_t index = chain.id;;) {
      const virtq::Descriptor descriptor = virtq::load_descriptor(ring.split.descriptors[index]);
      ++chain.slots;
      take_part(chain, descriptor.address, descriptor.length, descriptor.flags);
      if ((descriptor.flags & virtq::kDescNext) == 0) return true;
      index = descriptor.next;
    }
  }
  for (;;) {
    const virtq::PackedDescriptor& shared = ring.packed.descriptors[place.index];
    const std::uint16_t flags = virtq::load_acquire(shared.flags);
    if (((flags >> 7 & 1) != 0) != place.wrap || ((flags >> 15 & 1) != 0) == place.wrap) {
      EXPECT_EQ(chain.slots, 0U) << "a list without its end";
      return false;
    }
    ++chain.slots;
    take_part(chain, virtq::load_relaxed(shared.address), virtq::load_relaxed(shared.length),
              flags);
    chain.id = virtq::load_relaxed(shared.id);
    if (++place.index == ring.size) place = {0, !place.wrap};
    if ((flags & virtq::kDescNext) == 0) return true;
  }
}

void LoopbackSwitch::use(Ring& ring, std::uint32_t id, std::uint32_t length, std::uint32_t slots,
                         std::uint32_t chains) {
  if (!packed()) {
    virtq::UsedElement& element = ring.split.used_elements()[ring.next.index % ring.size];
    virtq::store_relaxed(element.id, id);
    virtq::store_relaxed(element.length, length);
    ring.next.index = static_cast<std::uint16_t>(ring.next.index + chains);
    virtq::store_release(ring.split.used->index, ring.next.index);
    return;
  }
  virtq::PackedDescriptor& shared = ring.packed.descriptors[ring.next.index];
  virtq::store_relaxed(shared.id, static_cast<std::uint16_t>(id));
  virtq::store_relaxed(shared.length, length);
  virtq::store_release(shared.flags,
                       static_cast<std::uint16_t>((ring.next.wrap ? 0x8080 : 0) |
                                                  (length != 0 ? virtq::kDescWrite : 0)));
  for (; slots > 0; --slots) {
    if (++ring.next.index == ring.size) ring.next = {0, !ring.next.wrap};
  }
}

bool LoopbackSwitch::calls_wanted(const Ring& ring) const {
  if (packed()) {
    return virtq::load_event_suppression(*ring.packed.driver_events).flags !=
           virtq::kEventsDisabled;
  }
  return (features_ & kEventIndex) != 0
             ? virtq::load_relaxed(ring.split.used_event()) == ring.next.index
             : virtq::load_relaxed(ring.split.avail->flags) != virtq::kAvailNoInterrupt;
}

bool LoopbackSwitch::wants_call(const Ring& ring, const Place& before) const {
  virtq::full_fence();
  const bool event_index = (features_ & kEventIndex) != 0;
  if (!packed()) {
    if (!event_index) {
      return (virtq::load_relaxed(ring.split.avail->flags) & virtq::kAvailNoInterrupt) == 0;
    }
    return virtq::need_event(virtq::load_relaxed(ring.split.used_event()), before.index,
                             ring.next.index);
  }
  const auto wish = virtq::load_event_suppression(*ring.packed.driver_events);
  const std::uint32_t moved = (ring.next.index + ring.size - before.index) % ring.size;
  return virtq::wants_packed_event(wish, event_index, moved == 0 ? ring.size : moved,
                                   {ring.next.index, ring.next.wrap}, ring.size);
}

void LoopbackSwitch::forward() {
  Ring& ring = rings_[1];
  const bool in_order = (features_ & kInOrder) != 0;
  std::vector<std::byte> frame;
  std::uint32_t slots = 0, chains = 0;
  Place place = ring.next;
  Chain chain, taken;
  while (take(ring, place, taken)) {
    frame.clear();
    for (const Part& part : taken.parts) {
      EXPECT_FALSE(part.writable);
      frame.insert(frame.end(), part.data, part.data + part.length);
    }
    EXPECT_TRUE(std::all_of(frame.begin(), frame.begin() + header_bytes(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
    frame.erase(frame.begin(), frame.begin() + header_bytes());
    std::swap_ranges(frame.begin(), frame.begin() + 6, frame.begin() + 6);
    const bool counts = frame.size() >= faults_.from_bytes;
    const auto hits = [&](unsigned every) {
      return counts && every != 0 && frames_ % every == every - 1;
    };
    // Frames to everybody are not echoed.
    bool bad_id = false;
    if (frame[6] != std::byte{0xff}) {
      for (int i = 0; faults_.wait_for_sleep && i < 10'000 && !calls_wanted(rings_[0]); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const bool drop = hits(faults_.drop);
      if (hits(faults_.damage)) frame.back() ^= std::byte{1};
      if (!drop && !deliver(frame)) break;
      if (hits(faults_.duplicate)) deliver(frame);
      bad_id = hits(faults_.bad_id);
      if (counts) ++frames_;
    }
    chain = taken;
    slots += chain.slots;
    ++chains;
    if (in_order && !bad_id) continue;
    use(ring, bad_id ? 0xffff : chain.id, 0, slots, chains);
    slots = chains = 0;
  }
  if (chains > 0) use(ring, chain.id, 0, slots, chains);
}

bool LoopbackSwitch::deliver(const std::vector<std::byte>& frame) {
  Ring& ring = rings_[0];
  std::vector<std::byte> data(header_bytes());
  data.insert(data.end(), frame.begin(), frame.end());
  std::vector<Chain> chains;
  Place place = ring.next;
  std::size_t room = 0;
  while (room < data.size()) {
    Chain chain;
    if (!take(ring, place, chain)) return false;
    EXPECT_EQ(chain.parts.size(), 1U);
    EXPECT_TRUE(chain.parts[0].writable);
    room += chain.parts[0].length;
    chains.push_back(std::move(chain));
  }
  if (header_bytes() == 12) {
    const auto buffers = static_cast<std::uint16_t>(chains.size());
    std::memcpy(data.data() + 10, &buffers, 2);
  }
  const Place before = ring.next;
  std::size_t offset = 0;
  for (const Chain& chain : chains) {
    const Part& buffer = chain.parts[0];
    const std::size_t part = std::min<std::size_t>(buffer.length, data.size() - offset);
    std::memcpy(buffer.data, data.data() + offset, part);
    offset += part;
    use(ring, chain.id, static_cast<std::uint32_t>(part), chain.slots, 1);
  }
  if (wants_call(ring, before)) {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(ring.call.get(), &one, 8), 8);
    ++calls_;
  }
  return true;
}

}  // namespace vswitch::guest
