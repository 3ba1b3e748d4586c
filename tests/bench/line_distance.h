// How far apart two CPUs are at the moment: on virtual machines that changes within seconds, and
// two-thread figures with it.
#pragma once

namespace vswitch::bench {

// TSC cycles that a cache line takes one way between threads on the two CPUs, by ping-pong; about a
// millisecond of work.
double line_distance(unsigned cpu, unsigned other_cpu);

}  // namespace vswitch::bench
