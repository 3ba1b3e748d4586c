"""Starting and ending the programs of a scenario; everything started here is ended by its pid."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class ScenarioError(AssertionError):
    """What went wrong, in a sentence, with the output that shows it."""


def wait_until(condition, seconds, what, interval=0.02):
    """Calls `condition` until it returns something true, and returns that."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise ScenarioError(f"waited {seconds} s in vain: {what}")
        time.sleep(interval)


def find_tool(name, hint=None):
    """A program of the machine, or one that `./dev setup` keeps beside the sources."""
    for candidate in (shutil.which(name), hint and str(ROOT / hint)):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise ScenarioError(f"{name} is missing: run ./dev setup")


class Process:
    """A child process whose output, both streams, is kept in a file and can be waited for.

    With `split_streams` the standard output goes to a file of its own: `results()`.
    """

    def __init__(self, name, arguments, directory, stdin=None, split_streams=False):
        self.name = name
        self.log_path = pathlib.Path(directory, f"{name}.log")
        self._results_path = pathlib.Path(directory, f"{name}.out")
        with open(self.log_path, "ab") as log, open(self._results_path, "ab") as results:
            self._child = subprocess.Popen(
                [str(a) for a in arguments], stdin=stdin or subprocess.DEVNULL,
                stdout=results if split_streams else log, stderr=log, start_new_session=True)
        self.stdin = self._child.stdin

    @property
    def pid(self):
        return self._child.pid

    def running(self):
        return self._child.poll() is None

    def output(self):
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def results(self):
        return self._results_path.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds):
        """The exit status; negative: the signal that ended it."""
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ScenarioError(f"{self.name} did not end within {seconds} s") from None

    def wait_for_output(self, pattern, seconds, since=0):
        """Waits for a match of `pattern` behind offset `since` of the output.

        Returns the output from `since` to the match's end, and the offset of that end.
        """
        expression = re.compile(pattern, re.S)

        def there():
            alive = self.running()
            output = self.output()
            match = expression.search(output, since)
            if match:
                return output[since:match.end()], match.end()
            if not alive:
                raise ScenarioError(f"{self.name} ended before it said '{pattern}'")
            return None
        return wait_until(there, seconds, f"'{pattern}' from {self.name}")

    def send(self, line):
        self.stdin.write(line.encode() + b"\n")
        self.stdin.flush()

    def signal(self, number):
        self._child.send_signal(number)

    def kill(self):
        """Ends it at once, as a crash would."""
        if self.running():
            self._child.send_signal(signal.SIGKILL)
        self._child.wait()
        if self.stdin:
            self.stdin.close()

    def stop(self, seconds=30):
        """Asks it to end; the exit status. A process that does not listen is an error."""
        if self.running():
            self.signal(signal.SIGTERM)
        return self.wait(seconds)


class Workspace:
    """A temporary directory with a short path (socket paths end at 107 bytes) and what runs in it."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="vsw.", dir="/tmp"))
        self._processes = []

    def start(self, name, arguments, **options):
        taken = sum(p.name == name or p.name.startswith(name + ".") for p in self._processes)
        process = Process(f"{name}.{taken}" if taken else name, arguments, self.path, **options)
        self._processes.append(process)
        return process

    def close(self, show_logs=False):
        for process in reversed(self._processes):
            process.kill()
        if show_logs:
            for process in self._processes:
                print(f"---- {process.name}")
                print(process.output()[-6000:])
                print(process.results()[-3000:])
        shutil.rmtree(self.path, ignore_errors=True)
