// A bridge without a data plane around it: guests with real rings, a topology made by hand, and
// forwarders that the test polls.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/forwarding/forwarder.h"
#include "dataplane/forwarding/topology.h"
#include "tests/dataplane/forwarding/fake_guest.h"

namespace vswitch::test {

inline constexpr std::uint64_t kVersion1 = 1ull << 32;
inline constexpr unsigned kWorkers = 2;

class TestPort {
 public:
  explicit TestPort(std::uint32_t mtu = 1500, std::uint32_t buffer_bytes = 2048,
                    std::uint16_t ring_size = 256, unsigned pairs = 1)
      : guest(ring_size, buffer_bytes, pairs), max_frame_bytes(mtu + 14) {
    std::vector<RegionDescription> regions;
    regions.push_back({FakeGuest::kGuestBase, guest.bytes(), FakeGuest::kUserBase, 0,
                       UniqueFd(::fcntl(guest.memory(), F_DUPFD_CLOEXEC, 0))});
    auto mapped = GuestMemory::map(std::move(regions));
    EXPECT_TRUE(mapped.ok()) << mapped.status();
    memory = *mapped;
    rx = make_queue(0);
    tx = make_queue(1);
    for (unsigned pair = 1; pair < pairs; ++pair) {
      more_rx.push_back({make_queue(2 * pair), std::make_unique<QueueCounters[]>(kWorkers)});
    }
  }
  // Where frames for it go: the receive queues that run.
  std::vector<forwarding::Topology::Sink> sinks() const {
    if (!up) return {};
    std::vector<forwarding::Topology::Sink> list = {{rx.get(), transmit.get()}};
    for (const MoreRx& more : more_rx) list.push_back({more.queue.get(), more.transmit.get()});
    return list;
  }

  std::unique_ptr<forwarding::PortQueue> make_queue(std::size_t index) {
    const FakeRing& ring = guest.ring(index);
    std::byte* const base = memory->at_user_address(guest.user_address(index, 0), 1);
    const virtq::SplitRing layout{reinterpret_cast<virtq::Descriptor*>(base),
                                  reinterpret_cast<virtq::RingHeader*>(base + ring.available_at()),
                                  reinterpret_cast<virtq::RingHeader*>(base + ring.used_at()),
                                  ring.size()};
    return std::make_unique<forwarding::PortQueue>(
        virtq::BasicDeviceQueue<virtq::SplitDevice>(virtq::SplitDevice(layout, 0, {}), memory,
                                                    kVersion1, ring.size()),
        call.get(), broken.get());
  }
  static std::uint64_t rung(const UniqueFd& event) {
    std::uint64_t count = 0;
    return ::read(event.get(), &count, sizeof(count)) == sizeof(count) ? count : 0;
  }

  FakeGuest guest;
  std::uint32_t max_frame_bytes;
  UniqueFd call{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  UniqueFd broken{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::shared_ptr<const GuestMemory> memory;
  std::unique_ptr<forwarding::PortQueue> rx, tx;
  std::unique_ptr<QueueCounters[]> receive = std::make_unique<QueueCounters[]>(kWorkers);
  std::unique_ptr<QueueCounters[]> transmit = std::make_unique<QueueCounters[]>(kWorkers);
  // Receive queues of further pairs.
  struct MoreRx {
    std::unique_ptr<forwarding::PortQueue> queue;
    std::unique_ptr<QueueCounters[]> transmit;
  };
  std::vector<MoreRx> more_rx;
  std::uint16_t generation = 1;
  bool up = true;  // its receive queues run

  std::uint64_t dropped(const std::unique_ptr<QueueCounters[]>& counters, DropReason reason) const {
    return counters[0].dropped[static_cast<std::size_t>(reason)].value() +
           counters[1].dropped[static_cast<std::size_t>(reason)].value();
  }
  std::uint64_t dropped_in(DropReason reason) const { return dropped(receive, reason); }
  std::uint64_t dropped_out(DropReason reason) const {
    std::uint64_t total = dropped(transmit, reason);
    for (const MoreRx& more : more_rx) total += dropped(more.transmit, reason);
    return total;
  }
  std::uint64_t all_dropped() const {
    std::uint64_t total = 0;
    for (std::size_t reason = 0; reason < kDropReasonCount; ++reason) {
      total += dropped_in(static_cast<DropReason>(reason)) +
               dropped_out(static_cast<DropReason>(reason));
    }
    return total;
  }
};

class SwitchFixture : public testing::Test {
 protected:
  SwitchFixture() {
    void* memory = nullptr;
    EXPECT_EQ(posix_memalign(&memory, 64, forwarding::Fdb::storage_bytes(64)), 0);
    fdb = std::make_unique<forwarding::Fdb>(forwarding::Fdb::Storage(memory, std::free), 64, 448);
  }

  TestPort& add_port(std::uint32_t mtu = 1500, std::uint32_t buffer_bytes = 2048,
                     unsigned pairs = 1) {
    ports.push_back(std::make_unique<TestPort>(mtu, buffer_bytes, 256, pairs));
    connect();
    return *ports.back();
  }
  // Builds the topology anew, port i at output i; all queues are polled by worker 0.
  void connect() {
    topology = {};
    topology.workers.resize(kWorkers);
    topology.bridges.push_back({fdb.get(), {}});
    for (std::size_t i = 0; i < ports.size(); ++i) {
      topology.outputs.emplace_back();
      if (!ports[i]) continue;
      TestPort& port = *ports[i];
      const auto number = static_cast<std::uint16_t>(i);
      topology.outputs[i] = {.queues = port.sinks(),
                             .counters = port.transmit.get(),
                             .max_frame_bytes = port.max_frame_bytes,
                             .generation = port.generation,
                             .bridge = 0};
      if (port.up) topology.bridges[0].outputs.push_back(number);
      topology.workers[0].push_back({.queue = port.tx.get(),
                                     .counters = port.receive.get(),
                                     .max_frame_bytes = port.max_frame_bytes,
                                     .output = number,
                                     .bridge = 0});
    }
  }
  // Polls everything until nothing is left to do. Returns how many polls found work.
  int run() {
    int bursts = 0;
    for (bool idle = false; !idle;) {
      idle = true;
      for (const auto& input : topology.workers[0]) {
        bool found = false;
        forwarder.poll(topology, input, found);
        if (!found) continue;
        idle = false;
        ++bursts;
      }
    }
    return bursts;
  }
  void learn(std::size_t port, Mac mac) {
    fdb->learn(mac, {static_cast<std::uint16_t>(port), ports[port]->generation}, 0);
  }
  FakeGuest& guest(std::size_t port) { return ports[port]->guest; }

  std::atomic<std::uint32_t> now{0};
  std::unique_ptr<forwarding::Fdb> fdb;
  std::vector<std::unique_ptr<TestPort>> ports;
  forwarding::Topology topology;
  forwarding::Forwarder forwarder{0, now};
};

}  // namespace vswitch::test
