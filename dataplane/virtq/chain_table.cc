#include "dataplane/virtq/chain_table.h"

#include <algorithm>

namespace vswitch::virtq {

ChainTable::ChainTable(std::uint32_t size)
    : free_(size), free_count_(size), chains_(size), next_(size) {
  for (std::uint32_t i = 0; i < size; ++i) free_[i] = static_cast<std::uint16_t>(i);
}

std::vector<std::uint16_t> ChainTable::in_flight_oldest_first() const {
  std::vector<std::uint16_t> heads;
  for (std::uint32_t head = 0; head < size(); ++head) {
    if (chains_[head].descriptors != 0) heads.push_back(static_cast<std::uint16_t>(head));
  }
  std::sort(heads.begin(), heads.end(), [this](std::uint16_t left, std::uint16_t right) {
    return chains_[left].order < chains_[right].order;
  });
  return heads;
}

}  // namespace vswitch::virtq
