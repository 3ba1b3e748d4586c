// virtio-net queues seen from the driver: frames in and out of buffers in guest memory.
//
// Source: virtio 1.2, 5.1.6 "Device Operation". Every buffer belongs to one queue for ever and
// holds the virtio-net header with the frame right behind it, in every layout. Received frames may
// lie over several buffers (VIRTIO_NET_F_MRG_RXBUF).
//
// Generic over the ring end (DriverRing); made for SplitDriver and PackedDriver here. Each queue
// belongs to one thread. Nothing is allocated per frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dataplane/virtq/driver_ring.h"
#include "dataplane/virtq/packed_driver.h"
#include "dataplane/virtq/split_driver.h"

namespace vswitch::virtq {

// The buffers of one queue: `count` times `buffer_bytes`, back to back. Shared with the device.
struct BufferArea {
  std::byte* host = nullptr;
  std::uint64_t guest_address = 0;
  std::uint32_t buffer_bytes = 0;  // header included
  std::uint32_t count = 0;         // at most the queue's size is in use at a time
  // For TxLayout::kIndirect: `count` tables of kTransmitTableBytes, back to back, one a buffer.
  IndirectTable tables{};
};

// How a transmitted frame is described to the device. Header and frame are the same bytes in the
// same places always; what differs is who describes them.
enum class TxLayout : std::uint8_t {
  kAuto,
  kPush,      // one descriptor over header and frame; a buffer each is in flight
  kIndirect,  // one descriptor that points at a table of two: header, frame
  kChain,     // two descriptors: header, frame; so half as many frames are in flight
};

// The rule of kAuto: push where the device takes any layout, which it says by VIRTIO_F_VERSION_1 or
// VIRTIO_F_ANY_LAYOUT, either one without the other (6.3: VERSION_1 implies it); else indirect with
// VIRTIO_F_INDIRECT_DESC; else chain, which every device takes. Nothing if `wanted` cannot be had
// with the features negotiated: push without both of the first two, indirect without the third.
// Chains and tables need a queue of at least two descriptors; a shorter one sends nothing.
std::optional<TxLayout> resolve_tx_layout(TxLayout wanted, std::uint64_t features);
const char* tx_layout_name(TxLayout layout);

// What is done to the header of a frame to be sent, whose fields must all be zero (5.1.6.2).
enum class HeaderPolicy : std::uint8_t {
  kCompareThenWrite,  // the product's: a line that is right stays clean
  kAlwaysWrite,       // for measuring what the other one saves
};

enum class Reclaim : std::uint8_t {
  kLazy,   // look at what the device has returned only when buffers run short
  kEager,  // look at every reserve()
};

struct TransmitOptions {
  TxLayout layout = TxLayout::kAuto;
  HeaderPolicy header_policy = HeaderPolicy::kCompareThenWrite;
  Reclaim reclaim = Reclaim::kLazy;
};

inline constexpr std::size_t kTransmitTableBytes = indirect_table_bytes(2);

// Room for one frame to be sent. The content is what this buffer held before: whoever sends the
// same frame again need not write it again.
struct TransmitSlot {
  std::byte* data = nullptr;
  std::uint32_t capacity = 0;  // bytes of frame
  std::uint16_t buffer = 0;    // 0 to count - 1
  std::uint32_t length = 0;    // set by the caller before commit()
};

// Bytes of a received frame that lie in one buffer.
struct ReceivedPiece {
  std::byte* data = nullptr;
  std::uint32_t length = 0;
  std::uint16_t buffer = 0;
};
struct ReceivedFrame {
  std::uint32_t length = 0;  // all pieces, without the virtio-net header
  std::uint16_t first = 0;   // into the pieces of this burst
  std::uint16_t count = 0;
};

struct DriverQueueCounters {
  std::uint64_t short_frames = 0;     // received: shorter than the virtio-net header
  std::uint64_t bad_num_buffers = 0;  // received: num_buffers of 0 or more than the queue holds
};

// Buffers without work, first in first out (see ChainTable::free_ for why).
class BufferPool {
 public:
  explicit BufferPool(std::uint32_t count);
  std::uint32_t available() const { return available_; }
  std::uint16_t peek(std::uint32_t ahead) const {
    std::size_t place = std::size_t{head_} + ahead;
    if (place >= ring_.size()) place -= ring_.size();
    return ring_[place];
  }
  std::uint16_t take();
  void put(std::uint16_t buffer);

 private:
  std::vector<std::uint16_t> ring_;
  std::uint32_t head_ = 0;
  std::uint32_t available_ = 0;
};

template <DriverRing Ring>
class DriverTransmitQueue {
 public:
  using Slot = TransmitSlot;

  // `features` as negotiated, `ring` freshly made for them. options.layout must resolve.
  DriverTransmitQueue(std::unique_ptr<Ring> ring, const BufferArea& buffers, std::uint64_t features,
                      const TransmitOptions& options = {});

  // Fills in as many slots as there is room for, up to slots.size(). Takes back what the device has
  // sent first, or only when there is too little (Reclaim).
  std::uint32_t reserve(std::span<Slot> slots);
  // Sends the first slots of the last reserve(), in that order, and makes them available at once.
  // Returns whether the device asks for a kick. 1 <= slots.size() <= what reserve() returned.
  bool commit(std::span<const Slot> slots);
  // Takes back what the device has sent. Returns how many frames that were.
  std::uint32_t reclaim();

  std::uint32_t in_flight() const { return pool_size_ - pool_.available(); }
  TxLayout layout() const { return layout_; }
  Ring& ring() { return *ring_; }
  const Ring& ring() const { return *ring_; }

 private:
  void write_header(std::byte* place) const;
  std::optional<std::uint16_t> post(const Slot& slot);

  std::unique_ptr<Ring> ring_;
  BufferArea buffers_;
  std::uint32_t header_bytes_;
  TxLayout layout_;
  HeaderPolicy header_policy_;
  Reclaim reclaim_;
  std::uint32_t pool_size_;
  BufferPool pool_;
  std::vector<std::uint16_t> buffer_of_;  // by chain id
};

template <DriverRing Ring>
class DriverReceiveQueue {
 public:
  using Piece = ReceivedPiece;
  using Frame = ReceivedFrame;

  // Posts all buffers; the device sees them once the ring is given to it.
  DriverReceiveQueue(std::unique_ptr<Ring> ring, const BufferArea& buffers, std::uint64_t features);

  // Reads up to frames.size() whole frames. They stay readable until release(). A frame whose
  // buffers are not all used yet is left for later.
  std::uint32_t read(std::span<Frame> frames);
  // Of all frames read and not released; frame.first and frame.count say which are whose.
  std::span<const Piece> pieces() const { return pieces_; }
  std::span<const Piece> pieces(const Frame& frame) const {
    return pieces().subspan(frame.first, frame.count);
  }
  // Gives all buffers of the frames read back to the device. Returns whether it asks for a kick.
  bool release();

  // Before Ring::resume(), when the device went away: forgets the beginning of a frame whose end
  // will not come, and takes its buffers back. Follow with release() after the resume.
  void drop_partial();

  const DriverQueueCounters& counters() const { return counters_; }
  Ring& ring() { return *ring_; }
  const Ring& ring() const { return *ring_; }

 private:
  // One used buffer that no frame has claimed yet.
  struct Pending {
    std::uint16_t buffer = 0;
    std::uint32_t length = 0;
  };

  void collect();
  void post_free_buffers();
  const Pending& pending(std::uint32_t ahead) const {
    return pending_[(pending_head_ + ahead) & (pending_.size() - 1)];
  }
  void skip_pending(std::uint32_t count);
  std::byte* host(std::uint16_t buffer) const {
    return buffers_.host + std::size_t{buffer} * buffers_.buffer_bytes;
  }

  std::unique_ptr<Ring> ring_;
  BufferArea buffers_;
  std::uint32_t header_bytes_;
  bool mergeable_;
  std::uint32_t pool_size_;
  BufferPool pool_;
  std::vector<std::uint16_t> buffer_of_;  // by chain id
  std::vector<Pending> pending_;          // ring buffer; its size is a power of two
  std::uint32_t pending_head_ = 0;
  std::uint32_t pending_count_ = 0;
  std::vector<Piece> pieces_;  // of the frames read and not released
  DriverQueueCounters counters_;
};

extern template class DriverTransmitQueue<SplitDriver>;
extern template class DriverReceiveQueue<SplitDriver>;
extern template class DriverTransmitQueue<PackedDriver>;
extern template class DriverReceiveQueue<PackedDriver>;

}  // namespace vswitch::virtq
