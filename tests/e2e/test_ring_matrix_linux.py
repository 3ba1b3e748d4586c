"""Linux guests in QEMU with every kind of ring that their virtio-net driver knows.

Four guests a scenario, each with another combination: packed or split rings, with and without
indirect descriptors. They talk in pairs of opposites. Which features were negotiated is asserted on
both sides of the ring. In order, and with vectors, is what Linux does not do: see testpmd's matrix.
"""
import concurrent.futures
import itertools

from linux_guest import LinuxGuest, build_initramfs
from scenario import Scenario, main

# By QEMU's name of the option: the feature's name and its bit.
FEATURES = {"packed": ("VIRTIO_F_RING_PACKED", 34), "event_idx": ("VIRTIO_F_EVENT_IDX", 29),
            "indirect_desc": ("VIRTIO_F_INDIRECT_DESC", 28),
            "mrg_rxbuf": ("VIRTIO_NET_F_MRG_RXBUF", 15)}
PINGS = 20
BULK_MIB = 4
# With a receive window of at most 64 KiB no more than 46 frames are on their way, and a ring of 256
# cannot run full: all that is missing is lost.
WINDOW = 'echo "4096 65536 65536" >/proc/sys/net/ipv4/tcp_rmem'


class Peer:
    """A guest of one combination, with its port and its address."""

    def __init__(self, number, **combination):
        self.combination = combination
        self.name = "-".join(option if on else f"no_{option}" for option, on in combination.items())
        self.port = f"p{number}"
        self.address = f"10.7.0.{number + 1}"
        self.mac = f"02:00:00:00:00:{number + 1:02x}"
        self.guest = None

    def start(self, workspace, socket, initramfs):
        options = "".join(f",{option}={'on' if on else 'off'}"
                          for option, on in self.combination.items())
        self.guest = LinuxGuest(workspace, self.port, socket, self.mac, initramfs, options)


class RingMatrixLinux(Scenario):
    def run_matrix(self, mergeable, event_idx):
        switch = self.start_switch()
        switch.create_bridge()
        mtu = 9000 if mergeable else 1500
        peers = [Peer(number, packed=packed, indirect_desc=indirect, event_idx=event_idx,
                      mrg_rxbuf=mergeable)
                 for number, (packed, indirect) in enumerate(itertools.product((True, False),
                                                                               repeat=2))]
        initramfs = build_initramfs(self.workspace.path / "initramfs")
        for peer in peers:
            peer.start(self.workspace, switch.create_port(peer.port, mtu=mtu), initramfs)
        for peer in peers:
            peer.guest.wait_ready(120)
            peer.guest.configure(peer.address, mtu=mtu)
            peer.guest.run(WINDOW)
        for peer in peers:
            with self.subTest(guest=peer.name):
                self.check_negotiation(switch, peer)
        sizes = (18, 56, 1472, 1473, 8000) + ((8972,) if mergeable else ())
        # Packed with indirect descriptors and split without, and the other way round.
        pairs = (peers[0], peers[3]), (peers[1], peers[2])
        for one, other in pairs:
            one.guest.ping_until_answered(other.address)
        # A driver has no receive buffers before its interface is up, but others greet it.
        before = {peer: switch.drops(peer.port) for peer in peers}
        for one, other in pairs:
            for mine, its in (one, other), (other, one):
                for size in sizes:
                    with self.subTest(guest=mine.name, to=its.name, ping=size):
                        self.assertEqual((PINGS, PINGS), mine.guest.ping(
                            its.address, count=PINGS, size=size, interval=0.01))
            self.exchange(one, other)
        for peer in peers:
            with self.subTest(guest=peer.name):
                self.assertEqual({}, self.faults(peer))
                self.assertEqual(before[peer], switch.drops(peer.port))

    def check_negotiation(self, switch, peer):
        status = switch.port(peer.port)["vhost_user_status"]
        # One character a bit, from bit 0 on.
        _, bits = peer.guest.run("cat /sys/bus/virtio/devices/virtio0/features")
        for option, (feature, bit) in FEATURES.items():
            wanted = peer.combination[option]
            self.assertEqual(wanted, feature in status["negotiated_features"], feature)
            self.assertEqual("01"[wanted], bits.strip()[bit], f"bit {bit} in the guest")

    def exchange(self, *pair):
        """Each fetches a file of random bytes from the other at the same time."""
        make = (f"mkdir -p /srv && dd if=/dev/urandom of=/srv/data bs=64k count={BULK_MIB * 16} && "
                "sha256sum </srv/data && httpd -p 80 -h /srv")
        fetch = "wget -q -O - http://{}/data | tee /got | sha256sum && wc -c </got && rm /got"
        with concurrent.futures.ThreadPoolExecutor() as together:
            made = list(together.map(lambda peer: peer.guest.run(make)[1], pair))
            got = list(together.map(
                lambda way: way[0].guest.run(fetch.format(way[1].address), seconds=90)[1],
                (pair, pair[::-1])))
        for mine, its, content, sent in zip(pair, pair[::-1], got, made[::-1]):
            with self.subTest(guest=mine.name, fetches_from=its.name):
                digest = next(line for line in sent.splitlines() if line.endswith(" -"))
                self.assertEqual([digest, str(BULK_MIB << 20)], content.split("\n")[:2])

    def faults(self, peer):
        """Counters of damaged packets that are not zero: the guest's own view."""
        _, text = peer.guest.run("cat /proc/net/snmp")
        lines = [line.split() for line in text.splitlines() if ":" in line]
        counters = {f"{names[0]}{name}": int(value)
                    for names, values in zip(lines[::2], lines[1::2])
                    for name, value in zip(names[1:], values[1:])}
        watched = [f"{layer}:{name}" for layer, name in (
            ("Ip", "InHdrErrors"), ("Ip", "ReasmFails"), ("Icmp", "InErrors"),
            ("Icmp", "InCsumErrors"), ("Tcp", "InErrs"), ("Tcp", "InCsumErrors"),
            ("Udp", "InCsumErrors"))]
        return {name: counters[name] for name in watched if counters[name]}

    def test_mergeable_buffers_with_event_index(self):
        self.run_matrix(mergeable=True, event_idx=True)

    def test_mergeable_buffers_without_event_index(self):
        self.run_matrix(mergeable=True, event_idx=False)

    def test_single_buffers_with_event_index(self):
        self.run_matrix(mergeable=False, event_idx=True)

    def test_single_buffers_without_event_index(self):
        self.run_matrix(mergeable=False, event_idx=False)


if __name__ == "__main__":
    main()
