"""DPDK's virtio-user driver, as testpmd's ports, on both sides of the switch."""
import contextlib
import os
import pathlib
import time

from scenario import Scenario, main
from testpmd import Testpmd

HUGEPAGES = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
IN_FLIGHT = 2 * 4 * 32


@contextlib.contextmanager
def hugepages(wanted):
    """At least `wanted` free hugepages of 2 MiB for a while; False where this user cannot have them."""
    total = HUGEPAGES / "nr_hugepages"
    free = HUGEPAGES / "free_hugepages"
    if not total.exists():
        yield False
        return
    before = int(total.read_text())
    missing = wanted - int(free.read_text())
    try:
        if missing > 0 and os.access(total, os.W_OK):
            total.write_text(str(before + missing))
        yield int(free.read_text()) >= wanted
    finally:
        if missing > 0 and os.access(total, os.W_OK):
            total.write_text(str(before))


class TestpmdGuests(Scenario):
    def circulate(self, switch, guest, size, seconds=2):
        """Frames go round for a while; nothing may be lost on the way."""
        before = guest.counters()
        guest.circulate(size)
        time.sleep(seconds)
        dropped = guest.stop_forwarding()
        self.assertEqual(0, dropped, "testpmd had no room to send")
        after = guest.counters()
        moved = {(port, counter): after[port][counter] - before[port][counter]
                 for port in after for counter in after[port]}
        sent = moved[0, "tx_packets"] + moved[1, "tx_packets"]
        received = moved[0, "rx_packets"] + moved[1, "rx_packets"]
        # More than the first bursts: they came back and were sent again.
        self.assertGreater(received, 4 * IN_FLIGHT)
        self.assertGreaterEqual(sent, received)
        self.assertLessEqual(sent - received, IN_FLIGHT, "only what was under way may be missing")
        for port in (0, 1):
            self.assertEqual(size * moved[port, "tx_packets"], moved[port, "tx_bytes"])
        self.assert_nothing_dropped(switch, "p0", "p1")
        return after

    def run_guest(self, device_options="", with_hugepages=False, switch_flags=()):
        switch = self.start_switch(*switch_flags)
        switch.create_bridge()
        sockets = [switch.create_port(f"p{number}") for number in (0, 1)]
        guest = Testpmd(self.workspace, sockets, device_options, with_hugepages)
        for size in (64, 1500):
            counters = self.circulate(switch, guest, size)
        for number in (0, 1):
            self.assertEqual(counters[number]["tx_packets"], switch.packets(f"p{number}", "receive"))
        learned = {entry["mac_address"]: entry["port"] for entry in switch.get("fdb")}
        self.assertEqual({Testpmd.mac(n): f"ports/p{n}" for n in (0, 1)}, learned)
        return switch, guest

    def test_circulating_frames(self):
        switch, guest = self.run_guest()
        guest.quit()
        for port in ("p0", "p1"):
            switch.wait_for_state(port, "LISTENING")

    def test_without_mergeable_buffers(self):
        switch, guest = self.run_guest(",mrg_rxbuf=0")
        self.assertNotIn("VIRTIO_NET_F_MRG_RXBUF",
                         switch.port("p0")["vhost_user_status"]["negotiated_features"])
        guest.quit()

    def test_driver_stops_and_starts_its_rings(self):
        switch, guest = self.run_guest()
        guest.restart_ports()
        self.circulate(switch, guest, 64)
        guest.quit()

    def test_memory_table_changes_under_running_rings(self):
        """With hugepages the driver's memory grows in use, and each time it sends its table again."""
        with hugepages(128) as available:
            if not available and os.geteuid() and not os.environ.get("CI"):
                self.skipTest("needs 128 free hugepages of 2 MiB, or root to reserve them")
            self.assertTrue(available, "128 hugepages of 2 MiB cannot be had")
            switch, guest = self.run_guest(with_hugepages=True, switch_flags=["--log-level", "debug"])
            for port in ("p0", "p1"):
                session = switch.port(port)["vhost_user_status"]
                # All over one connection that nobody had to end.
                self.assertEqual(1, session["connections"])
                self.assertEqual(0, session.get("protocol_violations", 0))
                self.assertGreater(session["memory_bytes"], 0)
            while_up = switch.process.output().partition("to=Up")[2]
            self.assertIn("request=SET_MEM_TABLE", while_up, "no table came once rings had run")
            guest.quit()


if __name__ == "__main__":
    main()
