// How to attach a guest to a port: command lines to copy.
#pragma once

#include <string>

#include "vswitch/v1/port.pb.h"

namespace vswitch::ctl {

// The arguments that QEMU needs besides the guest's own, one a line with a backslash between.
// `size` is the guest's memory, e.g. "1G".
std::string qemu_arguments(const v1::Port& port, const std::string& size);
// A whole testpmd command line with DPDK's virtio-user driver. Needs no hugepages.
std::string testpmd_command(const v1::Port& port);

// A locally administered unicast address that is always the same for a port's name: QEMU gives
// every guest the same one otherwise.
std::string suggested_mac(const std::string& port_name);

}  // namespace vswitch::ctl
