// All about one resource, for people.
#pragma once

#include <string>
#include <vector>

#include "vswitch/v1/bridge.pb.h"
#include "vswitch/v1/port.pb.h"

namespace vswitch::ctl {

std::string describe_port(const v1::Port& port);
// `ports` may hold ports of other bridges.
std::string describe_bridge(const v1::Bridge& bridge, const std::vector<v1::Port>& ports);

}  // namespace vswitch::ctl
