// Sets of CPUs: which ones this process may use, which of them become workers.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vswitch::dataplane {

// CPUs that the calling thread may run on, ascending.
std::vector<unsigned> usable_cpus();

// "0-3,8": ascending ranges.
std::string format_cpus(const std::vector<unsigned>& cpus);

// Which CPUs the workers get: `wanted` as it is, or `count` chosen from `usable`, highest first.
// INVALID_ARGUMENT for a CPU that is not usable or named twice, or too many workers.
absl::StatusOr<std::vector<unsigned>> choose_worker_cpus(const std::vector<unsigned>& usable,
                                                         const std::vector<unsigned>& wanted,
                                                         unsigned count);

// Restricts the calling thread, and threads it creates later.
absl::Status set_affinity(const std::vector<unsigned>& cpus);

}  // namespace vswitch::dataplane
