#include "dataplane/guest_memory/memory_fault.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "dataplane/os/eventfd.h"

namespace vswitch {
namespace {

// The list only ever grows at its head; the handler walks it without a lock.
std::atomic<ProtectedMapping*> mappings{nullptr};
std::mutex mappings_mutex;  // serialises protect/unprotect, never taken in the handler
std::atomic<int> fault_event{-1};
struct sigaction previous_action;

bool replace_vanished_mapping(std::uintptr_t address) {
  for (ProtectedMapping* mapping = mappings.load(std::memory_order_acquire); mapping != nullptr;
       mapping = mapping->next) {
    // Acquire on all three: begin and end are loaded between the two loads of the version. The
    // mapping that was accessed is not being changed, so one that is changing is not it.
    const std::uint64_t version = mapping->version.load(std::memory_order_acquire);
    const std::uintptr_t begin = mapping->begin.load(std::memory_order_acquire);
    const std::uintptr_t end = mapping->end.load(std::memory_order_acquire);
    if ((version & 1) != 0 || mapping->version.load(std::memory_order_relaxed) != version) continue;
    if (end == 0 || address < begin || address >= end) continue;
    void* const base = reinterpret_cast<void*>(begin);
    if (mmap(base, end - begin, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != base) {
      return false;
    }
    mapping->vanished.store(true, std::memory_order_release);
    signal_eventfd(fault_event.load(std::memory_order_relaxed));
    return true;
  }
  return false;
}

// With mappings_mutex held.
void set_range(ProtectedMapping& mapping, std::uintptr_t begin, std::uintptr_t end) {
  const std::uint64_t version = mapping.version.load(std::memory_order_relaxed);
  mapping.version.store(version + 1, std::memory_order_relaxed);
  // Release: whoever sees a new bound sees the odd version or a later one.
  mapping.begin.store(begin, std::memory_order_release);
  mapping.end.store(end, std::memory_order_release);
  mapping.version.store(version + 2, std::memory_order_release);
}

void handle_sigbus(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const bool sent = info->si_code <= 0;  // by kill() and its kin: no access failed
  const bool ours =
      !sent && replace_vanished_mapping(reinterpret_cast<std::uintptr_t>(info->si_addr));
  errno = saved_errno;
  if (ours) return;
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else if (!sent || previous_action.sa_handler == SIG_DFL) {
    // Not ours and nobody else's: the repeated access ends the process as it would have anyway. A
    // signal that was sent has no access to repeat.
    std::signal(signal, SIG_DFL);
    if (sent) raise(signal);
  }
}

}  // namespace

absl::Status install_memory_fault_handler() {
  static std::mutex installation;
  const std::lock_guard lock(installation);
  if (fault_event.load() >= 0) return absl::OkStatus();
  const int event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event < 0) return absl::ErrnoToStatus(errno, "cannot create the memory fault event");
  fault_event.store(event);
  struct sigaction action {};
  action.sa_sigaction = handle_sigbus;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, &action, &previous_action) != 0) {
    return absl::ErrnoToStatus(errno, "cannot install the SIGBUS handler");
  }
  return absl::OkStatus();
}

int memory_fault_event() { return fault_event.load(); }

ProtectedMapping* protect_mapping(void* base, std::size_t length) {
  const std::lock_guard lock(mappings_mutex);
  ProtectedMapping* mapping = mappings.load(std::memory_order_relaxed);
  while (mapping != nullptr && mapping->end.load(std::memory_order_relaxed) != 0) {
    mapping = mapping->next;
  }
  const bool recycled = mapping != nullptr;
  if (!recycled) mapping = new ProtectedMapping;
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  mapping->vanished.store(false, std::memory_order_relaxed);
  set_range(*mapping, begin, begin + length);
  if (!recycled) {
    mapping->next = mappings.load(std::memory_order_relaxed);
    mappings.store(mapping, std::memory_order_release);
  }
  return mapping;
}

void unprotect_mapping(ProtectedMapping* mapping) {
  const std::lock_guard lock(mappings_mutex);
  set_range(*mapping, 0, 0);
}

}  // namespace vswitch
