// Surviving the loss of memory that a peer shares with us.
//
// A peer can truncate the file behind a mapping at any moment; the next access raises SIGBUS. The
// handler installed here maps anonymous memory over the whole mapping (the interrupted access is
// repeated and reads zeros), marks the mapping as vanished and wakes whoever watches fault_event().
// A fault outside registered mappings is handed to the handler that was there before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace vswitch {

// Installs the SIGBUS handler, once per process; later calls do nothing. Call it after libraries
// that install their own (the EAL) have been initialised.
absl::Status install_memory_fault_handler();

// Becomes readable (eventfd) when a registered mapping vanished. -1 before installation. The
// descriptor belongs to this room.
int memory_fault_event();

// A mapping under protection. Entries are recycled, never freed: the signal handler may look at
// them at any time.
struct ProtectedMapping {
  // Odd while begin and end are changed: the handler must not take the beginning of one mapping and
  // the end of another for a range.
  std::atomic<std::uint64_t> version{0};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};  // 0: not in use
  std::atomic<bool> vanished{false};
  ProtectedMapping* next = nullptr;
};

// Thread-safe. `length` in bytes, a multiple of the page size that `base` was mapped with.
ProtectedMapping* protect_mapping(void* base, std::size_t length);
// Must be called before the memory is unmapped.
void unprotect_mapping(ProtectedMapping* mapping);

}  // namespace vswitch
