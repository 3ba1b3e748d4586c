"""A real Linux guest: QEMU, a distribution's kernel with its virtio-net driver, busybox.

The guest's console is a shell that reads a command a line, so a scenario can talk to it while it
runs. Software emulation (tcg) is used everywhere: it needs no rights and behaves the same on every
machine.
"""
import pathlib
import re
import subprocess

from processes import ROOT, ScenarioError, find_tool

KERNEL = ROOT / ".cache" / "guest-kernel"
# In the order in which they need each other.
MODULES = ["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci",
           "failover", "net_failover", "virtio_net"]
# A line with the status ends the output of a command. The marker is put together by the shell, so
# that an echo of the command does not look like its end.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
stty -echo -onlcr
for module in {modules}; do
  [ ! -f /modules/$module.ko ] || insmod /modules/$module.ko
done
ip link set lo up
echo "guest""-ready"
while read -r line; do
  eval "$line"
  echo "guest""-done $?"
done
poweroff -f
"""


def _cpio_entry(number, name, mode, content=b""):
    encoded = name.encode() + b"\0"
    fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0]
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    out = header + encoded
    out += b"\0" * (-len(out) % 4)
    return out + content + b"\0" * (-len(content) % 4)


def build_initramfs(target):
    """Writes an archive in cpio's "newc" form: busybox, the virtio modules, an init script."""
    if not (KERNEL / "vmlinuz").exists():
        raise ScenarioError(f"no guest kernel in {KERNEL}: run ./dev setup")
    busybox = pathlib.Path(find_tool("busybox"))
    entries = [(name, 0o040755, b"") for name in ("bin", "dev", "proc", "sys", "modules")]
    entries.append(("bin/busybox", 0o100755, busybox.read_bytes()))
    entries.append(("init", 0o100755, INIT.format(modules=" ".join(MODULES)).encode()))
    entries += [(f"modules/{path.name}", 0o100644, path.read_bytes())
                for path in sorted(KERNEL.glob("*.ko"))]
    archive = b"".join(_cpio_entry(number, *entry) for number, entry in enumerate(entries, 1))
    target.write_bytes(archive + _cpio_entry(0, "TRAILER!!!", 0))
    return target


class LinuxGuest:
    def __init__(self, workspace, name, socket, mac, initramfs, device_options="", reconnect=False,
                 queues=1):
        # The driver uses as many queue pairs as it has CPUs.
        several = ["-smp", queues] if queues > 1 else []
        device_options += ",mq=on" if queues > 1 else ""
        reconnecting = ",reconnect=1" if reconnect else ""
        # vectors=0: QEMU 7.2 does not survive MSI-X with vhost-user under tcg.
        self.process = workspace.start(name, [
            find_tool("qemu-system-x86_64"), "-accel", "tcg", "-cpu", "max", "-m", "192",
            *several, "-display", "none", "-no-reboot", "-nodefaults", "-serial", "stdio",
            "-machine", "q35,memory-backend=mem",
            "-object", "memory-backend-memfd,id=mem,size=192M,share=on",
            "-chardev", f"socket,id=c0,path={socket}{reconnecting}",
            "-netdev", f"vhost-user,id=n0,chardev=c0,queues={queues}",
            "-device", f"virtio-net-pci,netdev=n0,mac={mac},romfile=,vectors=0{device_options}",
            "-kernel", KERNEL / "vmlinuz", "-initrd", initramfs,
            "-append", "console=ttyS0 quiet panic=-1"], stdin=subprocess.PIPE)
        self._seen = 0

    def wait_ready(self, seconds=60):
        _, self._seen = self.process.wait_for_output("guest-ready", seconds)

    def run(self, command, seconds=60, check=True):
        """Runs a shell command in the guest; its exit status and its output."""
        self.process.send(command)
        text, self._seen = self.process.wait_for_output(r"guest-done \d+\n", seconds, self._seen)
        text, _, end = text.rpartition("guest-done ")
        status = int(end)
        if check and status:
            raise ScenarioError(f"{self.process.name}: '{command}' ended with {status}:\n{text}")
        return status, text

    def configure(self, address, mtu=1500):
        self.run(f"ip link set eth0 mtu {mtu} && ip link set eth0 up")
        self.run(f"ip address add {address}/24 dev eth0")

    def ping(self, address, count=10, size=56, interval=0.1):
        """(sent, received) of a ping; both as the guest counted them."""
        _, text = self.run(f"ping -c {count} -i {interval} -W 2 -s {size} {address}", check=False)
        match = re.search(r"(\d+) packets transmitted, (\d+) packets received", text)
        if not match:
            raise ScenarioError(f"{self.process.name}: no summary from ping:\n{text}")
        return int(match.group(1)), int(match.group(2))

    def ping_until_answered(self, address, tries=30):
        status, text = self.run(
            f"for i in $(seq {tries}); do ping -c 1 -W 1 {address} >/dev/null && break; done; "
            f"ping -c 1 -W 2 {address}", seconds=3 * tries, check=False)
        if status:
            raise ScenarioError(f"{self.process.name}: {address} never answered:\n{text}")
