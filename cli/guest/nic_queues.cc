#include "cli/guest/nic_queues.h"

#include "dataplane/virtq/features.h"

namespace vswitch::guest {
namespace {

using virtq::PackedDriver;
using virtq::SplitDriver;

std::unique_ptr<SplitDriver> make_split(const RingPlace& place, std::uint64_t features) {
  virtq::SplitRing ring;
  ring.descriptors = reinterpret_cast<virtq::Descriptor*>(place.descriptors);
  ring.avail = reinterpret_cast<virtq::RingHeader*>(place.driver);
  ring.used = reinterpret_cast<virtq::RingHeader*>(place.device);
  ring.size = place.size;
  return std::make_unique<SplitDriver>(ring, virtq::ring_features(features));
}

std::unique_ptr<PackedDriver> make_packed(const RingPlace& place, std::uint64_t features) {
  virtq::PackedRing ring;
  ring.descriptors = reinterpret_cast<virtq::PackedDescriptor*>(place.descriptors);
  ring.driver_events = reinterpret_cast<virtq::EventSuppression*>(place.driver);
  ring.device_events = reinterpret_cast<virtq::EventSuppression*>(place.device);
  ring.size = place.size;
  return std::make_unique<PackedDriver>(ring, virtq::ring_features(features));
}

// vhost-user.rst, SET_VRING_BASE: the one index of a split ring; both positions of a packed ring,
// which are the same while it rests.
std::uint32_t wire_base(const SplitDriver&, std::uint16_t position) { return position; }
std::uint32_t wire_base(const PackedDriver&, std::uint16_t position) {
  return position | std::uint32_t{position} << 16;
}

}  // namespace

NicQueues::NicQueues(std::uint64_t features, const RingPlace& receive_ring,
                     const virtq::BufferArea& receive_buffers, const RingPlace& transmit_ring,
                     const virtq::BufferArea& transmit_buffers,
                     const virtq::TransmitOptions& options) {
  if ((features & virtq::kFeatureRingPacked) != 0) {
    pair_ = std::make_unique<PackedPair>(PackedPair{
        .receive = {make_packed(receive_ring, features), receive_buffers, features},
        .transmit = {make_packed(transmit_ring, features), transmit_buffers, features, options}});
  } else {
    pair_ = std::make_unique<SplitPair>(SplitPair{
        .receive = {make_split(receive_ring, features), receive_buffers, features},
        .transmit = {make_split(transmit_ring, features), transmit_buffers, features, options}});
  }
  std::visit(
      [](auto& pair) {
        pair->receive.ring().suppress_calls(true);
        pair->transmit.ring().suppress_calls(true);
      },
      pair_);
}

std::uint32_t NicQueues::read(std::span<virtq::ReceivedFrame> frames) {
  return std::visit([&](auto& pair) { return pair->receive.read(frames); }, pair_);
}
std::span<const virtq::ReceivedPiece> NicQueues::pieces() const {
  return std::visit([](auto& pair) { return pair->receive.pieces(); }, pair_);
}
bool NicQueues::release() {
  return std::visit([](auto& pair) { return pair->receive.release(); }, pair_);
}
std::uint32_t NicQueues::reserve(std::span<virtq::TransmitSlot> slots) {
  return std::visit([&](auto& pair) { return pair->transmit.reserve(slots); }, pair_);
}
bool NicQueues::commit(std::span<const virtq::TransmitSlot> slots) {
  return std::visit([&](auto& pair) { return pair->transmit.commit(slots); }, pair_);
}
std::uint32_t NicQueues::reclaim() {
  return std::visit([](auto& pair) { return pair->transmit.reclaim(); }, pair_);
}
std::uint32_t NicQueues::in_flight() const {
  return std::visit([](auto& pair) { return pair->transmit.in_flight(); }, pair_);
}
virtq::TxLayout NicQueues::tx_layout() const {
  return std::visit([](auto& pair) { return pair->transmit.layout(); }, pair_);
}

void NicQueues::suppress_receive_calls(bool suppress) {
  std::visit([&](auto& pair) { pair->receive.ring().suppress_calls(suppress); }, pair_);
}

bool NicQueues::broken() const {
  return std::visit(
      [](auto& pair) { return pair->receive.ring().broken() || pair->transmit.ring().broken(); },
      pair_);
}

std::uint64_t NicQueues::bad_used_elements() const {
  return std::visit(
      [](auto& pair) {
        const auto& received = pair->receive.counters();
        std::uint64_t bad = received.short_frames + received.bad_num_buffers;
        for (const auto* ring : {&pair->receive.ring(), &pair->transmit.ring()}) {
          bad += ring->counters().bad_ids + ring->counters().capped_lengths;
        }
        return bad;
      },
      pair_);
}

NicQueues::Bases NicQueues::fresh_bases() const {
  return std::visit(
      [](auto& pair) -> Bases {
        const auto& ring = pair->receive.ring();
        const std::uint32_t base = wire_base(ring, ring.kFreshBase);
        return {base, base};
      },
      pair_);
}

NicQueues::Bases NicQueues::resume() {
  return std::visit(
      [](auto& pair) -> Bases {
        auto& receive = pair->receive;
        auto& transmit = pair->transmit;
        transmit.reclaim();
        receive.drop_partial();
        Bases bases;
        bases.transmit = wire_base(transmit.ring(), transmit.ring().resume());
        bases.receive = wire_base(receive.ring(), receive.ring().resume());
        receive.release();
        return bases;
      },
      pair_);
}

}  // namespace vswitch::guest
