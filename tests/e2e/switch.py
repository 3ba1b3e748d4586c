"""A vswitchd of a scenario's own, reached through vswitchctl."""
import json
import os
import pathlib
import re
import socket
import subprocess
import urllib.request

from processes import ScenarioError, wait_until

# A sanitizer build is several times slower, so waits are generous; they end as soon as they can.
START_SECONDS = 60
COMMAND_SECONDS = 30


def binary(name):
    directory = os.environ.get("VSWITCH_BIN")
    if not directory:
        raise ScenarioError("VSWITCH_BIN must name the directory of the built programs")
    path = pathlib.Path(directory, name).resolve()
    if not path.exists():
        raise ScenarioError(f"{path} is not built")
    return path


def plain(value):
    """proto3 JSON as Python likes it: snake_case keys, 64-bit numbers as int."""
    if isinstance(value, dict):
        return {re.sub(r"[A-Z]", lambda m: "_" + m.group(0).lower(), key): plain(item)
                for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"\d+", value):
        return int(value)
    return value


def free_tcp_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def parse_metrics(text):
    """{'name{label="value",...}': number}, labels in the order of their names."""
    samples = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
        if match and not line.startswith("#"):
            labels = sorted(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
            inner = ",".join(f'{key}="{value}"' for key, value in labels)
            samples[f"{match.group(1)}{{{inner}}}"] = float(match.group(3))
    return samples


class Switch:
    """vswitchd with everything it writes in the workspace."""

    def __init__(self, workspace, *flags, start=True):
        self.workspace = workspace
        self.run_dir = workspace.path / "run"
        self.state_dir = workspace.path / "state"
        self.api = workspace.path / "api.sock"
        self.metrics_port = free_tcp_port()
        self._flags = flags
        self.process = None
        if start:
            self.start()

    def arguments(self):
        return ["--listen", f"unix://{self.api}", "--metrics-listen",
                f"127.0.0.1:{self.metrics_port}", "--run-dir", self.run_dir, "--state-dir",
                self.state_dir, "--hugepages", "off",
                *([] if "--workers" in self._flags else ["--workers", 1]), *self._flags]

    def start(self):
        self.process = self.workspace.start("vswitchd", [binary("vswitchd"), *self.arguments()])
        self.wait_ready()

    def wait_ready(self):
        def answers():
            if not self.process.running():
                raise ScenarioError("vswitchd ended:\n" + self.process.output()[-2000:])
            return self.run("get", "bridges", "-o", "name").returncode == 0
        wait_until(answers, START_SECONDS, "vswitchd answers", interval=0.1)

    def kill(self):
        """As a crash: no chance to tidy up."""
        self.process.kill()

    def stop(self):
        """A clean stop; the exit status."""
        return self.process.stop(COMMAND_SECONDS)

    def run(self, *arguments):
        """One vswitchctl, whatever comes of it."""
        return subprocess.run(
            [binary("vswitchctl"), "--server", str(self.api), *map(str, arguments)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS,
            check=False)

    def control(self, *arguments):
        """One vswitchctl that must succeed; its output."""
        result = self.run(*arguments)
        if result.returncode:
            raise ScenarioError(f"vswitchctl {' '.join(map(str, arguments))} ended with "
                                f"{result.returncode}: {result.stderr.strip()}")
        return result.stdout

    def get(self, noun, *arguments):
        """The resources of `vswitchctl get NOUN`, as a list."""
        answer = plain(json.loads(self.control("get", noun, *arguments, "-o", "json")))
        if isinstance(answer, dict):
            lists = [item for item in answer.values() if isinstance(item, list)]
            answer = lists[0] if len(answer) == 1 and lists else [answer] if answer else []
        return answer

    def port(self, name):
        return next(port for port in self.get("ports") if port["name"] == f"ports/{name}")

    def create_bridge(self, name="br0"):
        self.control("create", "bridge", name)

    def create_port(self, name, bridge="br0", mtu=None, queue_pairs=None):
        """Creates a port in the run directory; the path of its socket."""
        extra = ["--mtu", mtu] if mtu else []
        extra += ["--queue-pairs", queue_pairs] if queue_pairs else []
        self.control("create", "port", name, "--bridge", bridge, "--vhost-user", f"{name}.sock",
                     *extra)
        return self.run_dir / f"{name}.sock"

    def wait_for_state(self, port, state, seconds=20):
        wait_until(lambda: self.port(port)["state"] == state, seconds,
                   f"port {port} is {state}", interval=0.1)

    def drops(self, port):
        """{(direction, reason): count} of what was dropped at a port."""
        status = self.port(port)
        return {(direction, drop["reason"]): drop["packets"]
                for direction in ("receive", "transmit")
                for drop in status.get(direction, {}).get("drops", [])}

    def packets(self, port, direction):
        return self.port(port).get(direction, {}).get("packets", 0)

    def scrape(self):
        address = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=COMMAND_SECONDS) as answer:
            return answer.read().decode()

    def metrics(self):
        return parse_metrics(self.scrape())
