// Aligned columns of text.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vswitch::ctl {

class Table {
 public:
  explicit Table(std::vector<std::string> headers) : headers_(std::move(headers)) {}

  // As many cells as there are headers. An empty cell is shown as "-".
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool is_empty() const { return rows_.empty(); }

  // Lines with their line ends, two spaces between columns, none at the end.
  std::string to_string(bool has_headers, const std::string& indent = "") const;

 private:
  std::vector<std::string> headers_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace vswitch::ctl
