#include "server/services.h"

#include <algorithm>

namespace vswitch::server {
namespace {

constexpr absl::Duration kReadLimit = absl::Seconds(5);
constexpr absl::Duration kChangeLimit = absl::Seconds(60);

}  // namespace

absl::Time read_deadline(std::chrono::system_clock::time_point deadline) {
  return std::min(absl::FromChrono(deadline), absl::Now() + kReadLimit);
}

absl::Time change_deadline(std::chrono::system_clock::time_point deadline) {
  return std::min(absl::FromChrono(deadline), absl::Now() + kChangeLimit);
}

}  // namespace vswitch::server
