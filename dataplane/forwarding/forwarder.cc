#include "dataplane/forwarding/forwarder.h"

#include <bit>
#include <mutex>

#include "dataplane/net_header/ethernet.h"
#include "dataplane/net_header/flow_hash.h"

namespace vswitch::forwarding {
namespace {

// An MTU bounds what follows the Ethernet header and its tags, so tags come on top.
bool fits(const Frame& frame, std::uint32_t max_frame_bytes) {
  return frame.bytes() <= max_frame_bytes ||
         frame.bytes() <= max_frame_bytes + vlan_tag_bytes(frame.header, frame.header_bytes);
}

}  // namespace

[[gnu::always_inline]] inline std::uint16_t Forwarder::classify(const Topology& topology,
                                                                const Topology::Input& input,
                                                                const Frame& frame,
                                                                QueueCounters& counters,
                                                                Memory& memory) const {
  const auto drop = [&](DropReason reason) {
    counters.drop(reason);
    return kDropped;
  };
  if (frame.bytes() < kEthernetHeaderBytes) [[unlikely]] {
    return drop(DropReason::kRunt);
  }
  if (!fits(frame, input.max_frame_bytes)) [[unlikely]] {
    return drop(DropReason::kOversize);
  }
  // The private header has room behind a short frame, so that wide loads are in bounds.
  const FdbKey source = fdb_key(0, load_mac_wide(frame.header + 6));
  if (source != memory.source) {
    if (source == 0 || is_group(source)) return drop(DropReason::kInvalidSource);
    topology.bridges[input.bridge].fdb->learn(
        source, {input.output, topology.outputs[input.output].generation},
        now_seconds_.load(std::memory_order_relaxed));
    memory.source = source;
  }
  const auto flood = [&] {
    return memory.has_others ? kFlooded : drop(DropReason::kNoDestination);
  };
  const FdbKey destination = fdb_key(0, load_mac_wide(frame.header));
  // A verdict that drops must count each time, so only others are remembered.
  if (destination == memory.destination) return memory.verdict;
  if (is_group(destination)) {
    return is_reserved_group(destination) ? drop(DropReason::kReservedDestination) : flood();
  }
  Location location;
  // A worker with a newer snapshot may have learned from a port that this one does not know yet.
  if (topology.bridges[input.bridge].fdb->lookup(destination, location) &&
      location.output < topology.outputs.size()) {
    const Topology::Output& output = topology.outputs[location.output];
    if (output.generation == location.generation && output.counters != nullptr) {
      if (location.output == input.output) return drop(DropReason::kSamePort);
      memory.destination = destination;
      memory.verdict = location.output;
      return location.output;
    }
  }
  return flood();
}

bool Forwarder::classify_burst(const Topology& topology, const Topology::Input& input,
                               QueueCounters& counters) {
  Memory memory;
  for (const std::uint16_t output : topology.bridges[input.bridge].outputs) {
    if (output != input.output) {
      memory.has_others = true;
      break;
    }
  }
  bool any_flooded = false;
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < burst_.count; ++i) {
    const Frame& frame = burst_.frames[i];
    const std::uint16_t verdict = classify(topology, input, frame, counters, memory);
    destinations_[i] = verdict;
    any_flooded |= verdict == kFlooded;
    if (verdict == kDropped) continue;
    ++packets;
    bytes += frame.bytes();
  }
  counters.packets.add(packets);
  counters.bytes.add(bytes);
  return any_flooded;
}

std::uint32_t Forwarder::poll(const Topology& topology, const Topology::Input& input,
                              bool& found_work) {
  QueueCounters& counters = input.counters[worker_];
  found_work = input.queue->read(burst_, counters) != 0;
  if (!found_work) return 0;
  hashed_ = 0;
  if (classify_burst(topology, input, counters)) deliver_flooded(topology, input);
  deliver_unicast(topology);
  input.queue->notify(input.queue->release(), counters);
  return burst_.count;
}

// Writes the frames for one output, in the order they were read, and marks them done. Flooded
// frames are left for the other outputs.
void Forwarder::deliver(const Topology& topology, std::uint16_t output, bool and_flooded) {
  const Topology::Output& port = topology.outputs[output];
  QueueCounters& counters = port.counters[worker_];
  std::array<const Frame*, kBurstFrames> frames;
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < burst_.count; ++i) {
    const bool mine = destinations_[i] == output;
    if (!mine && !(and_flooded && destinations_[i] == kFlooded)) continue;
    if (mine) destinations_[i] = kDropped;
    const Frame& frame = burst_.frames[i];
    if (!fits(frame, port.max_frame_bytes)) [[unlikely]] {
      counters.drop(DropReason::kOversize);
      continue;
    }
    frames[count++] = &frame;
  }
  if (count == 0) return;
  if (port.queues.empty()) {
    counters.drop(DropReason::kPortDown, count);
  } else if (port.queues.size() == 1) {
    write(port.queues.front(), frames.data(), count);
  } else {
    deliver_by_flow(port, frames.data(), count);
  }
}

// Frames of one flow stay in order: they go to one queue, in the order they were read.
void Forwarder::deliver_by_flow(const Topology::Output& port, const Frame* const* frames,
                                std::uint32_t count) {
  const auto queues = static_cast<std::uint32_t>(port.queues.size());
  std::array<std::uint8_t, kBurstFrames> queue_of;
  std::uint32_t used = 0;  // bit per queue
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t queue = flow_queue(hash_of(*frames[i]), queues);
    queue_of[i] = static_cast<std::uint8_t>(queue);
    used |= std::uint32_t{1} << queue;
  }
  for (; used != 0; used &= used - 1) {
    const auto queue = static_cast<std::uint32_t>(std::countr_zero(used));
    std::array<const Frame*, kBurstFrames> chosen;
    std::uint32_t chosen_count = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (queue_of[i] == queue) chosen[chosen_count++] = frames[i];
    }
    write(port.queues[queue], chosen.data(), chosen_count);
  }
}

void Forwarder::write(const Topology::Sink& sink, const Frame* const* frames,
                      std::uint32_t count) const {
  QueueCounters& counters = sink.counters[worker_];
  bool wanted = false;
  {
    // Workers that write to the same guest take turns a burst at a time.
    const std::lock_guard lock(*sink.queue);
    wanted = sink.queue->write(frames, count, counters);
  }
  sink.queue->notify(wanted, counters);
}

std::uint32_t Forwarder::hash_of(const Frame& frame) {
  const auto index = static_cast<std::uint32_t>(&frame - burst_.frames.data());
  const std::uint32_t bit = std::uint32_t{1} << index;
  if ((hashed_ & bit) == 0) {
    hashes_[index] = flow_hash(frame.header, frame.header_bytes);
    hashed_ |= bit;
  }
  return hashes_[index];
}

void Forwarder::deliver_flooded(const Topology& topology, const Topology::Input& input) {
  for (const std::uint16_t output : topology.bridges[input.bridge].outputs) {
    if (output != input.output) deliver(topology, output, true);
  }
}

void Forwarder::deliver_unicast(const Topology& topology) {
  for (std::uint32_t i = 0; i < burst_.count; ++i) {
    if (destinations_[i] < kFlooded) deliver(topology, destinations_[i], false);
  }
}

}  // namespace vswitch::forwarding
