// The guest's memory: one memfd, mapped here and by the switch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "dataplane/os/unique_fd.h"

namespace vswitch::guest {

class SharedMemory {
 public:
  // `bytes` is rounded up to whole pages. Zeroed, resident, and sealed against changing its size:
  // the switch must never find a hole where it was told memory is.
  static absl::StatusOr<SharedMemory> create(std::size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  int fd() const { return fd_.get(); }
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  // Where the guest's physical address space has this memory. Neither 0 nor the address here, so
  // that a mix-up of address spaces does not go unnoticed.
  static constexpr std::uint64_t kGuestBase = 0x1'0000'0000;
  std::uint64_t guest_address(std::size_t offset) const { return kGuestBase + offset; }

 private:
  SharedMemory(UniqueFd fd, std::byte* data, std::size_t size);

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace vswitch::guest
