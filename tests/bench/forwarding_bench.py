#!/usr/bin/env python3
"""Frames per second and cycles per frame, guest to guest through vswitchd.

The guests are the two ports of one testpmd with DPDK's virtio-user driver, on a CPU of its own: what
arrives on one port is sent again on the other, so frames circulate and none can be lost for want of a
receive buffer. Cycles per frame are the worker's own: the TSC cycles of queue polls that found
frames, by the frames (dataplane/forwarding/worker.h defines them). Several windows a size; the median
is what to quote, the spread says how noisy the machine was.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
os.environ.setdefault("VSWITCH_BIN", str(ROOT / "build" / "release" / "bin"))

from processes import Workspace  # noqa: E402
from switch import Switch  # noqa: E402
from testpmd import Testpmd  # noqa: E402


def worker_sample(switch):
    worker = switch.get("workers")[0]
    return {key: int(worker.get(key, 0))
            for key in ("packets", "bursts", "busy_cycles", "total_cycles")}


def measure_window(switch, seconds):
    before, start = worker_sample(switch), time.monotonic()
    time.sleep(seconds)
    after, elapsed = worker_sample(switch), time.monotonic() - start
    moved = {key: after[key] - before[key] for key in before}
    if moved["packets"] == 0:
        raise SystemExit("no frames are moving")
    return {"mpps": moved["packets"] / elapsed / 1e6,
            "cycles_per_frame": moved["busy_cycles"] / moved["packets"],
            "busy_share": moved["busy_cycles"] / moved["total_cycles"],
            "frames_per_burst": moved["packets"] / moved["bursts"]}


def measure_size(switch, guest, size, windows, seconds):
    guest.circulate(size)
    time.sleep(0.5)
    samples = [measure_window(switch, seconds) for _ in range(windows)]
    dropped = guest.stop_forwarding()
    drops = {port: switch.drops(port) for port in ("p0", "p1")}
    lost = dropped + sum(sum(port.values()) for port in drops.values())
    if lost:
        raise SystemExit(f"{lost} frames were lost: guest {dropped}, switch {drops}")
    result = {"bytes": size}
    for key in samples[0]:
        values = [sample[key] for sample in samples]
        result[key] = {"median": statistics.median(values), "min": min(values),
                       "max": max(values)}
    return result


def show(results):
    print(f"{'bytes':>6} {'Mpps':>22} {'cycles/frame':>20} {'busy %':>8} {'frames/burst':>13}")
    for result in results:
        rate, cycles = result["mpps"], result["cycles_per_frame"]
        print(f"{result['bytes']:>6} {rate['median']:8.2f} ({rate['min']:.2f}-{rate['max']:.2f})"
              .ljust(29) +
              f"{cycles['median']:8.0f} ({cycles['min']:.0f}-{cycles['max']:.0f})".rjust(21) +
              f" {100 * result['busy_share']['median']:8.0f}"
              f" {result['frames_per_burst']['median']:13.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="64,1500", help="frame bytes (default: %(default)s)")
    parser.add_argument("--windows", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a window")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--device-options", default="", help="of the guest's ports, e.g. ,mrg_rxbuf=0")
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SystemExit("two CPUs are needed: one for the worker, one for the guest")

    workspace = Workspace()
    try:
        switch = Switch(workspace, start=False)
        switch.start()
        switch.create_bridge()
        sockets = [switch.create_port(f"p{number}") for number in (0, 1)]
        guest = Testpmd(workspace, sockets, options.device_options, cpu=cpus[0])
        print("split rings of 256, one worker, MAC learning and look-up, no hugepages; "
              f"{options.windows} windows of {options.seconds} s, median (min-max)")
        results = [measure_size(switch, guest, int(size), options.windows, options.seconds)
                   for size in options.sizes.split(",")]
        show(results)
        guest.quit()
    finally:
        workspace.close()
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
