"""Several queue pairs a port: DPDK's virtio-user driver, and Linux guests in QEMU."""
import os
import time

from linux_guest import LinuxGuest, build_initramfs
from scenario import Scenario, main
from testpmd import Testpmd

PAIRS = 4
# On the way at any time: less than one ring holds, so that no choice of queues can overflow one.
BURST = 32


class MultiQueueGuests(Scenario):
    def start(self, queues, queue_pairs=None, device_options=""):
        """A switch with as many workers as there are CPUs, two at the most, and two ports."""
        self.workers = min(2, len(os.sched_getaffinity(0)))
        switch = self.start_switch("--workers", self.workers)
        switch.create_bridge()
        sockets = [switch.create_port(f"p{number}", queue_pairs=PAIRS) for number in (0, 1)]
        guest = Testpmd(self.workspace, sockets, device_options, queues=queues,
                        queue_pairs=queue_pairs)
        for port in ("p0", "p1"):
            switch.wait_for_state(port, "UP")
        return switch, guest

    def queues(self, switch, port, direction):
        """The virtqueues of one direction of the guest, by queue pair."""
        offset = {"receive": 0, "transmit": 1}[direction]
        return switch.port(port)["virtqueues"][offset::2]

    def circulate(self, switch, guest, queues, seconds=2):
        """Many flows go round for a while: on all queues that the guest uses, and none is lost."""
        before = guest.counters()
        guest.circulate(64, bursts=1)
        time.sleep(seconds)
        self.assertEqual(0, guest.stop_forwarding(), "testpmd had no room to send")
        after = guest.counters()
        moved = {counter: sum(after[port][counter] - before[port][counter] for port in (0, 1))
                 for counter in ("rx_packets", "tx_packets")}
        in_flight = 2 * queues * BURST
        self.assertGreater(moved["rx_packets"], 4 * in_flight)
        self.assertGreaterEqual(moved["tx_packets"], moved["rx_packets"])
        self.assertLessEqual(moved["tx_packets"] - moved["rx_packets"], in_flight)
        self.assert_nothing_dropped(switch, "p0", "p1")
        for number in (0, 1):
            port = f"p{number}"
            for direction, counter in (("receive", "rx_packets"), ("transmit", "tx_packets")):
                status = self.queues(switch, port, direction)
                running = [queue.get("running", False) for queue in status]
                self.assertEqual([True] * queues + [False] * (PAIRS - queues), running)
                packets = [queue.get("packets", 0) for queue in status]
                for pair in range(PAIRS):
                    if pair < queues:
                        self.assertGreater(packets[pair], 0, f"{port} {direction} {packets}")
                    else:
                        self.assertEqual(0, packets[pair], f"{port} {direction} {packets}")
                self.assertGreaterEqual(sum(packets), after[number][counter])

    def run_guest(self, queues, **options):
        switch, guest = self.start(queues, **options)
        self.circulate(switch, guest, queues)
        return switch, guest

    def test_one_queue_of_four(self):
        switch, guest = self.run_guest(1)
        guest.quit()
        self.assertEqual(0, switch.port("p0")["vhost_user_status"].get("protocol_violations", 0))

    def test_two_queues_of_four(self):
        _, guest = self.run_guest(2)
        guest.quit()

    def test_four_queues_on_all_workers(self):
        switch, guest = self.run_guest(4)
        for port in ("p0", "p1"):
            workers = {queue["worker"] for queue in self.queues(switch, port, "transmit")}
            self.assertEqual(self.workers, len(workers))
        session = switch.port("p0")["vhost_user_status"]
        for name in ("offered_features", "negotiated_features"):
            self.assertIn("VIRTIO_NET_F_MQ", session[name])
        guest.restart_ports()
        self.circulate(switch, guest, 4)
        guest.quit()

    def test_four_packed_queues(self):
        switch, guest = self.run_guest(4, device_options=",packed_vq=1")
        self.assertIn("VIRTIO_F_RING_PACKED",
                      switch.port("p0")["vhost_user_status"]["negotiated_features"])
        guest.quit()

    def test_four_queues_set_up_one_enabled(self):
        """The rings of all pairs are there, but the guest enables one pair: it gets every frame."""
        _, guest = self.run_guest(1, queue_pairs=4)
        guest.quit()


class LinuxMultiQueueGuests(Scenario):
    ADDRESSES = {"a": "10.7.0.1", "b": "10.7.0.2"}

    def prepare(self, mtu=None):
        self.switch = self.start_switch()
        self.switch.create_bridge()
        self.initramfs = build_initramfs(self.workspace.path / "initramfs")
        for name in self.ADDRESSES:
            self.switch.create_port(name, mtu=mtu, queue_pairs=PAIRS)

    def start_guest(self, name, number, **options):
        return LinuxGuest(self.workspace, name, self.switch.run_dir / f"{name}.sock",
                          f"02:00:00:00:00:{number:02x}", self.initramfs, **options)

    def start_guests(self, mtu=None, **options):
        self.prepare(mtu)
        guests = [self.start_guest(name, number, **options)
                  for number, name in enumerate(self.ADDRESSES, 10)]
        for guest, address in zip(guests, self.ADDRESSES.values()):
            guest.wait_ready()
            # Not its MTU: the guest takes that from the device, if at all.
            guest.run(f"ip link set eth0 up && ip address add {address}/24 dev eth0")
        guests[0].ping_until_answered(self.ADDRESSES["b"])
        return guests

    def test_two_queues_in_linux(self):
        a, b = self.start_guests(queues=2)
        peers = [f"10.7.0.{number}" for number in range(100, 116)]
        for peer in peers:
            b.run(f"ip address add {peer}/24 dev eth0")
        # Its driver enables a queue before it posts buffers, so the first greetings may be lost.
        before = {port: self.switch.drops(port) for port in self.ADDRESSES}
        for peer in peers:
            self.assertEqual((3, 3), a.ping(peer, count=3))
        for port in self.ADDRESSES:
            status = self.switch.port(port)
            self.assertEqual("UP", status["state"])
            received = [queue.get("packets", 0) for queue in status["virtqueues"][0::2]]
            self.assertGreater(received[0], 0, received)
            self.assertGreater(received[1], 0, received)
            self.assertEqual([0, 0], received[2:])
            self.assertIn("VIRTIO_NET_F_MQ", status["vhost_user_status"]["negotiated_features"])
            self.assertEqual(before[port], self.switch.drops(port))

    def test_the_guest_learns_its_mtu(self):
        """QEMU asks the switch with NET_SET_MTU whether it is possible, and tells the guest."""
        a, _ = self.start_guests(mtu=4000, device_options=",host_mtu=4000")
        _, text = a.run("cat /sys/class/net/eth0/mtu")
        self.assertIn("4000", text)
        self.assertEqual((5, 5), a.ping(self.ADDRESSES["b"], count=5, size=3972))
        session = self.switch.port("a")["vhost_user_status"]
        self.assertIn("VIRTIO_NET_F_MTU", session["negotiated_features"])
        self.assertIn("VHOST_USER_PROTOCOL_F_NET_MTU", session["protocol_features"])

    def test_an_mtu_above_the_ports_is_refused(self):
        self.prepare(mtu=1500)
        guest = self.start_guest("a", 10, device_options=",host_mtu=4000")
        guest.wait_ready()
        # The driver sets its device up when the interface comes up; QEMU gives up there.
        guest.run("ip link set eth0 up")
        self.switch.process.wait_for_output("MTU above the port's refused .*mtu=4000 most=1500", 20)
        status = self.switch.port("a")
        self.assertNotEqual("UP", status["state"])
        self.assertEqual(0, status["vhost_user_status"].get("protocol_violations", 0))


if __name__ == "__main__":
    main()
