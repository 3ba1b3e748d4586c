#include "dataplane/runtime/cpu_list.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dataplane/forwarding/topology_publisher.h"

namespace vswitch::dataplane {

std::vector<unsigned> usable_cpus() {
  std::vector<unsigned> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (pthread_getaffinity_np(pthread_self(), sizeof(set), &set) != 0) return cpus;
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::string format_cpus(const std::vector<unsigned>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (last > i) absl::StrAppend(&text, "-", cpus[last]);
    i = last + 1;
  }
  return text;
}

absl::StatusOr<std::vector<unsigned>> choose_worker_cpus(const std::vector<unsigned>& usable,
                                                         const std::vector<unsigned>& wanted,
                                                         unsigned count) {
  const std::size_t workers = wanted.empty() ? count : wanted.size();
  if (workers == 0 || workers > forwarding::kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of workers must be from 1 to ", forwarding::kMaxWorkers));
  }
  if (workers > usable.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(workers, " workers need as many CPUs; usable: ", format_cpus(usable)));
  }
  if (wanted.empty()) return std::vector<unsigned>(usable.rbegin(), usable.rbegin() + count);
  for (auto cpu = wanted.begin(); cpu != wanted.end(); ++cpu) {
    if (std::find(usable.begin(), usable.end(), *cpu) == usable.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("CPU ", *cpu, " cannot be used; usable: ", format_cpus(usable)));
    }
    if (std::find(wanted.begin(), cpu, *cpu) != cpu) {
      return absl::InvalidArgumentError(absl::StrCat("CPU ", *cpu, " is named twice"));
    }
  }
  return wanted;
}

absl::Status set_affinity(const std::vector<unsigned>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const unsigned cpu : cpus) CPU_SET(cpu, &set);
  const int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  return error == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, "cannot set the CPU affinity");
}

}  // namespace vswitch::dataplane
