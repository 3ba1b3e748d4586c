// Packed rings through the running data plane: where they stop, start and go on.
#include "tests/dataplane/runtime/dataplane_fixture.h"

namespace vswitch::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Mac kA = 0x020000000001;
constexpr Mac kB = 0x020000000002;
constexpr std::uint64_t kRingPacked = 1ull << 34;

// The driver of a packed ring (virtio 1.2, 2.8), written by hand over the memory of a FakeRing: its
// descriptors, and where a split ring would have the other parts, the event suppression structures.
class PackedDriver {
 public:
  explicit PackedDriver(FakeRing& ring) : ring_(ring) {}

  // Offers buffer `id`, of `length` bytes: for the device to write, or to read.
  void offer(std::uint16_t id, std::uint32_t length, bool writable) {
    std::byte* const place = ring_.host() + std::size_t{16} * next_;
    const std::uint64_t address = ring_.buffer_address(id);
    std::memcpy(place, &address, 8);
    std::memcpy(place + 8, &length, 4);
    std::memcpy(place + 12, &id, 2);
    flags(next_).store(static_cast<std::uint16_t>((wrap_ ? 0x80 : 0x8000) | (writable ? 2 : 0)),
                       std::memory_order_release);
    advance(next_, wrap_);
  }
  // The next used buffer, if there is one: its id and length. Each moves one slot.
  std::optional<std::pair<std::uint16_t, std::uint32_t>> take() {
    const std::uint16_t now = flags(taken_).load(std::memory_order_acquire);
    if ((now & 0x8080) != (taken_wrap_ ? 0x8080 : 0)) return std::nullopt;
    const std::byte* const place = ring_.host() + std::size_t{16} * taken_;
    std::uint32_t length = 0;
    std::uint16_t id = 0;
    std::memcpy(&length, place + 8, 4);
    std::memcpy(&id, place + 12, 2);
    advance(taken_, taken_wrap_);
    return std::make_pair(id, length);
  }
  std::string bytes(std::uint16_t id, std::uint32_t length) const {
    return {reinterpret_cast<const char*>(ring_.buffer(id)) + FakeGuest::kNetHeader,
            length - FakeGuest::kNetHeader};
  }

 private:
  std::atomic_ref<std::uint16_t> flags(std::uint32_t slot) const {
    return std::atomic_ref<std::uint16_t>(
        *reinterpret_cast<std::uint16_t*>(ring_.host() + std::size_t{16} * slot + 14));
  }
  void advance(std::uint32_t& slot, bool& wrap) const {
    if (++slot < ring_.size()) return;
    slot = 0;
    wrap = !wrap;
  }

  FakeRing& ring_;
  std::uint32_t next_ = 0, taken_ = 0;
  bool wrap_ = true, taken_wrap_ = true;
};

class PackedRings : public DataplaneFixture {
 protected:
  // A guest with packed rings of `size` descriptors on a port of its own.
  std::unique_ptr<SocketGuest> connect_packed(const std::string& id, std::uint16_t size) {
    EXPECT_TRUE(create_port(id).ok());
    auto guest = std::make_unique<SocketGuest>(kB, 1, size);
    guest->features |= kRingPacked;
    EXPECT_TRUE(guest->connect(path(id)) && guest->negotiate() && guest->set_memory());
    return guest;
  }
  static void send_from(SocketGuest& guest, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = first; i < first + count; ++i) {
      ASSERT_TRUE(guest.memory.send(make_frame(kB, kA, 60, i)));
    }
    ASSERT_TRUE(eventually([&] { return guest.memory.reclaim() == 0; }));
  }
  // Tags of what arrived, in order.
  static std::vector<std::uint32_t> take_all(PackedDriver& ring) {
    std::vector<std::uint32_t> tags;
    while (const auto used = ring.take()) {
      EXPECT_EQ(used->second, 72u);
      tags.push_back(frame_tag(ring.bytes(used->first, used->second)));
    }
    return tags;
  }
};

// C29: ten buffers, seven used; the same answer twice, with the wrap counters in bits 15 and 31, no
// write in between, the other three once.
TEST_F(PackedRings, StoppedAndStartedAgain) {
  const auto a = add_guest("a", kA);
  const auto b = connect_packed("b", 10);
  ASSERT_TRUE(b->set_ring(0, 0x80008000) && b->set_ring(1, 0x80008000));
  ASSERT_TRUE(b->enable(0, true) && b->enable(1, true));
  ASSERT_EQ(port("b").state, PortState::kUp) << port("b").state_reason;
  PackedDriver rx(b->memory.rx());
  for (std::uint16_t id = 0; id < 10; ++id) rx.offer(id, 2048, true);
  workers_follow();
  EXPECT_EQ(port("b").queues.at(0).available, 10u);
  send_from(*a, 0, 7);
  EXPECT_EQ(port("b").queues.at(0).available, 3u);
  EXPECT_EQ(b->stop(0), 0x80078007u);
  send_from(*a, 7, 3);
  EXPECT_EQ(b->stop(0), 0x80078007u);
  EXPECT_THAT(take_all(rx), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  ASSERT_TRUE(b->enable(0, true));
  EXPECT_FALSE(port("b").queues.at(0).running) << "ENABLE alone restarts nothing";
  ASSERT_TRUE(b->set(vring_message(kSetVringBase, 0, 0x80078007)) && b->kick(0));
  workers_follow();
  send_from(*a, 10, 4);
  EXPECT_THAT(take_all(rx), ElementsAre(10, 11, 12));
  EXPECT_EQ(dropped(port("b").transmit, DropReason::kNoRxBuffer), 1u);
  EXPECT_EQ(b->stop(0), 0u) << "round once: offset 0, wrap counter 0";
}

// Sizes that are no power of two, many times round, both ways.
TEST_F(PackedRings, AnySizeBothWays) {
  const auto a = add_guest("a", kA);
  for (const std::uint16_t size : std::array<std::uint16_t, 4>{1, 3, 7, 100}) {
    SCOPED_TRACE(size);
    const std::string id = "b" + std::to_string(size);
    const auto b = connect_packed(id, size);
    ASSERT_TRUE(b->set_ring(0, 0x8000) && b->set_ring(1, 0x8000)) << "as DPDK sends it";
    ASSERT_TRUE(b->enable(0, true) && b->enable(1, true));
    ASSERT_EQ(port(id).state, PortState::kUp) << port(id).state_reason;
    workers_follow();
    PackedDriver rx(b->memory.rx()), tx(b->memory.tx());
    for (std::uint32_t i = 0; i < 3u * size + 2; ++i) {
      const std::string frame = make_frame(kA, kB, 60, i);
      std::memset(b->memory.tx().buffer(0), 0, FakeGuest::kNetHeader);
      std::memcpy(b->memory.tx().buffer(0) + FakeGuest::kNetHeader, frame.data(), frame.size());
      tx.offer(0, 72, false);
      std::optional<std::pair<std::uint16_t, std::uint32_t>> used;
      ASSERT_TRUE(eventually([&] { return (used = tx.take()).has_value(); }));
      EXPECT_EQ(*used, std::make_pair(std::uint16_t{0}, std::uint32_t{0}));
      EXPECT_THAT(a->memory.receive(), ElementsAre(frame));
      a->memory.post(1);
      rx.offer(0, 2048, true);
      send_from(*a, i, 1);
      EXPECT_THAT(take_all(rx), ElementsAre(i));
    }
    EXPECT_EQ(port(id).transmit.dropped_total(), 0u);
    ASSERT_TRUE(delete_port(id).ok());
  }
}

// C35: only the available half counts. DPDK sends no used one, and what it sends may lag behind.
TEST_F(PackedRings, TheUsedHalfOfABaseIsIgnored) {
  const auto a = add_guest("a", kA);
  const auto b = connect_packed("b", 8);
  ASSERT_TRUE(b->set_ring(1, 0x8000) && b->set_ring(0, 0x00058000));
  ASSERT_TRUE(b->enable(0, true) && b->enable(1, true));
  workers_follow();
  PackedDriver rx(b->memory.rx());
  rx.offer(4, 2048, true);
  send_from(*a, 3, 1);
  EXPECT_THAT(take_all(rx), ElementsAre(3));
  EXPECT_EQ(b->stop(0), 0x80018001u);
}

// C35: a base that is no place in the ring.
TEST_F(PackedRings, ABaseBehindTheRingsEnd) {
  const auto b = connect_packed("b", 8);
  for (const std::uint32_t base : {0x80088008u, 8u, 0x7fffu, 0xffffu}) {
    ASSERT_TRUE(b->set_ring(0, base) && b->set_ring(1, 0x8000));
    ASSERT_TRUE(b->enable(0, true) && b->enable(1, true));
    const PortStatus status = port("b");
    EXPECT_EQ(status.state, PortState::kNegotiating);
    EXPECT_EQ(status.state_reason,
              "ring 0 of 8 descriptors cannot start at " + std::to_string(base & 0x7fff));
    EXPECT_FALSE(status.queues.at(0).running);
    EXPECT_TRUE(status.queues.at(1).running);
  }
  ASSERT_TRUE(b->set(vring_message(kSetVringBase, 0, 7)));
  EXPECT_EQ(port("b").state, PortState::kUp) << "the last place, and the other wrap counter";
}

// What was right for one layout may be wrong for the other.
TEST_F(PackedRings, AChangeToSplitRings) {
  const auto b = connect_packed("b", 12);
  ASSERT_TRUE(b->set_ring(0, 0x8000) && b->set_ring(1, 0x8000));
  ASSERT_TRUE(b->enable(0, true) && b->enable(1, true));
  ASSERT_EQ(port("b").state, PortState::kUp);
  ASSERT_TRUE(b->set(message(kSetFeatures, u64(b->features & ~kRingPacked))));
  EXPECT_EQ(port("b").state, PortState::kNegotiating);
  EXPECT_THAT(port("b").state_reason, HasSubstr("its size of 12 is no power of two"));
  ASSERT_TRUE(b->set(message(kSetFeatures, u64(b->features))));
  EXPECT_EQ(port("b").state, PortState::kUp) << port("b").state_reason;
}

// R2: a list without an end within the queue.
TEST_F(PackedRings, ABrokenRing) {
  const auto a = add_guest("a", kA);
  const auto b = connect_packed("b", 4);
  ASSERT_TRUE(b->set_ring(0, 0x8000) && b->set_ring(1, 0x8000));
  ASSERT_TRUE(b->enable(0, true) && b->enable(1, true));
  for (std::uint32_t slot = 0; slot < 4; ++slot) {
    std::byte* const place = b->memory.tx().host() + std::size_t{16} * slot;
    const std::uint64_t address = b->memory.tx().buffer_address(0);
    const std::uint32_t length = 16;
    const std::uint16_t flags = 0x81;  // available, next
    std::memcpy(place, &address, 8);
    std::memcpy(place + 8, &length, 4);
    std::memcpy(place + 14, &flags, 2);
  }
  ASSERT_TRUE(becomes("b", PortState::kQuarantined));
  EXPECT_TRUE(b->error_rung(1));
  EXPECT_TRUE(port("b").queues.at(1).quarantined);
  EXPECT_TRUE(port("b").queues.at(0).running) << "its other ring goes on";
  EXPECT_EQ(port("a").state, PortState::kUp);
}

}  // namespace
}  // namespace vswitch::test
