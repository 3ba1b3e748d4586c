// Resources as tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vswitch/v1/bridge.pb.h"
#include "vswitch/v1/fdb.pb.h"
#include "vswitch/v1/port.pb.h"
#include "vswitch/v1/system.pb.h"

namespace vswitch::ctl {

std::string bridge_table(const std::vector<v1::Bridge>& bridges, bool has_headers);
std::string port_table(const std::vector<v1::Port>& ports, bool is_wide, bool has_headers);
std::string fdb_table(const std::vector<v1::FdbEntry>& entries, bool has_headers);
std::string worker_table(const std::vector<v1::Worker>& workers, bool is_wide, bool has_headers);
std::string system_table(const v1::SystemInfo& system, bool has_headers);

// "Up", "Listening", …
std::string state_name(v1::Port::State state);
// "vhost-user".
std::string kind_name(const v1::Port& port);
// "2026-01-31T12:00:00Z".
std::string time_text(const google::protobuf::Timestamp& time);
// "64 MiB", in the largest unit that fits.
std::string size_text(std::uint64_t bytes);

}  // namespace vswitch::ctl
