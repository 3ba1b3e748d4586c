#include "dataplane/runtime/eal.h"

#include <dirent.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_malloc.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <fstream>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace vswitch::dataplane {
namespace {

constexpr std::uint64_t kMebibyte = 1ull << 20;

// Bytes in free hugepages of the default kind that the kernel has reserved, all sizes together.
std::uint64_t free_hugepage_bytes() {
  constexpr const char* kDirectory = "/sys/kernel/mm/hugepages";
  std::uint64_t bytes = 0;
  DIR* const directory = opendir(kDirectory);
  if (directory == nullptr) return 0;
  while (const dirent* entry = readdir(directory)) {
    absl::string_view name = entry->d_name;  // hugepages-2048kB
    std::uint64_t kibibytes = 0;
    if (!absl::ConsumePrefix(&name, "hugepages-") || !absl::ConsumeSuffix(&name, "kB") ||
        !absl::SimpleAtoi(name, &kibibytes)) {
      continue;
    }
    std::ifstream file(absl::StrCat(kDirectory, "/", entry->d_name, "/free_hugepages"));
    std::uint64_t pages = 0;
    if (file >> pages) bytes += pages * kibibytes * 1024;
  }
  closedir(directory);
  return bytes;
}

std::string mebibytes(std::uint64_t bytes) {
  return absl::StrCat((bytes + kMebibyte - 1) / kMebibyte, " MiB");
}

absl::StatusOr<bool> choose_hugepages(std::uint64_t memory_bytes, HugepageMode mode) {
  const std::uint64_t available = mode == HugepageMode::kOff ? 0 : free_hugepage_bytes();
  if (mode == HugepageMode::kOn && available < memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "hugepages for ", mebibytes(memory_bytes), " are needed and ", mebibytes(available),
        " are free; reserve more (/proc/sys/vm/nr_hugepages) or use --hugepages off"));
  }
  const bool use = mode != HugepageMode::kOff && available >= memory_bytes;
  struct sysinfo system {};
  if (!use && sysinfo(&system) == 0) {
    const std::uint64_t total = std::uint64_t{system.totalram} * system.mem_unit;
    if (memory_bytes > total) {
      return absl::ResourceExhaustedError(
          absl::StrCat(mebibytes(memory_bytes), " of memory are needed and this machine has ",
                       mebibytes(total)));
    }
  }
  return use;
}

absl::StatusOr<EalInfo> initialise(std::uint64_t memory_bytes, HugepageMode mode, unsigned cpu) {
  const absl::StatusOr<bool> hugepages = choose_hugepages(memory_bytes, mode);
  if (!hugepages.ok()) return hugepages.status();
  std::vector<std::string> arguments = {
      "vswitchd",
      // Preallocated and never grown: growing installs the EAL's own SIGBUS handler over ours.
      "-m", absl::StrCat((memory_bytes + kMebibyte - 1) / kMebibyte),
      // One core for the EAL's books; workers register themselves.
      absl::StrCat("--lcores=0@", cpu), "--no-pci", "--no-telemetry", "--iova-mode=va",
      "--log-level=*:error"};
  if (*hugepages) {
    arguments.insert(arguments.end(),
                     {"--in-memory", absl::StrCat("--file-prefix=vswitchd-", getpid())});
  } else {
    arguments.insert(arguments.end(), {"--no-huge", "--no-shconf"});
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  if (rte_eal_init(static_cast<int>(argv.size()), argv.data()) < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot set up ", mebibytes(memory_bytes), " in ",
                     *hugepages ? "hugepages" : "ordinary pages", ": ", rte_strerror(rte_errno)));
  }
  return EalInfo{*hugepages, memory_bytes};
}

}  // namespace

absl::StatusOr<EalInfo> start_eal(std::uint64_t memory_bytes, HugepageMode hugepages,
                                  unsigned cpu) {
  static std::mutex mutex;
  static std::optional<EalInfo> started;
  const std::lock_guard lock(mutex);
  if (started) return *started;
  if (memory_bytes < kMinMemoryBytes) {
    return absl::InvalidArgumentError(absl::StrCat("at least ", mebibytes(kMinMemoryBytes),
                                                   " of memory are needed, not ",
                                                   mebibytes(memory_bytes)));
  }
  const std::vector<unsigned> affinity = usable_cpus();
  const absl::StatusOr<EalInfo> info = initialise(memory_bytes, hugepages, cpu);
  const absl::Status restored = set_affinity(affinity);
  if (!info.ok()) return info.status();
  if (!restored.ok()) return restored;
  started = *info;
  return info;
}

void* eal_allocate(std::size_t bytes, int numa_node) {
  return rte_zmalloc_socket("vswitch", bytes, 64, numa_node);
}

void eal_free(void* memory) { rte_free(memory); }

}  // namespace vswitch::dataplane
