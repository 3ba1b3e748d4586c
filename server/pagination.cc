#include "server/pagination.h"

#include "absl/strings/escaping.h"
#include "control/error.h"

namespace vswitch::server {

absl::StatusOr<std::size_t> checked_page_size(int page_size) {
  if (page_size < 0) {
    return control::make_error(absl::StatusCode::kInvalidArgument, "INVALID_PAGE_SIZE",
                               "bad page_size " + std::to_string(page_size) +
                                   ": use 0 for the default, or up to " +
                                   std::to_string(kMaxPageSize),
                               {{"field", "page_size"}});
  }
  if (page_size == 0) return kDefaultPageSize;
  return static_cast<std::size_t>(std::min(page_size, kMaxPageSize));
}

std::string encode_page_token(const std::string& list, const std::string& key) {
  return absl::WebSafeBase64Escape(list + ":" + key);
}

absl::StatusOr<std::string> decode_page_token(const std::string& list, const std::string& token) {
  if (token.empty()) return std::string();
  const std::string prefix = list + ":";
  std::string plain;
  if (absl::WebSafeBase64Unescape(token, &plain) && plain.rfind(prefix, 0) == 0 &&
      plain.size() > prefix.size()) {
    return plain.substr(prefix.size());
  }
  return control::make_error(absl::StatusCode::kInvalidArgument, "INVALID_PAGE_TOKEN",
                             "bad page_token: use the next_page_token of the page before",
                             {{"field", "page_token"}});
}

}  // namespace vswitch::server
