#include "cli/vswitchctl/table.h"

#include <algorithm>

namespace vswitch::ctl {

std::string Table::to_string(bool has_headers, const std::string& indent) const {
  std::vector<std::vector<std::string>> lines;
  if (has_headers) lines.push_back(headers_);
  lines.insert(lines.end(), rows_.begin(), rows_.end());

  std::vector<std::size_t> widths(headers_.size(), 1);
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : lines) {
    std::string text = indent;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string cell = line[i].empty() ? "-" : line[i];
      text += cell;
      if (i + 1 < line.size()) text.append(widths[i] - cell.size() + 2, ' ');
    }
    out += text + "\n";
  }
  return out;
}

}  // namespace vswitch::ctl
