"""Pairs of vswitch-guest talk through the switch."""
import time

from guest import Guest
from processes import wait_until
from scenario import Scenario, main

A, B, C, D = (f"02:00:00:00:00:{number:02x}" for number in (0x0a, 0x0b, 0x0c, 0x0d))
# Greetings and marks of the end, which the guests do not count as data.
CONTROL_FRAMES = 200
# A rate at which nobody loses a frame on a busy machine either, and rings for half a second: with
# more busy threads than CPUs a guest may well not run for a fifth of one.
PACED = ["--rate", "2kpps", "--queue-size", "1024"]


class GuestPairs(Scenario):
    def setUp(self):
        super().setUp()
        self.switch = self.start_switch()
        self.switch.create_bridge()
        self.sockets = {}

    def create_ports(self, *names, mtu=None):
        for name in names:
            self.sockets[name] = self.switch.create_port(name, mtu=mtu)

    def guest(self, command, port, mac, *flags):
        return Guest(self.workspace, command, self.sockets[port], mac, *flags)

    def assert_clean(self, report):
        for fault in ("lost", "duplicates", "reordered", "damaged", "foreign", "bad_used_elements"):
            self.assertEqual(0, report[fault], f"{fault} of {report['mac']}")

    def both_ways(self, *flags, duration="2s", size="64"):
        """A and B send each other paced frames at the same time; their reports."""
        a, b = (self.guest("generate", port, mac, "--dst-mac", peer, "--wait-peer", "30s",
                           "--size", size, "--duration", duration, "--linger", "2s", *PACED, *flags)
                for port, mac, peer in (("a", A, B), ("b", B, A)))
        reports = a.result(), b.result()
        for mine, other in (reports, reversed(reports)):
            self.assert_clean(mine)
            self.assertGreater(mine["sent"], 1000)
            self.assertEqual(other["sent"], mine["received"])
            self.assertEqual(other["sent_bytes"], mine["received_bytes"])
        return reports

    def ping(self, *flags, count=500, peer_flags=()):
        """A pings B; A's report."""
        reflector = self.guest("reflect", "b", B, *peer_flags)
        report = self.guest("ping", "a", A, "--dst-mac", B, "--wait-peer", "30s", "--count", count,
                            *flags).result()
        reflected = reflector.stop()
        self.assert_clean(report)
        self.assertEqual(count, report["received"])
        self.assertEqual(count, report["round_trip_ns"]["count"])
        self.assertEqual(count, reflected["sent"])
        return report

    def test_ping(self):
        self.create_ports("a", "b")
        self.ping()
        learned = {entry["mac_address"]: entry["port"] for entry in self.switch.get("fdb")}
        self.assertEqual({A: "ports/a", B: "ports/b"}, learned)
        self.assert_nothing_dropped(self.switch, "a", "b")

    def test_states(self):
        self.create_ports("a", "b")
        self.switch.wait_for_state("a", "LISTENING")
        guest = self.guest("sink", "a", A).wait_ready()
        self.switch.wait_for_state("a", "UP")
        self.assertEqual("LISTENING", self.switch.port("b")["state"])
        guest.stop()
        self.switch.wait_for_state("a", "LISTENING")

    def test_traffic_both_ways(self):
        self.create_ports("a", "b")
        for size in ("64", "64-1518", "imix"):
            self.both_ways(size=size)
        self.assert_nothing_dropped(self.switch, "a", "b")

    def test_counters_agree_with_the_guests(self):
        self.create_ports("a", "b")
        reports = dict(zip("ab", self.both_ways()))
        metrics = self.switch.metrics()
        for port, peer in ("ab", "ba"):
            status = self.switch.port(port)
            received = status["receive"]["packets"]
            self.assertGreaterEqual(received, reports[port]["sent"])
            self.assertLess(received, reports[port]["sent"] + CONTROL_FRAMES)
            # Two ports: what comes in at one goes out at the other. Greetings that came before
            # anybody was there are drops.
            self.assertEqual(received, self.switch.packets(peer, "transmit"))
            self.assert_nothing_dropped(self.switch, port)
            for direction in ("receive", "transmit"):
                for unit in ("packets", "bytes"):
                    sample = f'vswitch_port_{direction}_{unit}_total{{port="{port}"}}'
                    self.assertEqual(status[direction][unit], metrics[sample], sample)
        entries = metrics['vswitch_fdb_entries{bridge="br0"}']
        self.assertEqual(2, entries)

    def test_closed_loop_as_fast_as_it_goes(self):
        self.create_ports("a", "b")
        reflector = self.guest("reflect", "b", B)
        report = self.guest("ping", "a", A, "--dst-mac", B, "--wait-peer", "30s", "--window", "64",
                            "--duration", "3s", "--size", "imix", "--reply-timeout", "5s").result()
        self.assert_clean(report)
        self.assertEqual(report["sent"], report["received"])
        self.assertEqual(report["sent"], reflector.stop()["sent"])
        self.assert_nothing_dropped(self.switch, "a", "b")

    def test_open_loop_loses_only_what_is_counted(self):
        """A sender that does not care: each frame arrives whole or is a counted drop."""
        self.create_ports("a", "b")
        sink = self.guest("sink", "b", B, "--queue-size", "64").wait_ready()
        report = self.guest("generate", "a", A, "--dst-mac", B, "--wait-peer", "30s", "--duration",
                            "2s", "--size", "1518").result()
        self.switch.wait_for_state("a", "LISTENING")
        received = sink.stop()
        self.assertEqual(0, received["damaged"])
        self.assertEqual(0, received["duplicates"])
        self.assertEqual(0, received["reordered"])
        self.assert_nothing_dropped(self.switch, "a")
        dropped = self.switch.drops("b")
        self.assertLessEqual(set(dropped), {("transmit", "no-rx-buffer"),
                                            ("receive", "no-destination")})
        dropped = dropped.get(("transmit", "no-rx-buffer"), 0)
        lost = report["sent"] - received["received"]
        self.assertGreaterEqual(dropped, lost)
        # Marks of the end may be among the drops.
        self.assertLess(dropped, lost + CONTROL_FRAMES)

    def test_header_variants(self):
        """10-byte and 12-byte headers, with and without mergeable buffers, and mixed."""
        self.create_ports("a", "b")
        variants = {(): True, ("--no-mergeable",): True, ("--legacy",): False,
                    ("--legacy", "--no-mergeable"): False}
        for mine, modern in variants.items():
            for other in variants:
                report = self.ping("--size", "64-1518", "--window", "16", *mine, count=2000,
                                   peer_flags=other)
                self.assertEqual(modern, "VIRTIO_F_VERSION_1" in report["features"])
                self.assertEqual("--no-mergeable" not in mine,
                                 "VIRTIO_NET_F_MRG_RXBUF" in report["features"])
        self.assert_nothing_dropped(self.switch, "a", "b")

    def test_small_receive_buffers_are_merged(self):
        self.create_ports("a", "b", mtu=9000)
        flags = ["--mtu", "9000", "--buffer-size", "256"]
        self.ping("--size", "64-9018", "--window", "4", *flags, count=8955, peer_flags=flags)
        self.assert_nothing_dropped(self.switch, "a", "b")

    def test_frame_bounds(self):
        self.create_ports("a", "b")
        sink = self.guest("sink", "b", B).wait_ready()
        for size, arrives in ((1518, 10), (1519, 0)):
            before = self.switch.packets("b", "transmit")
            self.guest("generate", "a", A, "--dst-mac", B, "--wait-peer", "30s", "--count", "10",
                       "--size", size, "--mtu", "2000").result()
            moved = self.switch.packets("b", "transmit") - before
            self.assertGreaterEqual(moved, arrives)
            self.assertEqual(10 - arrives,
                             self.switch.drops("a").get(("receive", "oversize"), 0))
        self.assertEqual(10, sink.stop()["received"])

    def test_unknown_destination_is_flooded_and_learned_is_not(self):
        self.create_ports("a", "b", "c")
        b, c = (self.guest("sink", port, mac).wait_ready() for port, mac in (("b", B), ("c", C)))
        self.guest("generate", "a", A, "--dst-mac", D, "--count", "100").result()
        self.guest("generate", "a", A, "--dst-mac", B, "--wait-peer", "30s", "--count",
                   "100").result()
        b, c = b.stop(), c.stop()
        # Frames to D, and its mark of the end, reach both; frames to B reach B only.
        self.assertEqual((100, 101), (b["received"], b["not_for_us"]))
        self.assertEqual((0, 101), (c["received"], c["not_for_us"]))

    def test_bridges_are_apart(self):
        self.create_ports("a")
        self.switch.create_bridge("br1")
        self.sockets["b"] = self.switch.create_port("b", bridge="br1")
        sink = self.guest("sink", "b", B).wait_ready()
        self.guest("generate", "a", A, "--dst-mac", B, "--count", "100").result()
        report = sink.stop()
        self.assertEqual((0, 0), (report["received"], report["not_for_us"]))

    def pair_in_the_background(self, duration="8s"):
        """C and D talk all the while; nothing that happens to others may cost them a frame."""
        self.create_ports("c", "d")
        pair = [self.guest("generate", port, mac, "--dst-mac", peer, "--wait-peer", "30s",
                           "--duration", duration, "--linger", "2s", *PACED).wait_ready()
                for port, mac, peer in (("c", C, D), ("d", D, C))]

        def finish():
            reports = [guest.result() for guest in pair]
            for mine, other in (reports, reversed(reports)):
                self.assert_clean(mine)
                self.assertEqual(other["sent"], mine["received"])
                self.assertEqual(0, mine["reconnects"])
        return finish

    def test_deleted_port(self):
        finish = self.pair_in_the_background()
        self.create_ports("a", "b")
        self.guest("reflect", "b", B).wait_ready()
        for _ in range(5):
            a = self.guest("ping", "a", A, "--dst-mac", B, "--window", "32", "--no-reconnect",
                           "--reply-timeout", "100ms", "--duration", "60s").wait_ready()
            wait_until(lambda: self.switch.packets("a", "receive") > 1000, 20, "traffic from a")
            self.switch.control("delete", "port", "a")
            a.process.wait(20)
            self.assertFalse(self.sockets["a"].exists())
            self.assertNotIn(A, [entry["mac_address"] for entry in self.switch.get("fdb")])
            self.sockets["a"] = self.switch.create_port("a")
        finish()

    def test_killed_guest(self):
        finish = self.pair_in_the_background()
        self.create_ports("a", "b")
        self.guest("reflect", "b", B).wait_ready()
        for _ in range(5):
            a = self.guest("ping", "a", A, "--dst-mac", B, "--window", "32").wait_ready()
            before = self.switch.packets("a", "receive")
            wait_until(lambda: self.switch.packets("a", "receive") > before + 1000, 20,
                       "traffic from a")
            a.kill()
            self.switch.wait_for_state("a", "LISTENING")
        finish()

    def test_switch_killed_and_started_again(self):
        self.create_ports("a", "b")
        reflector = self.guest("reflect", "b", B).wait_ready()
        pinger = self.guest("ping", "a", A, "--dst-mac", B, "--wait-peer", "30s", "--window", "16",
                            "--reply-timeout", "200ms").wait_ready()
        wait_until(lambda: self.switch.packets("b", "receive") > 1000, 20, "traffic")
        for _ in range(3):
            self.switch.kill()
            time.sleep(0.2)
            self.switch.start()
            for port in ("a", "b"):
                self.switch.wait_for_state(port, "UP")
            wait_until(lambda: self.switch.packets("b", "receive") > 1000, 20,
                       "traffic after the restart")
        report = pinger.stop()
        self.assertEqual(3, report["reconnects"])
        self.assertEqual(0, report["damaged"])
        self.assertEqual(0, report["bad_used_elements"])
        self.assertEqual(3, reflector.stop()["reconnects"])


if __name__ == "__main__":
    main()
