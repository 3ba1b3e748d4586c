#!/usr/bin/env python3
"""What the rings cost, and what the five questions about them come to on this machine.

Driver and device end in one process (ring_bench), without the switch. Windows of 60 ms, in random order
within a round; what is compared is compared within its round, and the median of the rounds' ratios is
quoted. Between two threads a cache line takes some 150 or some 650 cycles, as the host pleases: rounds
with many of both kinds in them are left out. `--instructions` counts instructions instead, which do not depend
on how busy the machine is. `--write` puts the table into RESULTS.md.
"""
import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "tests" / "bench" / "RESULTS.md"
# One-way cycles of a cache line: below is near, above is far.
NEAR_BELOW = 400
# Windows of the other kind that a round may have: a thread that is held up looks far away too.
MIXED_SHARE = 0.2
LAYOUTS = ("split", "packed")
SIZES = (64, 128, 256, 512, 1024, 1518)
TX_LAYOUTS = ("push", "indirect", "chain")
POLICIES = ("each-poll", "each-frame", "when-idle")


def windows_of(binary, group):
    """One round: a window of each benchmark of the group, by name."""
    output = subprocess.run(
        [binary, f"--benchmark_filter=^{group}", "--benchmark_repetitions=1",
         "--benchmark_enable_random_interleaving=true", "--benchmark_format=json"],
        check=True, capture_output=True, text=True).stdout
    found = {}
    for run in json.loads(output)["benchmarks"]:
        if run.get("run_type") == "aggregate":
            continue
        found[re.sub(r"/iterations:.*", "", run["name"])] = run
    if not found:
        raise SystemExit(f"no benchmark matches {group}")
    return found


def is_mixed(window_round):
    distances = [run["line_cycles"] for run in window_round.values() if run["line_cycles"] > 0]
    if not distances:
        return False
    near = sum(distance < NEAR_BELOW for distance in distances) / len(distances)
    return MIXED_SHARE < near < 1 - MIXED_SHARE


class Rounds:
    """All rounds of one group."""

    def __init__(self, binary, group, rounds):
        self.rounds = []
        mixed = []
        for number in range(rounds):
            print(f"\r{group:<24} round {number + 1} of {rounds} ", end="", file=sys.stderr, flush=True)
            window_round = windows_of(binary, group)
            if is_mixed(window_round):
                mixed.append(window_round)
            else:
                self.rounds.append(window_round)
        print(file=sys.stderr)
        self.left_out = f"{len(mixed)} mixed rounds left out"
        if not self.rounds:
            self.rounds, self.left_out = mixed, "all rounds mixed: a busy machine, treat with care"

    def values(self, name, key):
        return [window_round[name][key] for window_round in self.rounds]

    def median(self, name, key):
        return statistics.median(self.values(name, key))

    def ratio(self, name, to_name, key):
        """Median of the rounds' ratios, with the least and the greatest."""
        ratios = [window_round[name][key] / window_round[to_name][key] for window_round in self.rounds]
        return statistics.median(ratios), min(ratios), max(ratios)

    def distance(self):
        lines = [run["line_cycles"] for window_round in self.rounds for run in window_round.values()
                 if run["line_cycles"] > 0]
        return f"{len(self.rounds)} rounds" + (
            f", a line's way {statistics.median(lines):.0f} cycles, {self.left_out}"
            if lines else "")


def ratio_text(ratio):
    median, least, greatest = ratio
    return f"{median:.2f} ({least:.2f}–{greatest:.2f})"


def table(header, rows):
    rows = [[str(cell) for cell in row] for row in rows]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def mpps(rounds, name):
    return f"{rounds.median(name, 'frames_per_second') / 1e6:.1f}"


def costs(binary, rounds_wanted):
    one = Rounds(binary, "(transmit|receive)/", rounds_wanted)
    two = Rounds(binary, "forward/", rounds_wanted)
    rows = []
    for size in SIZES:
        for layout in LAYOUTS:
            transmit, receive = (f"{what}/{layout}/one-thread/{size}" for what in ("transmit", "receive"))
            forward = f"forward/{layout}/two-threads/{size}"
            rows.append([size, layout]
                        + [f"{one.median(name, side):.0f}" for name in (transmit, receive)
                           for side in ("driver_cycles", "device_cycles")]
                        + [f"{two.median(forward, side):.0f}" for side in ("driver_cycles", "device_cycles")]
                        + [mpps(two, forward)])
    text = ["## Cycles a frame", "",
            "One thread: transmit is driver sends, device reads and returns; receive is device writes, driver",
            "takes and posts anew. Two threads: a guest sends and receives, the device copies from ring to ring,",
            f"flat out ({two.distance()}).", ""]
    text += table(["bytes", "ring", "transmit: driver", "device", "receive: driver", "device",
                   "two threads: driver", "device", "Mpps"], rows)
    ratio = two.ratio("forward/packed/two-threads/64", "forward/split/two-threads/64",
                      "frames_per_second")
    device = two.ratio("forward/packed/two-threads/64", "forward/split/two-threads/64", "device_cycles")
    verdict = (f"S3: on two threads at 64 bytes packed moves {ratio_text(ratio)} times the frames of split "
               f"(asked for: 1.12; NOTES.md says what our split driver saves), at {ratio_text(device)} times the "
               "device's cycles a frame.")
    return text, verdict


def layouts(binary, rounds_wanted):
    text = ["## S1 and S4: how a frame is described, and who writes its header", "",
            "Mpps of two threads and, in brackets, the guest's cycles a frame. Lossless: never more frames on",
            "their way than the receive ring holds.", ""]
    rows = []
    worst = None
    gains = []
    distances = []
    for load in ("flat-out", "lossless"):
        rounds = Rounds(binary, f"layout-{load}/", rounds_wanted)
        distances.append(rounds.distance())
        for layout in LAYOUTS:
            for size in (64, 512):
                row = [load, layout, size]
                for tx in TX_LAYOUTS:
                    for header in ("compare", "clear"):
                        name = f"layout-{load}/{layout}/{tx}+{header}/{size}"
                        row.append(f"{mpps(rounds, name)} ({rounds.median(name, 'driver_cycles'):.0f})")
                rows.append(row)
                best = f"layout-{load}/{layout}/push+compare/{size}"
                for tx in ("indirect", "chain"):
                    ratio = rounds.ratio(best, f"layout-{load}/{layout}/{tx}+compare/{size}",
                                         "frames_per_second")
                    if worst is None or ratio[0] < worst[0][0]:
                        worst = (ratio, f"{tx}, {layout}, {size} bytes, {load}")
                gains.append(rounds.ratio(best, f"layout-{load}/{layout}/push+clear/{size}",
                                          "frames_per_second")[0])
    text += table(["load", "ring", "bytes"] + [f"{tx}+{header}" for tx in TX_LAYOUTS
                                               for header in ("compare", "clear")], rows)
    text += ["", f"({'; '.join(distances)})"]
    verdicts = [
        f"S1: push with compare-then-write moves at the least {ratio_text(worst[0])} times the frames of "
        f"another layout (the closest: {worst[1]}).",
        f"S4: comparing the header before writing it moves {min(gains):.2f} to {max(gains):.2f} times the "
        "frames of always clearing it, with push, over both rings, sizes and loads."]
    return text, verdicts


def enqueue(binary, rounds_wanted):
    rounds = Rounds(binary, "enqueue/", rounds_wanted)
    sizes = sorted({int(name.rsplit("/", 1)[1]) for name in rounds.rounds[0]})
    columns = [(layout, kind) for layout in LAYOUTS for kind in ("mergeable", "plain")]
    rows = []
    worst = (0.0, "")
    previous = None
    for size in sizes:
        row = [size]
        for layout, kind in columns:
            name = f"enqueue/{layout}/{kind}/{size}"
            row.append(f"{rounds.median(name, 'device_cycles'):.0f}")
            if previous is not None:
                step = rounds.ratio(name, f"enqueue/{layout}/{kind}/{previous}", "device_cycles")[0] - 1
                worst = max(worst, (step, f"{previous} to {size} bytes, {layout}, {kind}"))
        rows.append(row)
        previous = size
    text = ["## S2: what it costs to write into a guest", "",
            f"The device's cycles a frame, one thread, bursts of 32 ({rounds.distance()}).", ""]
    text += table(["bytes"] + [f"{layout}, {kind}" for layout, kind in columns], rows)
    return text, (f"S2: from one size to the next the cost of writing a frame grows by {100 * worst[0]:.0f} % at "
                  f"the most ({worst[1]}; asked for: no step over 20 %).")


def flushes(binary, rounds_wanted):
    rounds = Rounds(binary, "flush-", rounds_wanted)
    text = ["## S5: when what was read is returned", "",
            "A guest asks (a 64-byte frame at a time), streams (1500-byte frames), or both at once through the same",
            "rings; everything comes back to it. The policies live in the benchmark: the product returns in each",
            f"poll all that the poll has read, and has no switch for it ({rounds.distance()}).", ""]
    rows = []
    for layout in LAYOUTS:
        for policy in POLICIES:
            ask, stream, both = (f"flush-{what}/{layout}/{policy}/{size}" for what, size in
                                 (("request", 64), ("stream", 1500), ("both", 1500)))
            rows.append([layout, policy.replace("-", " "),
                         f"{rounds.median(ask, 'requests_per_second') / 1e3:.0f}",
                         f"{rounds.median(stream, 'streamed_per_second') / 1e6:.2f}",
                         f"{rounds.median(both, 'requests_per_second') / 1e3:.1f}",
                         f"{rounds.median(both, 'streamed_per_second') / 1e6:.2f}"])
    text += table(["ring", "returned", "thousand requests/s alone", "stream alone, Mpps",
                   "thousand requests/s beside a stream", "stream beside requests, Mpps"], rows)
    parts = []
    for other in ("each-frame", "when-idle"):
        ask = rounds.ratio("flush-request/packed/each-poll/64", f"flush-request/packed/{other}/64",
                           "requests_per_second")
        stream = rounds.ratio("flush-stream/packed/each-poll/1500", f"flush-stream/packed/{other}/1500",
                              "streamed_per_second")
        parts.append(f"{ratio_text(ask)} times the requests and {ratio_text(stream)} times the stream of "
                     f"“{other.replace('-', ' ')}”")
    return text, "S5: on packed rings, returning once a poll gives " + " and ".join(parts) + "."


def instructions_of(binary, name, size, bursts):
    run = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", binary, "--fixed-input", name,
         str(size), str(bursts)], check=True, capture_output=True, text=True)
    return int(re.search(r"Collected : (\d+)", run.stderr).group(1))


def instructions(binary):
    few, many = 100, 300
    rows = []
    for size in SIZES:
        for layout in LAYOUTS:
            row = [size, layout]
            for what in ("transmit", "receive", "forward"):
                name = f"{what}/{layout}"
                print(f"\rcounting {name} {size:<6}", end="", file=sys.stderr, flush=True)
                more = instructions_of(binary, name, size, many) - instructions_of(binary, name, size, few)
                row.append(f"{more / ((many - few) * 32):.0f}")
            rows.append(row)
    print(file=sys.stderr)
    text = ["## Instructions a frame", "",
            "Driver and device end together, bursts of 32, counted by callgrind.", ""]
    return text + table(["bytes", "ring", "transmit", "receive", "forward"], rows)


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin"),
                        help="directory of ring_bench")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each comparison (default 9)")
    parser.add_argument("--only", choices=("costs", "layouts", "enqueue", "flush"),
                        help="one part of the measurements")
    parser.add_argument("--instructions", action="store_true", help="count instructions, measure no time")
    parser.add_argument("--write", action="store_true", help="put everything into RESULTS.md")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least one round is needed")
    binary = str(pathlib.Path(options.bin) / "ring_bench")

    verdicts, text = [], []
    if not options.instructions or options.write:
        for name, part in (("layouts", layouts), ("enqueue", enqueue), ("costs", costs), ("flush", flushes)):
            if options.only not in (None, name):
                continue
            lines, verdict = part(binary, options.rounds)
            verdicts += verdict if isinstance(verdict, list) else [verdict]
            text += lines + [""]
    if options.instructions or options.write:
        text += instructions(binary) + [""]
    verdicts.sort()
    report = [f"- {verdict}" for verdict in verdicts] + ([""] if verdicts else []) + text
    print("\n".join(report))
    if options.write:
        command = "./dev bench rings --write" + (f" --rounds {options.rounds}" if options.rounds != 9 else "")
        head = ["# Results", "",
                f"{datetime.date.today().isoformat()}, {cpu_name()}, {command}. What stands in brackets behind a ratio is the",
                "least and the greatest of the rounds.", "", "## The five questions, each in a sentence", ""]
        RESULTS.write_text("\n".join(head + report).rstrip() + "\n")
        print(f"written: {RESULTS.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
