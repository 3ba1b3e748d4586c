"""vswitch-guest, our own driver, through the switch with every kind of ring that it knows."""
import itertools
import time

from guest import Guest
from processes import wait_until
from scenario import Scenario, main

A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
FEATURES = {"--packed": "VIRTIO_F_RING_PACKED", "--in-order": "VIRTIO_F_IN_ORDER",
            "--event-idx": "VIRTIO_F_EVENT_IDX"}
LAYOUTS = ("push", "indirect", "chain")


class RingMatrixGuest(Scenario):
    def setUp(self):
        super().setUp()
        self.switch = self.start_switch()
        self.switch.create_bridge()
        self.sockets = {port: self.switch.create_port(port) for port in "ab"}

    def guest(self, command, port, mac, *flags):
        return Guest(self.workspace, command, self.sockets[port], mac, *flags)

    def ping(self, mine, other, window=16, count=1455):
        """Frames of every size, there and back; A's report. Nothing is lost or damaged."""
        reflector = self.guest("reflect", "b", B, *other)
        report = self.guest("ping", "a", A, "--dst-mac", B, "--wait-peer", "30s", "--size", "64-1518",
                            "--window", window, "--count", count, "--reply-timeout", "5s",
                            *mine).result()
        reflected = reflector.stop()
        for fault in ("lost", "duplicates", "reordered", "damaged", "bad_used_elements"):
            self.assertEqual(0, report[fault], fault)
        self.assertEqual(0, reflected["bad_used_elements"])
        self.assertEqual((count, count, count),
                         (report["sent"], reflected["sent"], report["received"]))
        return report

    def assert_matrix(self, *ring):
        for in_order, event_idx, layout, mergeable in itertools.product(
                (0, 1), (0, 1), LAYOUTS, (0, 1)):
            flags = [*ring, *["--in-order"] * in_order, *["--event-idx"] * event_idx,
                     "--tx-layout", layout, *["--no-mergeable"] * (1 - mergeable)]
            with self.subTest(flags=flags):
                # Asleep when idle, so that calls count as well.
                report = self.ping([*flags, "--wait-on-call"], [*flags, "--wait-on-call"])
                self.assertEqual(layout, report["tx_layout"])
                for flag, feature in FEATURES.items():
                    self.assertEqual(flag in flags, feature in report["features"], feature)
        self.assert_nothing_dropped(self.switch, "a", "b")

    def test_split(self):
        self.assert_matrix()

    def test_packed(self):
        self.assert_matrix("--packed")

    def test_packed_sizes(self):
        """Any size will do for a packed ring."""
        for size in (3, 7, 100, 255, 32768):
            for more in ([], ["--in-order", "--event-idx"]):
                with self.subTest(size=size, more=more):
                    flags = ["--packed", "--queue-size", size, *more]
                    self.ping(flags, flags, window=1 if size < 8 else 16)

    def test_one_side_each(self):
        self.ping(["--packed", "--in-order"], ["--event-idx"])
        self.ping(["--tx-layout", "chain", "--reclaim", "eager"],
                  ["--packed", "--tx-layout", "indirect"])
        self.assert_nothing_dropped(self.switch, "a", "b")

    def test_rings_go_on_after_the_switch_was_killed(self):
        for flags in (["--packed"], ["--packed", "--in-order", "--event-idx", "--tx-layout", "chain"],
                      ["--in-order", "--event-idx"]):
            with self.subTest(flags=flags):
                reflector = self.guest("reflect", "b", B, *flags).wait_ready()
                pinger = self.guest("ping", "a", A, "--dst-mac", B, "--wait-peer", "30s", "--window",
                                    "16", "--reply-timeout", "200ms", *flags).wait_ready()
                for _ in range(2):
                    before = self.switch.packets("b", "receive")
                    wait_until(lambda: self.switch.packets("b", "receive") > before + 1000, 20,
                               "traffic")
                    self.switch.kill()
                    time.sleep(0.2)
                    self.switch.start()
                    for port in ("a", "b"):
                        self.switch.wait_for_state(port, "UP")
                wait_until(lambda: self.switch.packets("b", "receive") > 1000, 20,
                           "traffic after the restart")
                report, reflected = pinger.stop(), reflector.stop()
                for guest in (report, reflected):
                    self.assertEqual(2, guest["reconnects"])
                    self.assertEqual(0, guest["bad_used_elements"])
                self.assertEqual(0, report["damaged"])


if __name__ == "__main__":
    main()
