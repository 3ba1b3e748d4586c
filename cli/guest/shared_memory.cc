#include "cli/guest/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace vswitch::guest {

SharedMemory::SharedMemory(UniqueFd fd, std::byte* data, std::size_t size)
    : fd_(std::move(fd)), data_(data), size_(size) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

absl::StatusOr<SharedMemory> SharedMemory::create(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = (bytes + page - 1) / page * page;
  UniqueFd fd(::memfd_create("vswitch-guest", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "making the guest's memory file");
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) < 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
    return absl::ErrnoToStatus(errno, "sizing the guest's memory file");
  }
  void* data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, "mapping the guest's memory");
  return SharedMemory(std::move(fd), static_cast<std::byte*>(data), size);
}

}  // namespace vswitch::guest
