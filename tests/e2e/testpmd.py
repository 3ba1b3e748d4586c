"""DPDK's testpmd with two virtio-user ports: an independent guest without a virtual machine."""
import re
import subprocess

from processes import ScenarioError, find_tool

PROMPT = "testpmd>"


class Testpmd:
    """Frames that it sends on one port arrive on the other and are sent again: they circulate.

    `hugepages`: its memory then grows while it runs, and it sends its memory table again each time;
    without, it is one region of ordinary pages from the start.
    """

    def __init__(self, workspace, sockets, device_options="", hugepages=False, cpu=0):
        memory = (["--in-memory", "--single-file-segments"] if hugepages else
                  ["--no-huge", "--no-shconf", "-m", "256"])
        devices = []
        for number, socket in enumerate(sockets):
            devices += ["--vdev", f"net_virtio_user{number},path={socket},"
                        f"mac={self.mac(number)},queue_size=256{device_options}"]
        peers = [f"--eth-peer={number},{self.mac(1 - number)}" for number in range(len(sockets))]
        # Its output would come in blocks of 4 KiB otherwise.
        self.process = workspace.start("testpmd", [
            "stdbuf", "-oL", find_tool("dpdk-testpmd"), "--lcores", f"0@{cpu},1@{cpu}", *memory, "--iova-mode=va",
            "--no-pci", "--file-prefix", workspace.path.name, *devices, "--", "-i", "--nb-cores=1",
            "--total-num-mbufs=4096", "--txd=256", "--rxd=256", "--no-mlockall", *peers,
            "--forward-mode=io"], stdin=subprocess.PIPE)
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

    def counters(self):
        """By port number: received and sent frames and bytes, as testpmd counts them."""
        text = self.command("show port stats all", "statistics for port 1 .*Tx-pps")
        blocks = re.findall(
            r"statistics for port (\d+).*?RX-packets: (\d+).*?RX-bytes: +(\d+)"
            r".*?TX-packets: (\d+).*?TX-bytes: +(\d+)", text, re.S)
        if len({number for number, *_ in blocks}) < 2:
            raise ScenarioError("testpmd did not show its statistics")
        return {int(number): dict(zip(("rx_packets", "rx_bytes", "tx_packets", "tx_bytes"),
                                      map(int, values))) for number, *values in blocks}

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
