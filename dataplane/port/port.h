// A port of the switch, whatever is behind it.
//
// Ports belong to the vhost-user loop. A port says what it contributes to a topology snapshot, and
// asks for a new one whenever that changes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dataplane/dataplane.h"
#include "dataplane/forwarding/topology.h"
#include "dataplane/forwarding/topology_publisher.h"
#include "dataplane/os/event_loop.h"

namespace vswitch::dataplane {

// What a port needs from the data plane. All outlive the port.
struct PortServices {
  EventLoop& loop;
  forwarding::TopologyPublisher& publisher;
  int broken_event = -1;  // signalled by a worker when a ring breaks
  unsigned workers = 1;
};

// Where the port sits in the topology; fixed for its life.
struct PortPlace {
  std::uint16_t output = 0;      // number, unique among living ports
  std::uint16_t generation = 0;  // of that number
  std::uint16_t bridge = 0;
  unsigned worker = 0;  // polls the first transmit queue; the next worker the next one, and so on
};

class Port {
 public:
  virtual ~Port() = default;

  virtual const PortConfig& config() const = 0;
  virtual const PortPlace& place() const = 0;
  // Adds the port's output and inputs to a snapshot that is being built.
  virtual void contribute(forwarding::Topology& topology) const = 0;
  virtual PortStatus status() const = 0;
  // Once a second.
  virtual void tick() = 0;
  // A ring of some port broke, or some peer's memory vanished: see whether it is this port's.
  virtual void check_health() = 0;
  // Ends the port: `done` runs when no worker uses it and its resources are released. The port may
  // be destroyed from then on.
  virtual void shut_down(std::function<void()> done) = 0;
};

}  // namespace vswitch::dataplane
