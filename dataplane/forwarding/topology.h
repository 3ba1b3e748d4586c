// One immutable picture of what is connected to what, for the workers.
//
// The vhost-user loop builds a new Topology for every change and publishes it (see
// topology_publisher.h); workers read the current one at the start of each round and hold no
// pointer into it across rounds. Everything it points to outlives it.
#pragma once

#include <cstdint>
#include <vector>

#include "dataplane/forwarding/fdb.h"
#include "dataplane/forwarding/port_queue.h"
#include "dataplane/frame/counters.h"

namespace vswitch::forwarding {

struct Topology {
  // A guest receive queue.
  struct Sink {
    PortQueue* queue = nullptr;
    QueueCounters* counters = nullptr;  // [worker], direction transmit
  };

  // Where frames go to: one a port, found by output number.
  struct Output {
    // The receive queues in service, by queue pair; none: the port cannot take frames now. Which
    // one a frame goes to is up to its flow.
    std::vector<Sink> queues;
    // [worker], direction transmit, for frames that come to no queue; nullptr: no such port.
    QueueCounters* counters = nullptr;
    std::uint32_t max_frame_bytes = 0;  // untagged
    std::uint16_t generation = 0;
    std::uint16_t bridge = 0;
  };

  // Where frames come from: one a guest transmit queue.
  struct Input {
    PortQueue* queue = nullptr;
    QueueCounters* counters = nullptr;  // [worker], direction receive
    std::uint32_t max_frame_bytes = 0;  // untagged
    std::uint16_t output = 0;           // of the same port
    std::uint16_t bridge = 0;
  };

  struct Bridge {
    Fdb* fdb = nullptr;
    std::vector<std::uint16_t> outputs;  // of the ports that can take frames now
  };

  std::vector<Output> outputs;              // by output number
  std::vector<Bridge> bridges;              // by bridge number
  std::vector<std::vector<Input>> workers;  // by worker: the queues it polls
};

}  // namespace vswitch::forwarding
