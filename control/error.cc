#include "control/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace vswitch::control {
namespace {

constexpr char kReasonKey[] = "vswitch.reason";
constexpr char kMetadataPrefix[] = "vswitch.metadata.";

}  // namespace

absl::Status make_error(absl::StatusCode code, const std::string& reason,
                        const std::string& message,
                        const std::map<std::string, std::string>& metadata) {
  absl::Status status(code, message);
  status.SetPayload(kReasonKey, absl::Cord(reason));
  for (const auto& [key, value] : metadata) {
    status.SetPayload(kMetadataPrefix + key, absl::Cord(value));
  }
  return status;
}

ErrorDetail error_detail(const absl::Status& status) {
  ErrorDetail detail;
  status.ForEachPayload([&](absl::string_view key, const absl::Cord& value) {
    const std::string name(key);
    if (name == kReasonKey) {
      detail.reason = std::string(value);
    } else if (name.rfind(kMetadataPrefix, 0) == 0) {
      detail.metadata[name.substr(sizeof kMetadataPrefix - 1)] = std::string(value);
    }
  });
  return detail;
}

std::string message_of(const absl::Status& status) { return std::string(status.message()); }

}  // namespace vswitch::control
