// Pages of a sorted list. A page token names the last item of the page before, so that a list in
// which items come and go is walked without repeating or skipping what stays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace vswitch::server {

inline constexpr int kDefaultPageSize = 100;
inline constexpr int kMaxPageSize = 1000;

// The number of items to return. INVALID_PAGE_SIZE where `page_size` is negative.
absl::StatusOr<std::size_t> checked_page_size(int page_size);

// `list` tells the tokens of one list from those of another.
std::string encode_page_token(const std::string& list, const std::string& key);
// The key; "" for the empty token of a first page. INVALID_PAGE_TOKEN.
absl::StatusOr<std::string> decode_page_token(const std::string& list, const std::string& token);

template <typename Item>
struct Page {
  std::vector<Item> items;
  std::string next_page_token;
};

// `items` are sorted by `key_of(item)`, a std::string that is never empty.
template <typename Item, typename KeyOf>
absl::StatusOr<Page<Item>> make_page(const std::string& list, std::vector<Item> items,
                                     int page_size, const std::string& page_token, KeyOf key_of) {
  const absl::StatusOr<std::size_t> size = checked_page_size(page_size);
  if (!size.ok()) return size.status();
  const absl::StatusOr<std::string> after = decode_page_token(list, page_token);
  if (!after.ok()) return after.status();
  const auto first = std::find_if(items.begin(), items.end(),
                                  [&](const Item& item) { return key_of(item) > *after; });
  Page<Item> page;
  const auto left = static_cast<std::size_t>(items.end() - first);
  const auto last = first + static_cast<std::ptrdiff_t>(std::min(*size, left));
  if (left > *size) page.next_page_token = encode_page_token(list, key_of(*(last - 1)));
  page.items.assign(std::make_move_iterator(first), std::make_move_iterator(last));
  return page;
}

}  // namespace vswitch::server
