// The life of a burst: read, classify, deliver, release. One Forwarder per worker.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "dataplane/forwarding/topology.h"
#include "dataplane/frame/frame.h"

namespace vswitch::forwarding {

class Forwarder {
 public:
  // `worker` selects the counters; `now_seconds` is the clock of the MAC tables.
  Forwarder(unsigned worker, const std::atomic<std::uint32_t>& now_seconds)
      : worker_(worker), now_seconds_(now_seconds) {}

  // Moves one burst from an input to its outputs. Returns the number of frames read (refused chains
  // not included); `found_work` says whether there was anything to do.
  std::uint32_t poll(const Topology& topology, const Topology::Input& input, bool& found_work);

 private:
  // Output numbers are below kMaxPorts; these are no outputs.
  static constexpr std::uint16_t kDropped = 0xffff;
  static constexpr std::uint16_t kFlooded = 0xfffe;
  // Equal to no key that a frame can have, not even one of the zero address.
  static constexpr FdbKey kNoKey = ~FdbKey{0};

  // What the previous frame of a burst says of the next: the same source need not be learned again,
  // and the same destination not be looked up.
  struct Memory {
    FdbKey source = kNoKey;
    FdbKey destination = kNoKey;
    std::uint16_t verdict = kDropped;
    bool has_others = false;  // the bridge has a port up that is not the input's
  };

  std::uint16_t classify(const Topology& topology, const Topology::Input& input, const Frame& frame,
                         QueueCounters& counters, Memory& memory) const;
  // Decides every frame of the burst; true if some are flooded.
  bool classify_burst(const Topology& topology, const Topology::Input& input,
                      QueueCounters& counters);
  void deliver(const Topology& topology, std::uint16_t output, bool and_flooded);
  void deliver_by_flow(const Topology::Output& port, const Frame* const* frames,
                       std::uint32_t count);
  void write(const Topology::Sink& sink, const Frame* const* frames, std::uint32_t count) const;
  // Of a frame of the burst; worked out when first asked for.
  std::uint32_t hash_of(const Frame& frame);
  void deliver_unicast(const Topology& topology);
  void deliver_flooded(const Topology& topology, const Topology::Input& input);

  unsigned worker_;
  const std::atomic<std::uint32_t>& now_seconds_;
  FrameBurst burst_;
  std::array<std::uint16_t, kBurstFrames> destinations_{};
  std::array<std::uint32_t, kBurstFrames> hashes_{};
  std::uint32_t hashed_ = 0;  // bit per frame: its hash is known
  static_assert(kBurstFrames <= 32);
};

}  // namespace vswitch::forwarding
