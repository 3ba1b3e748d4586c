"""./dev demo: two guests talk through the switch, and everybody's numbers agree."""
import argparse
import os
import sys
import time

from guest import Guest
from processes import ScenarioError, Workspace, wait_until
from switch import Switch

MAC = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:00:0b"}
SIZES = ("64", "imix", "1518")
SECONDS_PER_SIZE = 2
# Frames under way at a time: fewer than a ring has room for, so that none can be lost for want of a
# buffer and any loss is the switch's fault.
WINDOW = 128


def say(text=""):
    print(text, flush=True)


def step(text):
    say(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")


def follow(process):
    """Shows the progress lines of a guest while it runs."""
    seen = 0
    while True:
        running = process.running()
        lines = process.output()[seen:]
        whole = lines.rfind("\n") + 1
        for line in lines[:whole].splitlines():
            if "sent" in line:
                say("  " + line.strip())
        seen += whole
        if not running:
            return
        time.sleep(0.05)


class Demo:
    def __init__(self, workspace):
        self.workspace = workspace
        self.sockets = {}
        self.rows = []
        self.totals = {"a": 0, "b": 0}
        self.faults = 0

    def run(self):
        step("A switch, a bridge, two ports")
        self.switch = Switch(self.workspace)
        say(f"  vswitchd runs in {self.workspace.path}, without hugepages, as "
            f"{'root' if os.geteuid() == 0 else 'an ordinary user'}")
        self.command("create", "bridge", "br0")
        for name in MAC:
            self.command("create", "port", name, "--bridge", "br0", "--vhost-user", f"{name}.sock")
            self.sockets[name] = self.switch.run_dir / f"{name}.sock"

        step("Guest a pings guest b")
        ping = self.exchange("--count", "1000", "--rate", "2kpps")
        times = ping["round_trip_ns"]
        say(f"  {ping['sent']} sent, {ping['received']} answered; round trip "
            f"p50 {times['p50'] / 1000:.1f} us, p99 {times['p99'] / 1000:.1f} us")

        step("Traffic both ways: b sends back what a sends")
        for size in SIZES:
            say(f"  {self.title(size)}:")
            self.measure(size)
        self.show_table()
        self.show_counters()

        step("Stopping")
        status = self.switch.stop()
        left = [path.name for path in self.switch.run_dir.glob("*.sock")]
        if status or left:
            raise ScenarioError(f"vswitchd ended with {status} and left {left or 'nothing'}")
        say("  vswitchd stopped and removed its sockets")

    def command(self, *arguments):
        say(f"  $ vswitchctl {' '.join(arguments)}")
        self.switch.control(*arguments)

    @staticmethod
    def title(size):
        return size if size == "imix" else f"{size} bytes"

    def exchange(self, *flags, progress=False):
        """One ping of a, reflected by b; a's report with b's under "peer"."""
        b = Guest(self.workspace, "reflect", self.sockets["b"], MAC["b"]).wait_ready()
        a = Guest(self.workspace, "ping", self.sockets["a"], MAC["a"], "--dst-mac", MAC["b"],
                  "--wait-peer", "10s", "--reply-timeout", "3s", *flags)
        if progress:
            follow(a.process)
        report = a.result()
        report["peer"] = b.stop()
        self.totals["a"] += report["sent"]
        self.totals["b"] += report["peer"]["sent"]
        self.faults += (abs(report["sent"] - report["peer"]["received"]) + report["lost"] +
                        abs(report["peer"]["sent"] - report["received"]) + report["damaged"] +
                        report["duplicates"] + report["bad_used_elements"] +
                        report["peer"]["bad_used_elements"])
        return report

    def work_done(self):
        workers = self.switch.get("workers")
        return [sum(worker.get(field, 0) for worker in workers)
                for field in ("busy_cycles", "packets")]

    def measure(self, size):
        before = self.work_done()
        report = self.exchange("--size", size, "--window", WINDOW, "--duration",
                               f"{SECONDS_PER_SIZE}s", "--progress", "--interval", "500ms",
                               progress=True)
        cycles, frames = (after - earlier for after, earlier in zip(self.work_done(), before))
        peer = report["peer"]
        seconds = max(report["send_seconds"], 1e-9)
        for way, sent, received, damaged in (
                ("a → b", report["sent"], peer["received"], peer["damaged"]),
                ("b → a", peer["sent"], report["received"], report["damaged"])):
            self.rows.append((self.title(size), way, sent, received, sent - received, damaged,
                              received / seconds, cycles / max(frames, 1)))

    def show_table(self):
        step("What was sent and what arrived")
        say(f"  {'frames':<12}{'way':<8}{'sent':>12}{'received':>12}{'lost':>8}{'damaged':>9}"
            f"{'frames/s':>12}{'cycles/frame':>14}")
        for title, way, sent, received, lost, damaged, rate, cycles in self.rows:
            say(f"  {title:<12}{way:<8}{sent:>12,}{received:>12,}{lost:>8,}{damaged:>9,}"
                f"{rate:>12,.0f}{cycles:>14,.0f}")
        say("  cycles/frame: time stamp counter cycles of the switch's worker while it had work")

    def show_counters(self):
        step("The same from vswitchctl and from /metrics")
        wait_until(lambda: all(self.switch.port(name)["state"] == "LISTENING" for name in MAC), 10,
                   "the guests are gone")
        say("  $ vswitchctl get ports")
        for line in self.switch.control("get", "ports").splitlines():
            say("  " + line)
        say(f"  $ curl http://127.0.0.1:{self.switch.metrics_port}/metrics")
        metrics = self.switch.metrics()
        for name in MAC:
            status = self.switch.port(name)
            for direction in ("receive", "transmit"):
                sample = f'vswitch_port_{direction}_packets_total{{port="{name}"}}'
                say(f"  {sample} {metrics[sample]:.0f}")
                if metrics[sample] != status[direction]["packets"]:
                    raise ScenarioError(f"{sample} and vswitchctl disagree")
            # A guest that comes first greets everybody, and nobody is there.
            drops = {key: count for key, count in self.switch.drops(name).items()
                     if key != ("receive", "no-destination")}
            if drops:
                raise ScenarioError(f"port {name} dropped frames: {drops}")
            greetings = status["receive"]["packets"] - self.totals[name]
            if not 0 <= greetings < 1000:
                raise ScenarioError(f"guest {name} sent {self.totals[name]} frames, the switch "
                                    f"counted {status['receive']['packets']}")
            say(f"  guest {name} counted {self.totals[name]} frames and {greetings} greetings sent")


def main():
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    os.environ["VSWITCH_BIN"] = parser.parse_args().bin

    started = time.monotonic()
    workspace = Workspace()
    demo = Demo(workspace)
    worked = False
    try:
        demo.run()
        worked = demo.faults == 0
        if not worked:
            say("\nFAILED: frames were lost or damaged")
    except ScenarioError as error:
        say(f"\nFAILED: {error}")
    except KeyboardInterrupt:
        say("\ninterrupted")
        worked = None
    finally:
        workspace.close(show_logs=worked is False)
    if worked:
        say(f"\nNothing was lost, nothing was damaged. {time.monotonic() - started:.0f} s")
    return 0 if worked else 1


if __name__ == "__main__":
    sys.exit(main())
