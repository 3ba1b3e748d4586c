"""DPDK's virtio-user driver with every kind of ring that it knows.

For each combination testpmd is a wire between two bridges, and there is one for each queue size:

    vswitch-guest -- bridge -- testpmd's port = testpmd's port -- bridge -- vswitch-guest

so every frame passes a transmit and a receive ring of that kind, both ways, and the guests at the
ends check every byte. What guests, switch and testpmd counted must agree to a frame.

DPDK itself does without vectors, and says so in its log, where it has no such function: on split
rings with mergeable buffers or in order; on packed rings unless they are in order and the CPU has
AVX-512, and there for receiving into mergeable buffers. Those combinations run nevertheless; that
the vectors are used where they exist is asserted.

A frame of a few buffers DPDK sends through an indirect table. On packed rings it leaves entries of
that table marked as for the device to write (up to 22.11 at least; of an entry's flags only that
one counts: virtio 1.2, 2.8.7), and the switch refuses such a frame: a buffer's direction is checked
wherever it stands. Frames of many buffers are therefore tested with smaller and more buffers there,
which go as chains in the ring itself.
"""
import contextlib
import itertools
import pathlib
import time

from guest import Guest
from scenario import Scenario, main
from testpmd import Testpmd

QUEUE_SIZES = (64, 256, 1024)
FEATURES = {"packed": "VIRTIO_F_RING_PACKED", "mergeable": "VIRTIO_NET_F_MRG_RXBUF",
            "in_order": "VIRTIO_F_IN_ORDER"}
# Greetings and marks of the end, which the guests do not count as data.
CONTROL_FRAMES = 200
# The windows keep fewer buffers on their way than the smallest ring has, so nothing can be lost,
# however the scheduler treats the guests.
EACH_SIZE = ["--size", "64-1518", "--window", "16"], 1455
# Frames that take four buffers of 2048 bytes of testpmd's, and five.
JUMBO = ["--size", "8100-8299", "--window", "8", "--mtu", "9000"], 200
# Frames that take nine buffers of 950 bytes, and ten.
MANY_BUFFERS = ["--size", "8450-8649", "--window", "4", "--mtu", "9000"], 200
# Nearly all are lost of these: testpmd hardly runs while they are sent.
FLAT_OUT = (5000,)
# Many get through of these, unless it is kept away for too long; what has gathered comes at once.
IN_BURSTS = (8000, "--rate", "8kpps")


def cpu_has_avx512():
    return " avx512f " in pathlib.Path("/proc/cpuinfo").read_text().replace("\n", " ")


class Wire:
    """Two bridges, and the names of the ports along the way of a frame from A to B."""

    def __init__(self, switch, size):
        self.size = size
        self.names = [f"{place}-{size}" for place in ("a", "t0", "t1", "b")]
        self.mac_a, self.mac_b = (f"02:00:00:{size >> 8:02x}:{size & 255:02x}:0{end}"
                                  for end in "ab")
        self.sockets = {}
        for bridge in "ab":
            switch.create_bridge(f"{bridge}-{size}")
        for name, bridge in zip(self.names, "aabb"):
            self.sockets[name] = switch.create_port(name, bridge=f"{bridge}-{size}", mtu=9000)
        self.socket_a, self.socket_0, self.socket_1, self.socket_b = self.sockets.values()


class Moved:
    """What the ports of the switch have counted since it was made."""

    def __init__(self, switch):
        self._switch = switch
        self._before = self._read()

    def _read(self):
        read = {}
        for port in self._switch.get("ports"):
            name = port["name"].removeprefix("ports/")
            for direction in ("receive", "transmit"):
                counted = port.get(direction, {})
                read[name, direction] = counted.get("packets", 0)
                for drop in counted.get("drops", []):
                    read[name, direction, drop["reason"]] = drop["packets"]
        return read

    def __call__(self):
        now = self._read()
        return {key: count - self._before.get(key, 0) for key, count in now.items()}


def drops(moved, name):
    """{(direction, reason): count} of a port, but for greetings to nobody."""
    return {key[1:]: count for key, count in moved.items()
            if key[0] == name and len(key) == 3 and count and key[2] != "no-destination"}


class RingMatrixTestpmd(Scenario):
    def run_matrix(self, packed, in_order):
        switch = self.start_switch()
        wires = [Wire(switch, size) for size in QUEUE_SIZES]
        for mergeable, vectorized in itertools.product((1, 0), (0, 1)):
            combination = {"packed": packed, "in_order": in_order, "mergeable": mergeable,
                           "vectorized": vectorized}
            with self.subTest(**combination):
                self.run_combination(switch, wires, combination)

    def run_combination(self, switch, wires, combination):
        began = time.monotonic()
        with self.testpmd(switch, wires, combination) as testpmd:
            self.lossless(switch, wires, testpmd, *EACH_SIZE)
            if combination["mergeable"] and not combination["packed"]:
                self.lossless(switch, wires, testpmd, *JUMBO)
            dropped = [self.open_loop(switch, wires, testpmd, *flow)
                       for flow in (FLAT_OUT, IN_BURSTS)]
        if combination["mergeable"] and combination["packed"]:
            with self.testpmd(switch, wires, combination, buffer_bytes=950) as testpmd:
                self.lossless(switch, wires, testpmd, *MANY_BUFFERS)
        print(f"{combination}: {testpmd.paths()[0]}, dropped {dropped}, "
              f"{time.monotonic() - began:.1f} s", flush=True)

    @contextlib.contextmanager
    def testpmd(self, switch, wires, combination, **more):
        """A testpmd that forwards on all wires with rings as the combination says."""
        options = (f",packed_vq={combination['packed']},in_order={combination['in_order']}"
                   f",mrg_rxbuf={combination['mergeable']},vectorized={combination['vectorized']}")
        sockets = [socket for wire in wires for socket in (wire.socket_0, wire.socket_1)]
        testpmd = Testpmd(self.workspace, sockets, options, queue_sizes=QUEUE_SIZES,
                          jumbo=bool(combination["mergeable"]), **more)
        try:
            self.check_negotiation(switch, wires, combination)
            self.check_paths(testpmd, combination)
            testpmd.command("start", "RX queue number")
            yield testpmd
            testpmd.stop_forwarding()
            testpmd.quit()
        finally:
            testpmd.process.kill()
            for wire in wires:
                for name in wire.names[1:3]:
                    switch.wait_for_state(name, "LISTENING")

    def check_negotiation(self, switch, wires, combination):
        for wire in wires:
            for name in wire.names[1:3]:
                switch.wait_for_state(name, "UP")
                features = switch.port(name)["vhost_user_status"]["negotiated_features"]
                self.assertIn("VIRTIO_F_VERSION_1", features)
                for option, feature in FEATURES.items():
                    self.assertEqual(bool(combination[option]), feature in features,
                                     f"{feature} of {name}")

    def check_paths(self, testpmd, combination):
        """A combination that has a vectorized function must not run without by accident."""
        if not combination["vectorized"]:
            receive = transmit = False
        elif combination["packed"]:
            transmit = bool(combination["in_order"]) and cpu_has_avx512()
            receive = transmit and not combination["mergeable"]
        else:
            transmit = False
            receive = not combination["in_order"] and not combination["mergeable"]
        for port, path in testpmd.paths().items():
            self.assertEqual((receive, transmit),
                             ("vectorized" in path["Rx"], "vectorized" in path["Tx"]),
                             f"port {port}: {path}")

    def guest(self, command, socket, mac, *flags):
        return Guest(self.workspace, command, socket, mac, "--wait-on-call", *flags)

    def lossless(self, switch, wires, testpmd, sizes, count):
        """Frames of each size in turn go to the far end and come back, on all wires at a time."""
        moved = Moved(switch)
        before = testpmd.forwarded()
        mtu = [flag for flag in ("--mtu", "9000") if "--mtu" in sizes]
        reflectors = [self.guest("reflect", wire.socket_b, wire.mac_b, *mtu) for wire in wires]
        for reflector in reflectors:
            reflector.wait_ready()
        pings = [self.guest("ping", wire.socket_a, wire.mac_a, "--dst-mac", wire.mac_b,
                            "--wait-peer", "30s", "--count", str(count), "--reply-timeout", "20s",
                            *sizes) for wire in wires]
        reports = [ping.result() for ping in pings]
        reflected = [reflector.stop() for reflector in reflectors]
        moved, carried = self.settled(moved, wires, testpmd, before)
        for number, wire in enumerate(wires):
            with self.subTest(queue_size=wire.size, sizes=sizes[1]):
                report = reports[number]
                for fault in ("lost", "duplicates", "reordered", "damaged", "foreign",
                              "bad_used_elements"):
                    self.assertEqual(0, report[fault], fault)
                self.assertEqual((count, count), (report["sent"], report["received"]))
                self.assertEqual(count, reflected[number]["sent"])
                self.assertEqual(report["sent_bytes"], report["received_bytes"])
                self.assert_agreement(moved, carried, number, wire)
                for name in wire.names:
                    self.assertEqual({}, drops(moved, name), f"drops of port {name}")
                for port in (2 * number, 2 * number + 1):
                    self.assertGreaterEqual(carried[port]["received"], count)
                    self.assertEqual(0, carried[port]["dropped"], "testpmd had no room to send")

    def open_loop(self, switch, wires, testpmd, count, *rate):
        """Whether they fit or not: rings run full, and a frame arrives whole or is a counted drop.

        Returns how many were dropped, by queue size."""
        dropped = {}
        moved = Moved(switch)
        before = testpmd.forwarded()
        sinks = [self.guest("sink", wire.socket_b, wire.mac_b).wait_ready() for wire in wires]
        generators = [self.guest("generate", wire.socket_a, wire.mac_a, "--dst-mac", wire.mac_b,
                                 "--wait-peer", "30s", "--count", str(count), "--size",
                                 "64-1518", "--linger", "10ms", *rate) for wire in wires]
        sent = [generator.result() for generator in generators]
        moved, carried = self.settled(moved, wires, testpmd, before)
        received = [sink.stop() for sink in sinks]
        for number, wire in enumerate(wires):
            with self.subTest(queue_size=wire.size, rate=rate or "flat out"):
                for fault in ("duplicates", "reordered", "damaged", "foreign", "bad_used_elements"):
                    self.assertEqual(0, received[number][fault], fault)
                self.assertEqual(count, sent[number]["sent"])
                self.assert_agreement(moved, carried, number, wire)
                lost = carried[2 * number + 1]["dropped"]
                for name in wire.names:
                    for reason, packets in drops(moved, name).items():
                        self.assertEqual(("transmit", "no-rx-buffer"), reason, f"drops of {name}")
                        lost += packets
                missing = sent[number]["sent"] - received[number]["received"]
                # Greetings and marks of the end may be among the drops.
                self.assertLessEqual(missing, lost)
                self.assertLess(lost - missing, CONTROL_FRAMES)
                dropped[wire.size] = lost
        return dropped

    def disagreements(self, moved, carried, number, wire):
        """Where neighbours on a wire have counted differently: (place, one's, the other's)."""
        a, t0, t1, b = wire.names
        left, right = carried[2 * number], carried[2 * number + 1]

        def entered(name):
            return sum(count for key, count in moved.items() if key[:2] == (name, "receive"))

        def offered(name):
            return sum(count for key, count in moved.items() if key[:2] == (name, "transmit"))

        pairs = [("a to t0", moved[a, "receive"], offered(t0)),
                 ("t0 to testpmd", moved[t0, "transmit"], left["received"]),
                 ("through testpmd", left["received"], right["sent"] + right["dropped"]),
                 ("testpmd to t1", right["sent"], entered(t1)),
                 ("t1 to b", moved[t1, "receive"], offered(b)),
                 ("b to t1", moved[b, "receive"], offered(t1)),
                 ("t1 to testpmd", moved[t1, "transmit"], right["received"]),
                 ("back through testpmd", right["received"], left["sent"] + left["dropped"]),
                 ("testpmd to t0", left["sent"], entered(t0)),
                 ("t0 to a", moved[t0, "receive"], offered(a))]
        return [pair for pair in pairs if pair[1] != pair[2]]

    def settled(self, moved, wires, testpmd, before, seconds=10):
        """The counters once nothing is on its way; as they are if they never agree."""
        deadline = time.monotonic() + seconds
        while True:
            now = testpmd.forwarded()
            counted = moved()
            carried = {port: {key: value - before[port][key] for key, value in now[port].items()}
                       for port in now}
            if time.monotonic() > deadline or not any(
                    self.disagreements(counted, carried, number, wire)
                    for number, wire in enumerate(wires)):
                return counted, carried
            time.sleep(0.05)

    def assert_agreement(self, moved, carried, number, wire):
        self.assertEqual([], self.disagreements(moved, carried, number, wire))

    def test_split(self):
        self.run_matrix(packed=0, in_order=0)

    def test_split_in_order(self):
        self.run_matrix(packed=0, in_order=1)

    def test_packed(self):
        self.run_matrix(packed=1, in_order=0)

    def test_packed_in_order(self):
        self.run_matrix(packed=1, in_order=1)


if __name__ == "__main__":
    main()
