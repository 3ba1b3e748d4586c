// The receive and the transmit queue of the guest's card, over split or packed rings. Whoever calls
// need not know which: the choice is made once a burst, here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>

#include "dataplane/virtq/driver_queue.h"

namespace vswitch::guest {

// Where one ring lies, of either layout. The parts have room for the larger of the two.
struct RingPlace {
  std::byte* descriptors = nullptr;  // split: the table; packed: the ring
  std::byte* driver = nullptr;       // split: the available ring; packed: driver event suppression
  std::byte* device = nullptr;       // split: the used ring; packed: device event suppression
  std::uint32_t size = 0;            // descriptors
};

// One thread. Nothing is allocated per frame.
class NicQueues {
 public:
  // Formats both rings, for the features that were negotiated, and posts all receive buffers.
  // options.layout must resolve (resolve_tx_layout). Calls are suppressed.
  NicQueues(std::uint64_t features, const RingPlace& receive_ring,
            const virtq::BufferArea& receive_buffers, const RingPlace& transmit_ring,
            const virtq::BufferArea& transmit_buffers, const virtq::TransmitOptions& options);

  // As in DriverReceiveQueue and DriverTransmitQueue.
  std::uint32_t read(std::span<virtq::ReceivedFrame> frames);
  std::span<const virtq::ReceivedPiece> pieces() const;  // of all frames of the burst
  bool release();
  std::uint32_t reserve(std::span<virtq::TransmitSlot> slots);
  bool commit(std::span<const virtq::TransmitSlot> slots);
  std::uint32_t reclaim();
  std::uint32_t in_flight() const;
  virtq::TxLayout tx_layout() const;

  void suppress_receive_calls(bool suppress);

  // A ring's position is lost: the switch returned something it does not have.
  bool broken() const;
  // What the switch returned and must not have, over both queues.
  std::uint64_t bad_used_elements() const;

  // Where the switch starts in both rings, as SET_VRING_BASE carries it.
  struct Bases {
    std::uint32_t receive = 0;
    std::uint32_t transmit = 0;
  };
  Bases fresh_bases() const;
  // For a switch that comes back: collects what the old one finished, offers the rest again.
  Bases resume();

 private:
  template <virtq::DriverRing Ring>
  struct Pair {
    virtq::DriverReceiveQueue<Ring> receive;
    virtq::DriverTransmitQueue<Ring> transmit;
  };
  using SplitPair = Pair<virtq::SplitDriver>;
  using PackedPair = Pair<virtq::PackedDriver>;

  std::variant<std::unique_ptr<SplitPair>, std::unique_ptr<PackedPair>> pair_;
};

}  // namespace vswitch::guest
