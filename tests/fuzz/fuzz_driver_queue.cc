// The driver's end of a queue, split and packed, both directions: devices that return anything,
// write anywhere they can, and change it between calls. Compared with an independent account of
// which buffer is where.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataplane/virtq/driver_queue.h"
#include "tests/fuzz/driver_model.h"
#include "tests/fuzz/driver_queue_outcomes.h"
#include "tests/fuzz/target.h"

namespace vswitch::fuzz {
namespace {

// Where a buffer is.
enum class Place : std::uint8_t { kPool, kDevice, kPending, kCaller };

constexpr std::uint64_t kGuestBase = 0x100000;
constexpr std::uint32_t kMaxBuffers = 300;

// What both directions share: the ring, the buffers, and a device that does as the script says.
template <typename Wire>
class Base {
 protected:
  Base(Script& script, std::uint8_t kind, Report& report)
      : script_(script),
        report_(report),
        receive_((kind & 2) != 0),
        features_(((kind & 4) != 0 ? virtq::kFeatureMrgRxbuf : 0) |
                  ((kind & 8) != 0 ? virtq::kFeatureVersion1 : 0) |
                  ((kind & 16) != 0 ? virtq::kFeatureIndirectDesc : 0) |
                  ((kind & 32) != 0 ? virtq::kFeatureEventIdx : 0) |
                  ((kind & 64) != 0 ? virtq::kFeatureInOrder : 0) |
                  ((kind & 128) != 0 ? virtq::kFeatureAnyLayout : 0)),
        tables_(kMaxBuffers * virtq::kTransmitTableBytes, 16),
        wire_(script.u8(), virtq::ring_features(features_), tables_),
        count_(1 + script.u8()),
        buffer_bytes_(16 + script.u8()),
        buffers_(std::size_t{count_} * buffer_bytes_, 64),
        place_(count_, Place::kPool) {}

  std::uint32_t header_bytes() const {
    return (features_ & (virtq::kFeatureMrgRxbuf | virtq::kFeatureVersion1)) != 0 ? 12 : 10;
  }
  bool in_order() const { return (features_ & virtq::kFeatureInOrder) != 0; }
  virtq::BufferArea area() const {
    return {reinterpret_cast<std::byte*>(buffers_.data()),
            kGuestBase,
            buffer_bytes_,
            count_,
            {reinterpret_cast<std::byte*>(tables_.data()), 0}};
  }
  void reach(std::size_t event, std::uint64_t times = 1) {
    if (times == 0) return;
    report_.reach(Outcomes::instance().index(Wire::kPacked, receive_, event), times);
  }
  std::size_t count_in(Place place) const {
    return static_cast<std::size_t>(std::count(place_.begin(), place_.end(), place));
  }
  void move(std::uint32_t buffer, Place from, Place to) {
    FUZZ_CHECK(buffer < count_ && place_[buffer] == from);
    place_[buffer] = to;
  }

  // What the driver says of its ring against the account.
  template <typename Ring>
  void check_ring(const Ring& ring) {
    FUZZ_CHECK(ring.free_descriptors() == wire_.size() - wire_.in_flight().descriptors());
    FUZZ_CHECK(ring.broken() == broken_);
    FUZZ_CHECK(ring.counters().bad_ids == bad_ids_);
    FUZZ_CHECK(ring.counters().capped_lengths == capped_);
  }

  // A call that took back `chains` chains and counted `bad_ids` in all: which ones must those be?
  // One that `drains` looked until nothing was left.
  std::vector<ReturnedChain> reap(std::uint32_t chains, std::uint64_t bad_ids, bool drains) {
    std::vector<ReturnedChain> returned;
    InFlight& in_flight = wire_.in_flight();
    if (broken_) {
      FUZZ_CHECK(chains == 0 && bad_ids == bad_ids_);
      reach(kStaysBroken);
      return returned;
    }
    while (drains || returned.size() < chains || bad_ids_ < bad_ids) {
      if (in_flight.batch_open()) {
        if (!drains) FUZZ_CHECK(returned.size() < chains);
        ReturnedChain one = in_flight.hand_out();
        if (one.capped) ++capped_;
        reach(kCapped, one.capped);
        reach(kSkipped, one.skipped);
        reach(kOutOfOrder, one.out_of_order);
        returned.push_back(std::move(one));
        continue;
      }
      const Look look = wire_.look();
      if (look == Look::kNothing) {
        FUZZ_CHECK(drains);
        break;
      }
      if (look == Look::kBroken) {
        broken_ = true;
        if (Wire::kPacked) ++bad_ids_;
        reach(kBroken);
        break;
      }
      if (look == Look::kRefused) {
        ++bad_ids_;
        reach(kRefusedId);
      }
    }
    FUZZ_CHECK(returned.size() == chains && bad_ids_ == bad_ids);
    return returned;
  }

  void check_wish(bool wants) {
    if (!wire_.wish_is_event()) {
      FUZZ_CHECK(wants == wire_.wish_enabled());
      reach(wants ? kWakes : kSilent);
      return;
    }
    const bool odd = wire_.wish_is_odd();
    const bool passed = wire_.passed_event();
    if (odd) return;
    FUZZ_CHECK(wants == passed);
    reach(wants ? kWakesAtEvent : kSilentAtEvent);
  }

  // --- The device.
  void device_step(std::uint8_t code) {
    const std::uint8_t argument = code >> 4;
    switch (code & 7) {
      case 0:
        complete(argument);
        break;
      case 1: {
        const std::uint32_t id = argument < 8 ? script_.u16() : script_.u32();
        const std::uint16_t length = script_.u16();
        wire_.put_used(id, length, (argument & 1) != 0, 1 + (argument >> 1 & 3));
        break;
      }
      case 2:
        wire_.set_index(script_.u16());
        break;
      case 3: {
        const std::uint16_t event = script_.u16();
        wire_.set_wish(event, script_.u8() & 3);
        break;
      }
      case 4: {
        const std::uint8_t count = script_.u8() % 32;
        std::uint16_t where = script_.u16();
        for (std::uint8_t i = 0; i < count; ++i) *wire_.memory(where++) = script_.u8();
        break;
      }
      case 5: {
        const std::uint16_t where = script_.u16();
        const std::uint8_t count = script_.u8() % 32;
        for (std::uint8_t i = 0; i < count; ++i) {
          buffers_.data()[(where + i) % buffers_.size()] = script_.u8();
        }
        break;
      }
      case 6: {
        const std::uint16_t where = script_.u16();
        tables_.data()[where % tables_.size()] = script_.u8();
        break;
      }
      default:
        break;
    }
  }

  // Returns up to so many chains as an honest device would, for received frames with what the
  // script says was written.
  void complete(std::uint8_t argument) {
    const std::uint8_t how = script_.u8();
    const std::uint16_t raw = script_.u16();
    const std::uint32_t wanted = argument < 8 ? argument + 1u : 16u * (argument - 7);
    const bool whole_batch = in_order() && (how & 1) != 0;
    std::uint32_t entries = 0;
    PostedChain* last = nullptr;
    for (std::uint32_t i = 0; i < wanted; ++i) {
      const std::size_t waiting = wire_.in_flight().unreturned_count();
      if (waiting == 0) break;
      const std::size_t ahead = in_order() ? 0 : (how >> 2) % waiting;
      last = wire_.in_flight().unreturned(ahead);
      last->returned = true;
      entries += Wire::entries_of(*last);
      if (receive_ && buffer_bytes_ >= 12) {
        // num_buffers is in the first buffer of each frame.
        const std::uint16_t buffers = (how & 2) != 0 ? script_.u16() : 1;
        std::memcpy(buffers_.data() + std::size_t{last->buffer} * buffer_bytes_ + 10, &buffers, 2);
      }
      if (!whole_batch) {
        const std::uint32_t length = length_of(raw);
        wire_.put_used(last->id, length, length != 0, Wire::entries_of(*last));
      }
    }
    if (whole_batch && last != nullptr) {
      const std::uint32_t slots = entries;
      const std::uint32_t length = length_of(raw);
      wire_.put_used(last->id, length, length != 0, slots);
    }
  }
  std::uint32_t length_of(std::uint16_t raw) const {
    return receive_ && (raw & 0x8000) == 0 ? raw % (buffer_bytes_ + 1) : raw & 0x7fffu;
  }

  Script& script_;
  Report& report_;
  bool receive_;
  std::uint64_t features_;
  Block tables_;
  Wire wire_;
  std::uint32_t count_;
  std::uint32_t buffer_bytes_;
  Block buffers_;
  std::vector<Place> place_;
  bool broken_ = false;
  std::uint64_t bad_ids_ = 0;
  std::uint64_t capped_ = 0;
};

template <typename Wire>
class Transmit : Base<Wire> {
 public:
  using Queue = virtq::DriverTransmitQueue<typename Wire::Ring>;

  Transmit(Script& script, std::uint8_t kind, Report& report)
      : Base<Wire>(script, kind, report), queue_(make()) {
    switch (queue_.layout()) {
      case virtq::TxLayout::kPush:
        this->reach(kPush);
        break;
      case virtq::TxLayout::kIndirect:
        this->reach(kIndirect);
        break;
      default:
        this->reach(kChain);
    }
  }

  void run() {
    for (int steps = 0; !this->script_.done() && steps < 256; ++steps) {
      const std::uint8_t code = this->script_.u8();
      if ((code & 8) == 0) {
        this->device_step(code);
        continue;
      }
      switch (code & 7) {
        case 0:
        case 1:
        case 2:
          send(code >> 4);
          break;
        case 3:
          take_back(queue_.reclaim());
          break;
        case 4:
          resume();
          break;
        case 5:
          queue_.ring().suppress_calls((code & 16) != 0);
          break;
        default:
          break;
      }
      this->check_ring(queue_.ring());
      FUZZ_CHECK(queue_.in_flight() == this->count_in(Place::kDevice));
    }
  }

 private:
  Queue make() {
    const std::uint8_t raw = this->script_.u8();
    virtq::TransmitOptions options;
    options.layout = static_cast<virtq::TxLayout>(raw & 3);
    if (!resolve_tx_layout(options.layout, this->features_))
      options.layout = virtq::TxLayout::kAuto;
    options.header_policy =
        (raw & 4) != 0 ? virtq::HeaderPolicy::kAlwaysWrite : virtq::HeaderPolicy::kCompareThenWrite;
    eager_ = (raw & 8) != 0;
    options.reclaim = eager_ ? virtq::Reclaim::kEager : virtq::Reclaim::kLazy;
    return Queue(this->wire_.make_ring(), this->area(), this->features_, options);
  }

  void take_back(std::uint32_t chains) {
    for (const ReturnedChain& one :
         this->reap(chains, queue_.ring().counters().bad_ids, !this->broken_)) {
      this->move(one.chain.buffer, Place::kDevice, Place::kPool);
    }
  }

  void send(std::uint8_t argument) {
    const std::uint32_t wanted = argument < 8 ? argument + 1u : 16u * (argument - 7);
    std::vector<virtq::TransmitSlot> slots(wanted);
    const std::size_t in_pool = this->count_in(Place::kPool) - unused();
    const std::uint32_t before = queue_.in_flight();
    const std::uint32_t got = queue_.reserve(slots);
    if (eager_ || in_pool < wanted) {
      take_back(before - queue_.in_flight());
    } else {
      FUZZ_CHECK(queue_.in_flight() == before);
    }
    FUZZ_CHECK(got == std::min<std::size_t>(wanted, this->count_in(Place::kPool) - unused()));
    slots.resize(got);
    for (std::uint32_t i = 0; i < got; ++i) {
      virtq::TransmitSlot& slot = slots[i];
      FUZZ_CHECK(slot.buffer < this->count_ && this->place_[slot.buffer] == Place::kPool);
      const std::size_t offset = std::size_t{slot.buffer} * this->buffer_bytes_;
      FUZZ_CHECK(reinterpret_cast<std::uint8_t*>(slot.data) ==
                 this->buffers_.data() + offset + this->header_bytes());
      FUZZ_CHECK(slot.capacity == this->buffer_bytes_ - this->header_bytes());
      slot.length = slot.capacity - i % std::min(slot.capacity, 5u);
      std::memset(slot.data, 0x77, slot.length);
    }
    // Twice the same buffer would be found by the move below.
    const std::uint32_t sent = got - (got > 1 && (argument & 1) != 0 ? 1 : 0);
    if (sent == 0) return;
    const bool wants = queue_.commit(std::span(slots).first(sent));
    const std::vector<PostedChain> posted = this->wire_.collect_posted(sent);
    FUZZ_CHECK(posted.size() == sent);
    for (std::uint32_t i = 0; i < sent; ++i) {
      PostedChain chain = posted[i];
      chain.buffer = slots[i].buffer;
      check_posted(chain, slots[i]);
      this->move(chain.buffer, Place::kPool, Place::kDevice);
      this->wire_.in_flight().add(std::move(chain));
    }
    this->reach(kDone, sent);
    if (this->header_bytes() == 10) this->reach(kLegacyHeader, sent);
    this->check_wish(wants);
  }
  // Buffers that never come into use because the ring has no room for them.
  std::size_t unused() const {
    std::uint32_t room = this->wire_.size();
    if (queue_.layout() == virtq::TxLayout::kChain) room /= 2;
    // 2.7.5.3.1: a table is no longer than the queue.
    if (queue_.layout() == virtq::TxLayout::kIndirect && room < 2) room = 0;
    return this->count_ > room ? this->count_ - room : 0;
  }

  void check_posted(const PostedChain& chain, const virtq::TransmitSlot& slot) {
    const std::uint64_t address = kGuestBase + std::uint64_t{slot.buffer} * this->buffer_bytes_;
    const std::uint32_t header = this->header_bytes();
    std::vector<ModelSegment> expected = {{address, header, false},
                                          {address + header, slot.length, false}};
    if (queue_.layout() == virtq::TxLayout::kPush)
      expected = {{address, header + slot.length, false}};
    FUZZ_CHECK(chain.segments == expected);
    FUZZ_CHECK(chain.indirect == (queue_.layout() == virtq::TxLayout::kIndirect));
    const std::uint8_t* const host = this->buffers_.data() + (address - kGuestBase);
    FUZZ_CHECK(std::all_of(host, host + header, [](std::uint8_t byte) { return byte == 0; }));
    FUZZ_CHECK(std::all_of(host + header, host + header + slot.length,
                           [](std::uint8_t byte) { return byte == 0x77; }));
  }

  void resume() {
    this->reach(kResumedBroken, this->broken_);
    this->broken_ = false;
    const std::uint16_t base = queue_.ring().resume();
    this->reach(kResumed, !this->wire_.in_flight().chains().empty());
    this->wire_.check_resumed(base);
  }

  bool eager_ = false;
  Queue queue_;
};

template <typename Wire>
class Receive : Base<Wire> {
 public:
  using Queue = virtq::DriverReceiveQueue<typename Wire::Ring>;

  Receive(Script& script, std::uint8_t kind, Report& report)
      : Base<Wire>(script, kind, report),
        queue_(this->wire_.make_ring(), this->area(), this->features_),
        pool_(std::min(this->count_, this->wire_.size())) {
    take_posted(pool_);
  }

  void run() {
    for (int steps = 0; !this->script_.done() && steps < 256; ++steps) {
      const std::uint8_t code = this->script_.u8();
      if ((code & 8) == 0) {
        this->device_step(code);
        continue;
      }
      switch (code & 7) {
        case 0:
        case 1:
          read(code >> 4);
          break;
        case 2:
        case 3:
          release();
          break;
        case 4:
          resume((code & 16) != 0);
          break;
        case 5:
          queue_.ring().suppress_calls((code & 16) != 0);
          break;
        default:
          break;
      }
      this->check_ring(queue_.ring());
      // No buffer is ever lost.
      FUZZ_CHECK(this->wire_.in_flight().chains().size() == this->count_in(Place::kDevice));
      FUZZ_CHECK(queue_.pieces().size() == this->count_in(Place::kCaller));
    }
  }

 private:
  struct Pending {
    std::uint32_t buffer;
    std::uint32_t length;
  };

  bool mergeable() const { return (this->features_ & virtq::kFeatureMrgRxbuf) != 0; }
  const std::uint8_t* host(std::uint32_t buffer) const {
    return this->buffers_.data() + std::size_t{buffer} * this->buffer_bytes_;
  }

  // All posted buffers are whole, writable, and were with us.
  void take_posted(std::size_t count) {
    for (PostedChain& chain : this->wire_.collect_posted(count)) {
      FUZZ_CHECK(chain.segments.size() == 1 && !chain.indirect);
      const ModelSegment& segment = chain.segments[0];
      FUZZ_CHECK(segment.writable && segment.length == this->buffer_bytes_);
      FUZZ_CHECK((segment.address - kGuestBase) % this->buffer_bytes_ == 0);
      chain.buffer =
          static_cast<std::uint32_t>((segment.address - kGuestBase) / this->buffer_bytes_);
      FUZZ_CHECK(chain.buffer < pool_);
      this->move(chain.buffer, Place::kPool, Place::kDevice);
      this->wire_.in_flight().add(std::move(chain));
    }
  }

  void read(std::uint8_t argument) {
    const std::uint32_t wanted = argument < 8 ? argument + 1u : 16u * (argument - 7);
    std::vector<virtq::ReceivedFrame> frames(wanted);
    const std::uint32_t free_before = queue_.ring().free_descriptors();
    const virtq::DriverQueueCounters before = queue_.counters();
    const std::size_t pieces_before = queue_.pieces().size();
    const std::uint64_t bad_before = this->bad_ids_;
    const bool was_broken = this->broken_;
    const bool looks = pending_.size() < wanted;
    const std::uint32_t got = queue_.read(frames);
    FUZZ_CHECK(got <= wanted);
    const std::uint32_t taken = queue_.ring().free_descriptors() - free_before;
    const bool drained = queue_.ring().broken() && !was_broken;
    for (const ReturnedChain& one : this->reap(taken, queue_.ring().counters().bad_ids, drained)) {
      this->move(one.chain.buffer, Place::kDevice, Place::kPending);
      pending_.push_back({one.chain.buffer, one.length});
    }

    // The frames are what the pending buffers hold, in order.
    std::uint64_t short_frames = 0;
    std::uint64_t bad_numbers = 0;
    std::uint32_t frame = 0;
    std::size_t piece = pieces_before;
    bool waits = false;
    while (!pending_.empty() && frame < wanted) {
      const Pending first = pending_.front();
      std::uint16_t buffers = 1;
      if (first.length < this->header_bytes()) {
        ++short_frames;
        this->reach(kShort);
        buffers = 0;
      } else if (mergeable()) {
        std::memcpy(&buffers, host(first.buffer) + 10, 2);
        if (buffers == 0 || buffers > pool_) {
          ++bad_numbers;
          this->reach(buffers == 0 ? kNoBuffers : kTooManyBuffers);
          buffers = 0;
        }
      }
      if (buffers == 0) {
        this->move(first.buffer, Place::kPending, Place::kPool);
        pending_.pop_front();
        continue;
      }
      if (buffers > pending_.size()) {
        waits = true;
        this->reach(kWaits);
        break;
      }
      FUZZ_CHECK(frame < got);
      const virtq::ReceivedFrame& have = frames[frame++];
      FUZZ_CHECK(have.count == buffers && have.first == piece);
      std::uint64_t length = 0;
      for (std::uint32_t i = 0; i < buffers; ++i, ++piece) {
        check_piece(queue_.pieces()[piece], i == 0);
        length += queue_.pieces()[piece].length;
      }
      FUZZ_CHECK(have.length == length);
      if (buffers > 1) this->reach(kSeveralBuffers);
    }
    FUZZ_CHECK(frame == got && piece == queue_.pieces().size());
    FUZZ_CHECK(queue_.counters().short_frames - before.short_frames == short_frames);
    FUZZ_CHECK(queue_.counters().bad_num_buffers - before.bad_num_buffers == bad_numbers);
    this->reach(kDone, got);
    if (this->header_bytes() == 10) this->reach(kLegacyHeader, got);
    // Where too little was pending, whoever gets fewer frames than wanted, and no half of one, has
    // seen all there was; unless the one look it takes was filled by what it could not use.
    const std::uint64_t looked = taken + (this->bad_ids_ - bad_before);
    if (looks && got < wanted && !waits && !this->broken_ && looked < kLook) {
      FUZZ_CHECK(!this->wire_.in_flight().batch_open());
      FUZZ_CHECK(this->wire_.look() == Look::kNothing);
    }
  }

  void check_piece(const virtq::ReceivedPiece& piece, bool first) {
    const Pending want = pending_.front();
    pending_.pop_front();
    const std::uint32_t skip = first ? this->header_bytes() : 0;
    FUZZ_CHECK(piece.buffer == want.buffer && piece.length == want.length - skip);
    FUZZ_CHECK(want.length <= this->buffer_bytes_);
    FUZZ_CHECK(reinterpret_cast<const std::uint8_t*>(piece.data) == host(want.buffer) + skip);
    this->move(want.buffer, Place::kPending, Place::kCaller);
  }

  void release() {
    std::replace(this->place_.begin(), this->place_.end(), Place::kCaller, Place::kPool);
    const std::size_t expected = this->count_in(Place::kPool) - (this->count_ - pool_);
    const bool wants = queue_.release();
    take_posted(expected);
    if (expected == 0) {
      FUZZ_CHECK(!wants);
      return;
    }
    this->check_wish(wants);
  }

  void resume(bool release_after) {
    this->reach(kResumedBroken, this->broken_);
    this->broken_ = false;
    this->reach(kPartialDropped, !pending_.empty());
    queue_.drop_partial();
    for (const Pending& one : pending_) this->move(one.buffer, Place::kPending, Place::kPool);
    pending_.clear();
    const std::uint16_t base = queue_.ring().resume();
    this->reach(kResumed, !this->wire_.in_flight().chains().empty());
    this->wire_.check_resumed(base);
    if (release_after) release();
  }

  static constexpr std::uint64_t kLook = 64;  // used elements looked at in one go

  Queue queue_;
  std::uint32_t pool_;
  std::deque<Pending> pending_;
};

void run(std::span<const std::uint8_t> input, Report& report) {
  Script script(input);
  const std::uint8_t kind = script.u8();
  switch (kind & 3) {
    case 0:
      Transmit<SplitWire>(script, kind, report).run();
      break;
    case 1:
      Transmit<PackedWire>(script, kind, report).run();
      break;
    case 2:
      Receive<SplitWire>(script, kind, report).run();
      break;
    default:
      Receive<PackedWire>(script, kind, report).run();
  }
}

}  // namespace

const Target kTarget = {"driver_queue", Outcomes::instance().names(), run};

}  // namespace vswitch::fuzz
