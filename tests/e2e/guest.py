"""vswitch-guest as a guest of a scenario."""
import json
import os

from processes import ScenarioError
from switch import binary


def guest_cpu(number):
    """A CPU for a guest: not the highest one, where a switch with one worker has that worker."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[number % (len(cpus) - 1)] if len(cpus) > 1 else cpus[0]


class Guest:
    """One run of vswitch-guest."""

    started = 0

    def __init__(self, workspace, command, socket, mac, *flags):
        self.mac = mac
        self.process = workspace.start(f"{command}-{mac[-2:]}", [
            binary("vswitch-guest"), command, "--socket", socket, "--mac", mac, "-o", "json",
            "--cpu", guest_cpu(Guest.started), "--timeout", "30s", *flags], split_streams=True)
        Guest.started += 1

    def wait_ready(self, seconds=30):
        self.process.wait_for_output("ready\n", seconds)
        return self

    def result(self, seconds=60, status=0):
        """Waits for the end; what it counted."""
        ended = self.process.wait(seconds)
        if ended != status:
            raise ScenarioError(f"{self.process.name} ended with {ended}, not {status}: "
                                f"{self.process.output()[-500:]}")
        text = self.process.results()
        return json.loads(text) if text else {}

    def stop(self, seconds=30):
        """Ends a guest that would go on for ever; what it counted."""
        self.process.stop(seconds)
        return self.result(seconds)

    def kill(self):
        self.process.kill()
