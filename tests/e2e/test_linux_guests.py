"""Two real Linux guests in QEMU talk through the switch."""
from linux_guest import LinuxGuest, build_initramfs
from scenario import Scenario, main

ADDRESS = {"a": "10.7.0.1", "b": "10.7.0.2"}
MAC = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:00:0b"}


class LinuxGuests(Scenario):
    def start_guests(self, switch, device_options="", mtu=None, reconnect=False):
        switch.create_bridge()
        initramfs = build_initramfs(self.workspace.path / "initramfs")
        guests = [LinuxGuest(self.workspace, name, switch.create_port(name, mtu=mtu), MAC[name],
                             initramfs, device_options, reconnect) for name in ADDRESS]
        for guest, address in zip(guests, ADDRESS.values()):
            guest.wait_ready()
            guest.configure(address, mtu=mtu or 1500)
        guests[0].ping_until_answered(ADDRESS["b"])
        return guests

    def assert_pings(self, guest, address, **options):
        sent, received = guest.ping(address, **options)
        self.assertGreater(sent, 0)
        self.assertEqual(sent, received, f"ping with {options}")

    def test_ping(self):
        switch = self.start_switch()
        a, b = self.start_guests(switch)
        self.assert_pings(a, ADDRESS["b"], count=20)
        self.assert_pings(b, ADDRESS["a"], count=20, size=1472)
        learned = {entry["mac_address"]: entry["port"] for entry in switch.get("fdb")}
        self.assertEqual({MAC[name]: f"ports/{name}" for name in MAC},
                         {mac: port for mac, port in learned.items() if mac in MAC.values()})
        self.assertIn("VIRTIO_NET_F_MRG_RXBUF",
                      switch.port("a")["vhost_user_status"]["negotiated_features"])

    def test_ping_without_mergeable_buffers(self):
        switch = self.start_switch()
        a, _ = self.start_guests(switch, device_options=",mrg_rxbuf=off")
        self.assert_pings(a, ADDRESS["b"], count=10)
        self.assert_pings(a, ADDRESS["b"], count=10, size=1472)
        self.assertNotIn("VIRTIO_NET_F_MRG_RXBUF",
                         switch.port("a")["vhost_user_status"]["negotiated_features"])

    def test_legacy_guest(self):
        """No VERSION_1 and no mergeable buffers: the header has 10 bytes, the ring is the old one."""
        switch = self.start_switch()
        a, _ = self.start_guests(
            switch, device_options=",disable-modern=on,disable-legacy=off,mrg_rxbuf=off")
        self.assert_pings(a, ADDRESS["b"], count=10, size=1472)
        self.assertNotIn("VIRTIO_F_VERSION_1",
                         switch.port("a")["vhost_user_status"]["negotiated_features"])

    def test_large_ping_takes_several_buffers(self):
        """A frame of 8042 bytes is longer than any buffer that the guest's driver posts at first."""
        switch = self.start_switch()
        a, b = self.start_guests(switch, mtu=9000)
        before = switch.packets("b", "transmit")
        self.assert_pings(a, ADDRESS["b"], count=10, size=8000)
        self.assert_pings(b, ADDRESS["a"], count=10, size=8972)
        # No IP fragments: as many frames as pings and answers, give or take ARP and IPv6 chatter.
        self.assertLess(switch.packets("b", "transmit") - before, 40)

    def test_frames_over_the_ports_mtu_are_counted_drops(self):
        switch = self.start_switch()
        switch.create_bridge()
        initramfs = build_initramfs(self.workspace.path / "initramfs")
        guests = [LinuxGuest(self.workspace, name, switch.create_port(name), MAC[name], initramfs)
                  for name in ADDRESS]
        for guest, address in zip(guests, ADDRESS.values()):
            guest.wait_ready()
            guest.configure(address, mtu=9000)
        guests[0].ping_until_answered(ADDRESS["b"])
        sent, received = guests[0].ping(ADDRESS["b"], count=3, size=2000)
        self.assertEqual((3, 0), (sent, received))
        oversize = {key: count for key, count in switch.drops("a").items() if "oversize" in key[1]}
        self.assertEqual([3], list(oversize.values()))

    def test_guests_outlive_a_crash_of_the_switch(self):
        switch = self.start_switch()
        a, _ = self.start_guests(switch, reconnect=True)
        switch.kill()
        switch.start()
        for port in ADDRESS:
            switch.wait_for_state(port, "UP", seconds=30)
        a.ping_until_answered(ADDRESS["b"])
        self.assert_pings(a, ADDRESS["b"], count=10)


if __name__ == "__main__":
    main()
