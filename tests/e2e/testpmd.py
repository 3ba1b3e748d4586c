"""DPDK's testpmd with pairs of virtio-user ports: independent guests without a virtual machine."""
import re
import subprocess

from processes import ScenarioError, find_tool

PROMPT = "testpmd>"


class Testpmd:
    """What it receives on one port of a pair (0 and 1, 2 and 3...) it sends on the other.

    With both ports of a pair on one bridge, frames that it sends once circulate.

    `hugepages`: its memory then grows while it runs, and it sends its memory table again each time;
    without, it is one region of ordinary pages from the start. `queue_sizes`: of each pair in turn.
    `jumbo`: frames of up to 9018 bytes, in as many buffers of `buffer_bytes` as it takes.
    `queues`: how many of each port it uses, of `queue_pairs` that the device has (as many unless it
    says otherwise). With several it sends many flows.
    """

    def __init__(self, workspace, sockets, device_options="", hugepages=False, cpu=0,
                 queue_sizes=(256,), jumbo=False, queues=1, queue_pairs=None,
                 buffer_bytes=2048):
        memory = (["--in-memory", "--single-file-segments"] if hugepages else
                  ["--no-huge", "--no-shconf", "-m", "256"])
        self.ports = range(len(sockets))
        multi_queue = []
        if (queue_pairs or queues) > 1:
            # Several queues are turned on through a control queue, which the driver serves itself.
            device_options += f",queues={queue_pairs or queues},cq=1"
            multi_queue = [f"--rxq={queues}", f"--txq={queues}", "--txonly-multi-flow"]
        devices = []
        for number, socket in enumerate(sockets):
            size = queue_sizes[number // 2 % len(queue_sizes)]
            devices += ["--vdev", f"net_virtio_user{number},path={socket},"
                        f"mac={self.mac(number)},queue_size={size}{device_options}"]
        # By default it does without the widest vectors, even where they are asked for.
        simd = ["--force-max-simd-bitwidth=512"] if "vectorized=1" in device_options else []
        # It then says which of its receive and transmit functions it has chosen.
        logs = [f"--log-level=pmd.net.virtio.{part}:info" for part in ("init", "driver")]
        peers = [f"--eth-peer={number},{self.mac(number ^ 1)}" for number in self.ports]
        # Buffers for all rings full at once, and some on their way.
        buffers = (4096 if max(queue_sizes) <= 256 else 16384) * queues
        # Each begins with room for headers to be put in front.
        large = [f"--mbuf-size={128 + buffer_bytes}", "--max-pkt-len=9018", "--enable-scatter",
                 "--tx-offloads=0x8000"] if jumbo else []
        # Its output would come in blocks of 4 KiB otherwise.
        self.process = workspace.start("testpmd", [
            "stdbuf", "-oL", find_tool("dpdk-testpmd"), "--lcores", f"0@{cpu},1@{cpu}", *memory,
            "--iova-mode=va", "--no-pci", "--file-prefix", workspace.path.name, *simd, *logs,
            *devices, "--", "-i", "--nb-cores=1", f"--total-num-mbufs={buffers}",
            f"--txd={max(queue_sizes)}", f"--rxd={max(queue_sizes)}", "--no-mlockall", *large,
            *multi_queue, *peers, "--forward-mode=io"], stdin=subprocess.PIPE)
        _, self._seen = self.process.wait_for_output(PROMPT, 30)

    @staticmethod
    def mac(number):
        return f"02:00:00:00:01:{number + 1:02x}"

    def command(self, line, until, seconds=20):
        """Types a line; the output from there to the end of the match of `until`."""
        self.process.send(line)
        text, self._seen = self.process.wait_for_output(until, seconds, since=self._seen)
        return text

    def circulate(self, size, bursts=4):
        """Sends the first `bursts` bursts of 32 frames on each port and keeps them circulating."""
        self.command(f"set txpkts {size}\nstart tx_first {bursts}", "RX queue number")

    def paths(self):
        """By port number: the names of its receive and its transmit function, as its log has them."""
        found = re.findall(r"virtio: using (.*?) (Rx|Tx) path on port (\d+)", self.process.output())
        return {port: {direction: name for name, direction, number in found if int(number) == port}
                for port in self.ports}

    def counters(self):
        """By port number: received and sent frames and bytes, as testpmd counts them."""
        text = self.command("show port stats all", f"statistics for port {self.ports[-1]} .*Tx-pps")
        blocks = re.findall(
            r"statistics for port (\d+).*?RX-packets: (\d+).*?RX-bytes: +(\d+)"
            r".*?TX-packets: (\d+).*?TX-bytes: +(\d+)", text, re.S)
        if len({number for number, *_ in blocks}) < len(self.ports):
            raise ScenarioError("testpmd did not show its statistics")
        return {int(number): dict(zip(("rx_packets", "rx_bytes", "tx_packets", "tx_bytes"),
                                      map(int, values))) for number, *values in blocks}

    def forwarded(self):
        """By port number: frames received, sent, and dropped for want of free descriptors, since
        the start of forwarding."""
        text = self.command("show fwd stats all", r"Accumulated forward statistics.*TX-total: \d+")
        blocks = re.findall(
            r"statistics for port (\d+).*?RX-packets: (\d+).*?TX-packets: (\d+) +TX-dropped: (\d+)",
            text, re.S)
        return {int(number): dict(zip(("received", "sent", "dropped"), map(int, values)))
                for number, *values in blocks}

    def stop_forwarding(self):
        """Frames that testpmd itself had to drop, for want of free descriptors."""
        text = self.command("stop", r"Accumulated forward statistics.*Done\.")
        return int(re.search(r"Accumulated.*TX-dropped: (\d+)", text, re.S).group(1))

    def restart_ports(self):
        """The driver stops its rings and sets everything up again over the same connection."""
        self.command("port stop all", r"Stopping ports\.\.\..*Done")
        self.command("port start all", "Done", seconds=30)

    def quit(self):
        self.process.send("quit")
        status = self.process.wait(20)
        if status:
            raise ScenarioError(f"testpmd ended with {status}")
