"""What operators meet: starts that cannot work, clean stops, crashes, wrong input."""
import os
import signal
import socket
import subprocess

from scenario import Scenario, main
from switch import Switch, binary, free_tcp_port
from processes import wait_until


class Start(Scenario):
    def refused(self, switch=None, **changed):
        """Starts vswitchd with flags that cannot work; what it says at the end.

        `changed` replaces flags; None leaves one out.
        """
        switch = switch or Switch(self.workspace, start=False)
        usual = switch.arguments()
        flags = dict(zip(usual[::2], usual[1::2]))
        flags |= {"--" + name.replace("_", "-"): value for name, value in changed.items()}
        arguments = [part for flag in flags.items() if flag[1] is not None for part in flag]
        process = self.workspace.start("refused", [binary("vswitchd"), *arguments])
        status = process.wait(60)
        self.assertGreater(status, 0, f"ended by a signal, or well: {process.output()}")
        said = [line for line in process.output().splitlines() if line.strip()]
        self.assertTrue(said, "it says nothing")
        return said[-1]

    def test_metrics_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assertIn(str(port), self.refused(metrics_listen=f"127.0.0.1:{port}"))

    def test_api_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assertIn(str(port), self.refused(listen=f"127.0.0.1:{port}"))

    def test_unknown_cpu(self):
        self.assertIn("4000", self.refused(workers=None, worker_cpus="4000"))

    def test_too_little_memory(self):
        self.assertRegex(self.refused(memory="1M").lower(), r"memory|1 ?mi?b?")

    def test_more_workers_than_cpus(self):
        self.assertIn("5000", self.refused(workers="5000"))

    def test_live_api_socket_refuses_the_start(self):
        running = self.start_switch()
        second = Switch(self.workspace, start=False)
        second.state_dir = self.workspace.path / "state2"
        second.run_dir = self.workspace.path / "run2"
        self.assertIn(str(running.api), self.refused(switch=second))
        self.assertEqual([], running.get("bridges"))

    def test_stale_api_socket_is_replaced(self):
        switch = Switch(self.workspace, start=False)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(switch.api))
        switch.start()
        self.assertEqual([], switch.get("bridges"))

    def test_help_version_and_unknown_flags(self):
        def run(program, *arguments):
            return subprocess.run([binary(program), *arguments], capture_output=True, text=True,
                                  timeout=30, check=False)
        for program, verb in (("vswitchd", []), ("vswitchctl", ["get", "ports"]),
                              ("vswitch-guest", ["sink", "--socket", "x"])):
            for flag in ("--help", "--version"):
                result = run(program, flag)
                self.assertEqual((0, ""), (result.returncode, result.stderr), f"{program} {flag}")
                self.assertIn(program, result.stdout)
            result = run(program, *verb, "--no-such-flag")
            self.assertEqual(2, result.returncode, f"{program}: {result.stdout}{result.stderr}")
            self.assertIn("no-such-flag", result.stderr)


class Stop(Scenario):
    def test_sigterm_removes_the_sockets(self):
        switch = self.start_switch()
        switch.create_bridge()
        path = switch.create_port("p0")
        self.assertTrue(path.is_socket())
        self.assertEqual(0, switch.stop())
        self.assertFalse(path.exists())
        self.assertFalse(switch.api.exists())

    def test_sigterm_sent_twice_is_one_stop(self):
        """As supervisors do that signal the process and its group."""
        switch = self.start_switch()
        switch.create_bridge()
        path = switch.create_port("p0")
        for _ in range(2):
            switch.process.signal(signal.SIGTERM)
        self.assertEqual(0, switch.process.wait(30))
        self.assertFalse(path.exists())

    def test_acknowledged_ports_outlive_a_kill(self):
        switch = self.start_switch()
        switch.create_bridge()
        for number in range(20):
            switch.create_port(f"p{number}")
        switch.control("delete", "port", "p7")
        switch.kill()
        switch.start()
        names = {port["name"] for port in switch.get("ports")}
        self.assertEqual({f"ports/p{n}" for n in range(20) if n != 7}, names)
        for number in range(20):
            if number == 7:
                continue
            with socket.socket(socket.AF_UNIX) as guest:
                guest.connect(str(switch.run_dir / f"p{number}.sock"))

    def test_repeated_restarts_leave_nothing_behind(self):
        switch = self.start_switch()
        switch.create_bridge()
        switch.create_port("p0")
        for _ in range(3):
            self.assertEqual(0, switch.stop())
            switch.start()
        fds = len(os.listdir(f"/proc/{switch.process.pid}/fd"))
        for _ in range(20):
            switch.create_port("extra")
            switch.control("delete", "port", "extra")
        # Connections of the gRPC server close a moment later.
        wait_until(lambda: len(os.listdir(f"/proc/{switch.process.pid}/fd")) <= fds, 10,
                   f"the process has no more than {fds} files open")


class WrongInput(Scenario):
    def setUp(self):
        super().setUp()
        self.switch = self.start_switch()
        self.switch.create_bridge()

    def refused(self, status, *arguments):
        result = self.switch.run(*arguments)
        self.assertEqual(status, result.returncode, f"{arguments}: {result.stdout}{result.stderr}")
        self.assertTrue(result.stderr.strip(), f"{arguments}: nothing said on stderr")
        return result.stderr

    def create_port(self, name, path, bridge="br0", *more):
        return ["create", "port", name, "--bridge", bridge, "--vhost-user", path, *more]

    def test_failed_calls(self):
        self.switch.create_port("p0")
        self.refused(1, "create", "bridge", "br0")
        self.refused(1, *self.create_port("p0", "other.sock"))
        self.refused(1, *self.create_port("p1", "p0.sock"))
        self.refused(1, *self.create_port("p1", "x" * 108))
        self.refused(1, *self.create_port("Not_An_Id", "p1.sock"))
        self.refused(3, *self.create_port("p1", "p1.sock", "nowhere"))
        self.refused(1, "delete", "bridge", "br0")
        self.refused(3, "delete", "port", "nobody")
        self.refused(3, "describe", "port", "nobody")
        self.assertEqual(["ports/p0"], [port["name"] for port in self.switch.get("ports")])

    def test_regular_file_in_the_sockets_place_is_left_alone(self):
        self.switch.run_dir.mkdir(exist_ok=True)
        victim = self.switch.run_dir / "precious.sock"
        victim.write_text("keep me")
        self.refused(1, *self.create_port("p1", "precious.sock"))
        self.assertEqual("keep me", victim.read_text())

    def test_stale_socket_is_replaced(self):
        path = self.switch.run_dir / "p1.sock"
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
        self.switch.create_port("p1")
        with socket.socket(socket.AF_UNIX) as guest:
            guest.connect(str(path))

    def test_usage_errors(self):
        self.refused(2, "create", "port", "p1")
        self.refused(2, "frobnicate", "port", "p1")
        self.refused(2, "get", "ports", "-o", "sculpture")
        self.refused(2, *self.create_port("p1", "p1.sock", "br0", "--mtu", "67"))

    def test_nobody_listens(self):
        result = subprocess.run(
            [binary("vswitchctl"), "--server", f"127.0.0.1:{free_tcp_port()}", "get", "ports"],
            capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(1, result.returncode)
        self.assertTrue(result.stderr.strip())

    def test_names_only(self):
        self.switch.create_port("p0")
        self.switch.create_port("p1")
        # One name a line and nothing else; global flags after the verb work too.
        listing = self.switch.control("get", "ports", "-o", "name").split("\n")
        self.assertEqual(["p0", "p1", ""], [line.rpartition("/")[2] for line in listing])


if __name__ == "__main__":
    main()
