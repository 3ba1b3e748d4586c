// A target as libFuzzer calls it.
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using vswitch::fuzz::kTarget;
  static vswitch::fuzz::Report report(kTarget.outcomes.size());
  kTarget.run({data, size}, report);
  return 0;
}
