// The device's end of a queue, split and packed, both directions: rings of arbitrary content that
// change between polls. The guest's whole memory is compared, byte by byte, with what an
// independent model says must be in it.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "dataplane/virtq/device_queue.h"
#include "tests/fuzz/device_model.h"
#include "tests/fuzz/device_queue_outcomes.h"
#include "tests/fuzz/guest.h"
#include "tests/fuzz/guest_hand.h"
#include "tests/fuzz/own_frame.h"
#include "tests/fuzz/target.h"

namespace vswitch::fuzz {
namespace {

template <typename Model>
class Scenario {
 public:
  using Queue = virtq::BasicDeviceQueue<typename Model::End>;

  Scenario(Script& script, std::uint8_t kind, Report& report)
      : script_(script), report_(report), receive_((kind & 2) != 0) {
    features_ = ((kind & 4) != 0 ? virtq::kFeatureMrgRxbuf : 0) |
                ((kind & 8) != 0 ? virtq::kFeatureVersion1 : 0) |
                ((kind & 16) != 0 ? virtq::kFeatureIndirectDesc : 0) |
                ((kind & 32) != 0 ? virtq::kFeatureEventIdx : 0) |
                ((kind & 64) != 0 ? virtq::kFeatureInOrder : 0);
    const std::uint8_t size_choice = script_.u8();
    set_up(size_choice, script_.u16());
  }

  void run() {
    for (int steps = 0; !script_.done() && steps < 256; ++steps) step();
  }

 private:
  using State = typename ModelChain::State;

  std::uint32_t header_bytes() const {
    return (features_ & (virtq::kFeatureMrgRxbuf | virtq::kFeatureVersion1)) != 0 ? 12 : 10;
  }
  bool mergeable() const { return (features_ & virtq::kFeatureMrgRxbuf) != 0; }
  bool indirect() const { return (features_ & virtq::kFeatureIndirectDesc) != 0; }
  bool event_index() const { return (features_ & virtq::kFeatureEventIdx) != 0; }

  void reach(std::size_t event, std::uint64_t times = 1) {
    if (times == 0) return;
    report_.reach(Outcomes::instance().index(Model::kPacked, receive_, event), times);
  }

  // A ring as the guest sets it up anew.
  void set_up(std::uint8_t size_choice, std::uint16_t position) {
    model_.emplace(size_choice, position);
    start(Model::valid_position(position, model_->size()));
  }
  void start(std::uint16_t position) {
    queue_.emplace(typename Model::End(model_->ring(), position, virtq::ring_features(features_)),
                   guest_.memory(), features_, model_->size());
    FUZZ_CHECK(queue_->position() == position && queue_->broken() == BrokenRing::kNone);
    since_ = position;
    slots_since_ = 0;
    never_asked_ = true;
    rested_ = guest_.image();
  }

  void step() {
    const std::uint8_t code = script_.u8();
    const std::uint8_t argument = code >> 4;
    switch (code & 15) {
      case 0:
        hand_.describe();
        break;
      case 1:
        model_->offer_head(script_.u16());
        break;
      case 2:
      case 3:
        hand_.offer(argument, (code & 1) != 0);
        break;
      case 4:
        hand_.fill_table(argument);
        break;
      case 5:
        hand_.scribble(Guest::kRing + script_.u16());
        break;
      case 6:
        hand_.scribble(hand_.address());
        break;
      case 7:
        model_->set_index(script_.u16());
        break;
      case 8: {
        const std::uint16_t event = script_.u16();
        model_->set_wish(event, script_.u8() & 3);
        break;
      }
      case 9:
      case 10:
        poll(argument);
        break;
      case 11:
        receive_ ? receive(argument, true) : transmit(true);
        break;
      case 12:
        ask();
        break;
      case 13:
        restart(argument);
        break;
      case 14:
        model_->resume(queue_->position());
        break;
      default:
        break;
    }
  }

  void poll(std::uint8_t argument) {
    if (receive_) {
      receive(argument, false);
    } else {
      transmit(false);
    }
  }

  // The chains that moved the position from where it stood, as of `before`.
  std::vector<ModelChain> chains_between(const Guest::Image& before, std::uint16_t from) {
    std::vector<ModelChain> chains;
    std::uint32_t slots = 0;
    while (from != queue_->position()) {
      ModelChain chain = model_->walk(before, from, slots, receive_, indirect());
      FUZZ_CHECK(chain.state == State::kGood || chain.state == State::kBad);
      from = model_->advance(from, chain);
      slots += chain.slots;
      FUZZ_CHECK(slots < 0x10000);
      if (chain.good() && chain.buffers.size() > 1) reach(kSeveralDescriptors);
      if (chain.good() && chain.indirect) reach(kIndirect);
      chains.push_back(std::move(chain));
    }
    slots_since_ += slots;
    return chains;
  }

  // Whether a chain of unknown extent stands where the queue stopped. A receive queue may have gone
  // back from there over the buffers of a frame that did not fit. `slots` were taken in this poll;
  // how many of them were returned by then is unknown.
  bool lost_ahead(const Guest::Image& before, std::uint32_t slots) {
    std::uint16_t position = queue_->position();
    for (std::uint32_t ahead = 0; ahead < model_->size(); ++ahead) {
      const ModelChain chain =
          model_->walk(before, position, std::min(slots, model_->size() - 1), receive_, indirect());
      if (chain.state == State::kLost) return true;
      if (chain.state == State::kNone || !receive_) return false;
      position = model_->advance(position, chain);
      slots += chain.slots;
    }
    return false;
  }

  // Whether what the queue says of its health is right, after a poll that began at `from`.
  void check_health(const Guest::Image& before, bool was_broken, std::uint16_t from,
                    const std::vector<ModelChain>& chains) {
    const BrokenRing broken = queue_->broken();
    if (was_broken) {
      FUZZ_CHECK(broken != BrokenRing::kNone && chains.empty());
      reach(kStaysBroken);
      return;
    }
    if (broken == BrokenRing::kNone) return;
    reach(kBrokenEvents + static_cast<std::size_t>(broken));
    std::uint32_t slots = 0;
    for (const ModelChain& chain : chains) slots += chain.slots;
    if (broken == BrokenRing::kIndexJump) {
      FUZZ_CHECK(model_->jumped(before, queue_->position()) || model_->jumped(before, from));
      return;
    }
    FUZZ_CHECK(lost_ahead(before, slots));
  }

  void transmit(bool change_meanwhile) {
    before_ = guest_.image();
    const std::uint16_t from = queue_->position();
    const bool was_broken = queue_->broken() != BrokenRing::kNone;
    const std::uint32_t walked = queue_->descriptors_walked();
    const auto drops_before = drops_of(counters_);
    const std::uint32_t taken = queue_->read(burst_, counters_);
    FUZZ_CHECK(same(guest_.image(), before_));  // reading writes nothing
    FUZZ_CHECK(taken <= kBurstFrames && burst_.count <= taken);
    FUZZ_CHECK(queue_->descriptors_walked() - walked <=
               virtq::kPollDescriptors + model_->size() + 1);
    if (taken == kBurstFrames) reach(kFullBurst);

    const std::vector<ModelChain> chains = chains_between(before_, from);
    FUZZ_CHECK(chains.size() == taken);
    check_health(before_, was_broken, from, chains);
    if (taken == 0 && queue_->broken() == BrokenRing::kNone) {
      FUZZ_CHECK(model_->empty(before_, from));
    }

    // Each chain is either the next frame or a drop.
    std::uint32_t frame = 0;
    std::uint32_t pieces = 0;
    std::uint64_t bytes = 0;
    for (const ModelChain& chain : chains) {
      FUZZ_CHECK(pieces < virtq::kPollSegments && bytes < virtq::kPollBytes);
      const bool fits = pieces + chain.pieces <= virtq::kPollSegments + model_->size() + 64;
      if (!chain.good() || !fits) continue;
      pieces += chain.pieces;
      bytes += chain.bytes;
      if (chain.bytes <= header_bytes()) continue;
      FUZZ_CHECK(frame < burst_.count);
      check_frame(burst_.frames[frame++], chain);
    }
    FUZZ_CHECK(frame == burst_.count);
    reach(kDelivered, frame);
    if (header_bytes() == 10) reach(kLegacyHeader, frame);
    count_drops(drops_before, taken - frame);

    if (change_meanwhile) {
      hand_.scribble(hand_.address());
      for (std::uint32_t i = 0; i < burst_.count; ++i) touch(burst_.frames[i]);
    }
    Guest::Image expected = guest_.image();
    std::uint16_t position = from;
    for (const ModelChain& chain : chains) {
      model_->put_used(expected, position, chain, 0);
      position = model_->advance(position, chain);
    }
    queue_->release();
    FUZZ_CHECK(same(guest_.image(), expected));
    queue_->release();  // nothing is left
    FUZZ_CHECK(same(guest_.image(), expected) && queue_->position() == position);
  }

  // The bytes of a frame are those of the chain behind the header.
  void check_frame(const Frame& frame, const ModelChain& chain) {
    FUZZ_CHECK(frame.bytes() == chain.bytes - header_bytes());
    FUZZ_CHECK(frame.header_bytes == std::min(frame.bytes(), kHeaderBytes));
    FUZZ_CHECK(frame.owner == FrameOwner::kGuestChain);
    const Segment* segment = frame.payload;
    std::uint32_t offset = frame.payload_offset;
    std::uint32_t done = 0;
    std::uint32_t skip = header_bytes();
    for (const Range& range : chain.buffers) {
      for (std::uint32_t i = std::min(skip, range.length); i < range.length; ++i) {
        if (done == kCompared && frame.bytes() > 2 * kCompared) return;
        const std::uint8_t want = before_[*Guest::place(range.address + i)];
        std::byte have;
        if (done < frame.header_bytes) {
          have = frame.header[done];
        } else {
          while (offset == segment->length) {
            ++segment;
            offset = 0;
          }
          have = segment->data[offset++];
        }
        FUZZ_CHECK(static_cast<std::uint8_t>(have) == want);
        ++done;
      }
      skip -= std::min(skip, range.length);
    }
    FUZZ_CHECK(done == frame.bytes());
  }

  // Whatever a guest does meanwhile, the views stay readable.
  void touch(const Frame& frame) {
    const Segment* segment = frame.payload;
    std::uint32_t offset = frame.payload_offset;
    for (std::uint32_t left = frame.payload_bytes; left != 0;) {
      const std::uint32_t here = std::min(left, segment->length - offset);
      for (std::uint32_t i = 0; i < here; i += 64) touched_ ^= segment->data[offset + i];
      left -= here;
      ++segment;
      offset = 0;
    }
  }

  void count_drops(const std::array<std::uint64_t, kDropReasonCount>& before,
                   std::uint64_t expected) {
    const auto after = drops_of(counters_);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < after.size(); ++i) {
      reach(kEventCount + i, after[i] - before[i]);
      if (static_cast<DropReason>(i) != DropReason::kNoRxBuffer) total += after[i] - before[i];
    }
    FUZZ_CHECK(total == expected);
  }

  void receive(std::uint8_t argument, bool in_steps) {
    const std::uint32_t count = argument < 8 ? argument + 1u : 4u * (argument - 7);
    std::vector<OwnFrame> own;
    own.reserve(count);
    std::uint16_t raw = script_.u16();
    for (std::uint32_t i = 0; i < count; ++i) {
      // In the low bits of the second byte: whether all are of one length.
      if (i != 0 && (raw & 0x8000) != 0) raw = script_.u16() | 0x8000;
      own.emplace_back(14 + (raw & 0x0fffu), 1 + (raw & 0x7000u) / 16);
    }
    std::vector<const Frame*> frames;
    for (const OwnFrame& frame : own) frames.push_back(&frame.frame);

    before_ = guest_.image();
    const std::uint16_t from = queue_->position();
    const bool was_broken = queue_->broken() != BrokenRing::kNone;
    const std::uint32_t walked = queue_->descriptors_walked();
    const auto drops_before = drops_of(counters_);
    const std::uint64_t packets_before = counters_.packets.value();
    const std::uint64_t bytes_before = counters_.bytes.value();
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t refused = 0;
    if (in_steps) {
      std::vector<std::pair<virtq::Reservation, const Frame*>> reservations;
      for (const Frame* const frame : frames) {
        virtq::Reservation reservation;
        if (!queue_->reserve(frame->bytes(), reservation, counters_)) {
          ++refused;
          continue;
        }
        reservations.emplace_back(reservation, frame);
        ++packets;
        bytes += frame->bytes();
      }
      FUZZ_CHECK(same(guest_.image(), before_));  // nothing is visible yet
      for (const auto& [reservation, frame] : reservations) queue_->fill(reservation, *frame);
      queue_->commit();
    } else {
      queue_->write(frames.data(), count, counters_);
      packets = counters_.packets.value() - packets_before;
      bytes = counters_.bytes.value() - bytes_before;
      refused = drops_of(counters_)[static_cast<std::size_t>(DropReason::kNoRxBuffer)] -
                drops_before[static_cast<std::size_t>(DropReason::kNoRxBuffer)];
    }
    FUZZ_CHECK(packets + refused == count);
    FUZZ_CHECK(queue_->descriptors_walked() - walked <=
               virtq::kWriteDescriptors + model_->size() + 1);
    check_received(frames, packets, bytes, from, was_broken, drops_before, in_steps);
  }

  // All chains that were available.
  std::vector<ModelChain> offered(const Guest::Image& image, std::uint16_t position) {
    std::vector<ModelChain> chains;
    std::uint32_t slots = 0;
    // A split ring of which more was once seen than there is now may be fetched up to its end.
    while (slots < model_->size()) {
      ModelChain chain = model_->walk(image, position, slots, receive_, indirect());
      if (chain.state != State::kGood && chain.state != State::kBad) break;
      position = model_->advance(position, chain);
      slots += chain.slots;
      chains.push_back(std::move(chain));
    }
    return chains;
  }

  void check_received(const std::vector<const Frame*>& frames, std::uint64_t packets,
                      std::uint64_t bytes, std::uint16_t from, bool was_broken,
                      const std::array<std::uint64_t, kDropReasonCount>& drops_before,
                      bool in_steps) {
    const Guest::Image& after = guest_.image();
    const std::vector<ModelChain> available = offered(before_, from);
    const bool stale = in_steps && model_->took_back(rested_, before_, from);
    rested_ = after;
    if (stale || overlaps_metadata(available)) {
      for (std::size_t i = 0; i < after.size(); ++i) {
        if (after[i] != before_[i]) FUZZ_CHECK(in_a_region(i));
      }
      const auto drops = drops_of(counters_);
      for (std::size_t i = 0; i < drops.size(); ++i) {
        reach(kEventCount + i, drops[i] - drops_before[i]);
      }
      confused_ = true;
      return;
    }
    const std::vector<ModelChain> chains = chains_between(before_, from);
    check_health(before_, was_broken, from, chains);

    const auto fragmented = static_cast<std::size_t>(DropReason::kTooFragmented);
    const bool cut = drops_of(counters_)[fragmented] != drops_before[fragmented];
    std::uint64_t pieces = 0;
    for (const ModelChain& chain : available) pieces += chain.pieces;
    // Only a guest that offers more pieces than a chain may have descriptors can be told so.
    if (cut) FUZZ_CHECK(pieces > model_->size() + 64);

    Guest::Image expected = before_;
    std::uint64_t bad = 0;
    std::uint64_t delivered = 0;
    std::uint64_t delivered_bytes = 0;
    std::size_t next_frame = 0;
    std::uint16_t position = from;
    for (std::size_t i = 0; i < chains.size();) {
      const std::uint32_t used = model_->used_length(after, position);
      const bool refused = !chains[i].good() || chains[i].bytes < header_bytes();
      if (refused || used == 0) {
        FUZZ_CHECK(used == 0);
        if (refused) ++bad;
        if (!refused && !cut) reach(kPutBack);
        model_->put_used(expected, position, chains[i], 0);
        position = model_->advance(position, chains[i++]);
        continue;
      }
      // The first frame, in order, that fits what these buffers say they hold.
      std::size_t buffers = 0;
      while (next_frame < frames.size() && buffers == 0) {
        buffers = match(*frames[next_frame], chains, i, position, after);
        if (buffers == 0) ++next_frame;
      }
      FUZZ_CHECK(buffers != 0);
      const Frame& frame = *frames[next_frame++];
      put_frame(expected, frame, chains, i, buffers);
      std::uint32_t missing = frame.bytes() + header_bytes();
      for (std::size_t k = 0; k < buffers; ++k, ++i) {
        const auto here =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(missing, chains[i].bytes));
        model_->put_used(expected, position, chains[i], here);
        position = model_->advance(position, chains[i]);
        missing -= here;
      }
      ++delivered;
      delivered_bytes += frame.bytes();
      if (buffers > 1) reach(kSeveralBuffers);
    }
    FUZZ_CHECK(same(after, expected));
    FUZZ_CHECK(delivered == packets && delivered_bytes == bytes);
    reach(kDelivered, delivered);
    if (header_bytes() == 10) reach(kLegacyHeader, delivered);
    if (cut) {
      // Which of the unused ones were refused is not told apart here.
      const auto drops = drops_of(counters_);
      for (std::size_t i = 0; i < drops.size(); ++i) {
        reach(kEventCount + i, drops[i] - drops_before[i]);
      }
    } else {
      count_drops(drops_before, bad);
    }
    // A first buffer that is good enough for the first frame takes it.
    if (!was_broken && !cut && !available.empty() && available[0].good() &&
        !model_->empty(before_, from) && !model_->jumped(before_, from) &&
        available[0].bytes >= frames[0]->bytes() + header_bytes()) {
      FUZZ_CHECK(delivered > 0);
    }
  }

  // Tells where the guest's memory is not what it must be.
  static bool same(const Guest::Image& have, const Guest::Image& want) {
    if (have == want) return true;
    for (std::size_t i = 0; i < have.size(); ++i) {
      if (have[i] == want[i]) continue;
      std::fprintf(stderr, "byte 0x%zx of the guest's file is 0x%02x and must be 0x%02x\n", i,
                   have[i], want[i]);
    }
    return false;
  }

  static bool in_a_region(std::size_t place) {
    for (const Guest::Extent& extent : Guest::kExtents) {
      if (place >= extent.file_offset && place - extent.file_offset < extent.size) return true;
    }
    return false;
  }

  // How many chains from `first` on hold the frame, by the lengths they were returned with; 0: not
  // this frame.
  std::size_t match(const Frame& frame, const std::vector<ModelChain>& chains, std::size_t first,
                    std::uint16_t position, const Guest::Image& after) const {
    std::uint64_t missing = frame.bytes() + header_bytes();
    for (std::size_t i = first; i < chains.size(); ++i) {
      const ModelChain& chain = chains[i];
      if (!chain.good() || chain.bytes < header_bytes()) return 0;
      const std::uint64_t here = std::min(missing, chain.bytes);
      if (model_->used_length(after, position) != here) return 0;
      missing -= here;
      if (missing == 0) return i - first + 1;
      if (!mergeable()) return 0;
      position = model_->advance(position, chain);
    }
    return 0;
  }

  void put_frame(Guest::Image& image, const Frame& frame, const std::vector<ModelChain>& chains,
                 std::size_t first, std::size_t buffers) {
    std::vector<std::uint8_t> content(header_bytes(), 0);
    if (header_bytes() == 12) {
      content[10] = static_cast<std::uint8_t>(buffers);
      content[11] = static_cast<std::uint8_t>(buffers >> 8);
    }
    // Header and payload of the scenario's frames are one piece of memory.
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(frame.header);
    content.insert(content.end(), bytes, bytes + frame.bytes());
    std::size_t done = 0;
    for (std::size_t k = first; k < first + buffers; ++k) {
      for (const Range& range : chains[k].buffers) {
        for (std::uint32_t i = 0; i < range.length && done < content.size(); ++i) {
          image[*Guest::place(range.address + i)] = content[done++];
        }
      }
    }
    FUZZ_CHECK(done == content.size());
  }

  // Whether the guest is to be notified of what was returned since it was last asked.
  void ask() {
    before_ = guest_.image();
    const bool wants = queue_->wants_event();
    FUZZ_CHECK(same(guest_.image(), before_));
    const bool first = never_asked_;
    const std::uint16_t since = since_;
    const std::uint64_t slots = slots_since_;
    never_asked_ = false;
    since_ = queue_->position();
    slots_since_ = 0;
    if (confused_) return;
    if (!event_index() || !model_->wish_is_event(before_)) {
      FUZZ_CHECK(wants == model_->wish_enabled(before_));
      reach(wants ? kWakes : kSilent);
      return;
    }
    if (first) {
      FUZZ_CHECK(wants);
      return;
    }
    if constexpr (Model::kPacked) {
      if (model_->wish_is_odd(before_)) return;
    }
    FUZZ_CHECK(wants == model_->passed_event(before_, since, queue_->position(), slots));
    reach(wants ? kWakesAtEvent : kSilentAtEvent);
  }

  void restart(std::uint8_t argument) {
    const bool broken = queue_->broken() != BrokenRing::kNone;
    if (broken || argument >= 8 || confused_) {
      const std::uint8_t size_choice = script_.u8();
      set_up(size_choice, script_.u16());
    } else {
      start(queue_->position());
      reach(kRestarted);
    }
    confused_ = false;
  }

  // Bytes of long frames that are compared.
  static constexpr std::uint32_t kCompared = 8192;

  Script& script_;
  Report& report_;
  bool receive_;
  std::uint64_t features_ = 0;
  Guest& guest_ = Guest::instance();
  std::optional<Model> model_;
  GuestHand<Model> hand_{script_, guest_, model_, receive_};
  std::optional<Queue> queue_;
  QueueCounters counters_;
  FrameBurst burst_;
  Guest::Image before_;
  Guest::Image rested_;      // at the end of the last receive poll
  std::uint16_t since_ = 0;  // position when the guest's wish was last looked at
  std::uint64_t slots_since_ = 0;
  bool never_asked_ = true;
  bool confused_ = false;  // the guest let its buffers overlap its ring
  std::byte touched_{};
};

void run(std::span<const std::uint8_t> input, Report& report) {
  Script script(input);
  Guest::instance().reset();
  const std::uint8_t kind = script.u8();
  if ((kind & 1) != 0) {
    const auto scenario = std::make_unique<Scenario<PackedModel>>(script, kind, report);
    scenario->run();
  } else {
    const auto scenario = std::make_unique<Scenario<SplitModel>>(script, kind, report);
    scenario->run();
  }
}

}  // namespace

const Target kTarget = {"device_queue", Outcomes::instance().names(), run};

}  // namespace vswitch::fuzz
