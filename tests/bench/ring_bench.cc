// The ring engine against itself, in one process, without the switch: what rings cost, and what the
// open questions about them (README.md) come to on this machine.
//
// Every run of a benchmark is one window of fixed length on its own clock; the script that calls
// this asks for many, in random order, and pairs them. Names: what/layout/variant/bytes.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <string>

#include "tests/bench/ring_scenarios.h"

namespace vswitch::bench {
namespace {

using virtq::HeaderPolicy;
using virtq::TxLayout;

const std::vector<std::uint32_t> kSizes = {64, 128, 256, 512, 1024, 1518};
// Every 64 bytes, and both sides of where copies change their ways.
std::vector<std::uint32_t> sweep() {
  std::vector<std::uint32_t> sizes = {255, 257, 511, 513, 1518};
  for (std::uint32_t bytes = 64; bytes <= 1472; bytes += 64) sizes.push_back(bytes);
  return sizes;
}

void report(benchmark::State& state, const Window& window) {
  state.SetIterationTime(window.seconds);
  const auto frames = static_cast<double>(window.frames);
  state.counters["frames_per_second"] = frames / window.seconds;
  state.counters["device_cycles"] = static_cast<double>(window.device_cycles) / frames;
  state.counters["driver_cycles"] = static_cast<double>(window.driver_cycles) / frames;
  state.counters["lost"] = static_cast<double>(window.lost);
  state.counters["line_cycles"] = window.line_cycles;
  for (const auto& [name, value] : window.more) state.counters[name] = value;
}

template <typename Run>
void add(const std::string& name, Run run) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [run](benchmark::State& state) {
                                 for (auto _ : state) report(state, run());
                               })
      ->Iterations(1)
      ->UseManualTime();
}

const char* layout_text(TxLayout layout) {
  switch (layout) {
    case TxLayout::kPush:
      return "push";
    case TxLayout::kIndirect:
      return "indirect";
    default:
      return "chain";
  }
}

template <typename Layout>
void add_layout(const std::string& layout) {
  for (const std::uint32_t bytes : kSizes) {
    const std::string size = std::to_string(bytes);
    add("transmit/" + layout + "/one-thread/" + size,
        [bytes] { return transmit_alone<Layout>({}, bytes); });
    add("receive/" + layout + "/one-thread/" + size,
        [bytes] { return receive_alone<Layout>(bytes); });
    add("forward/" + layout + "/two-threads/" + size,
        [bytes] { return forward<Layout>({}, bytes, Load::kFlatOut); });
  }
  for (const std::uint32_t bytes : {64u, 512u}) {
    const std::string size = std::to_string(bytes);
    for (const TxLayout tx : {TxLayout::kPush, TxLayout::kIndirect, TxLayout::kChain}) {
      for (const bool compare : {true, false}) {
        const virtq::TransmitOptions options{.layout = tx,
                                             .header_policy = compare
                                                                  ? HeaderPolicy::kCompareThenWrite
                                                                  : HeaderPolicy::kAlwaysWrite};
        const std::string variant =
            std::string(layout_text(tx)) + (compare ? "+compare" : "+clear");
        add("layout-flat-out/" + layout + "/" + variant + "/" + size,
            [options, bytes] { return forward<Layout>(options, bytes, Load::kFlatOut); });
        add("layout-lossless/" + layout + "/" + variant + "/" + size,
            [options, bytes] { return forward<Layout>(options, bytes, Load::kLossless); });
      }
    }
  }
  for (const std::uint32_t bytes : sweep()) {
    for (const bool mergeable : {true, false}) {
      add("enqueue/" + layout + (mergeable ? "/mergeable/" : "/plain/") + std::to_string(bytes),
          [bytes, mergeable] { return enqueue_only<Layout>(bytes, mergeable); });
    }
  }
  const std::map<std::string, Flush> policies = {{"each-poll", Flush::kEachPoll},
                                                 {"each-frame", Flush::kEachFrame},
                                                 {"when-idle", Flush::kWhenIdle}};
  for (const auto& [name, policy] : policies) {
    const Flush flush = policy;
    add("flush-request/" + layout + "/" + name + "/64",
        [flush] { return flush_policy<Layout>(flush, true, false); });
    add("flush-stream/" + layout + "/" + name + "/1500",
        [flush] { return flush_policy<Layout>(flush, false, true); });
    add("flush-both/" + layout + "/" + name + "/1500",
        [flush] { return flush_policy<Layout>(flush, true, true); });
  }
}

// For an instruction counter: the same work with nothing measured. The difference between two
// counts of bursts is free of start-up.
int run_fixed_input(const std::string& name, std::uint32_t bytes, std::uint32_t bursts) {
  if (name == "transmit/split") return fixed_transmit<Split>(bytes, bursts);
  if (name == "transmit/packed") return fixed_transmit<Packed>(bytes, bursts);
  if (name == "receive/split") return fixed_receive<Split>(bytes, bursts);
  if (name == "receive/packed") return fixed_receive<Packed>(bytes, bursts);
  if (name == "forward/split") return fixed_forward<Split>(bytes, bursts);
  if (name == "forward/packed") return fixed_forward<Packed>(bytes, bursts);
  std::fprintf(stderr, "no fixed input %s\n", name.c_str());
  return 2;
}

int run(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "--fixed-input") == 0) {
    return run_fixed_input(argv[2], static_cast<std::uint32_t>(std::atoi(argv[3])),
                           static_cast<std::uint32_t>(std::atoi(argv[4])));
  }
  add_layout<Split>("split");
  add_layout<Packed>("packed");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace vswitch::bench

int main(int argc, char** argv) {
  try {
    return vswitch::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ring_bench: %s\n", error.what());
    return 1;
  }
}
