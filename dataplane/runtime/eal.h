// Start-up of DPDK's environment (EAL): memory, and the identity of worker threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/dataplane.h"
#include "dataplane/runtime/cpu_list.h"

namespace vswitch::dataplane {

struct EalInfo {
  bool hugepages = false;
  std::uint64_t memory_bytes = 0;
};

inline constexpr std::uint64_t kMinMemoryBytes = 16ull << 20;

// Initialises the EAL without devices, once per process; a later call returns what the first one
// set up. `cpu`: where the calling thread is while the EAL counts it as its main core; its affinity
// is restored. RESOURCE_EXHAUSTED names what is needed and what there is.
absl::StatusOr<EalInfo> start_eal(std::uint64_t memory_bytes, HugepageMode hugepages, unsigned cpu);

// Zeroed memory from the EAL, cache-line aligned; nullptr when it has no more. Thread-safe.
void* eal_allocate(std::size_t bytes, int numa_node);
void eal_free(void* memory);

}  // namespace vswitch::dataplane
