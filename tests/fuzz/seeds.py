#!/usr/bin/env python3
"""Writes the hand-made seeds of the corpora: one short script for what chance rarely finds.

Usage: seeds.py TARGET DIRECTORY. The layouts follow the scenarios in fuzz_TARGET.cc; whoever changes
a scenario changes this and the corpus with it (see README.md).
"""
import pathlib
import struct
import sys

TOP = 2**64 - 1


def u8(*values):
    return bytes(value & 0xff for value in values)


def u16(*values):
    return b"".join(struct.pack("<H", value & 0xffff) for value in values)


def u64(value):
    return struct.pack("<Q", value)


class GuestMemory:
    """fuzz_guest_memory.cc."""
    PLAIN, ODD, SPARSE, DEVICE, NONE = range(5)

    @staticmethod
    def address(value):
        return u8(0xf0) + u64(value)

    @staticmethod
    def length(value):
        return u8(0xf0) + u64(value)

    @classmethod
    def region(cls, guest, size, user, file, offset=0):
        return (cls.address(guest) + cls.length(size) + cls.address(user) + u8(0x80 | file << 2) +
                u64(offset))

    @staticmethod
    def table(*regions):
        return u8(0, len(regions)) + b"".join(regions)

    @classmethod
    def translate(cls, start, length, capacity=8, count=0, step=4):
        return u8(step) + cls.address(start) + cls.length(length) + u8(capacity + 9 * count)

    @classmethod
    def user(cls, start, length):
        return u8(1) + cls.address(start) + cls.length(length)

    @classmethod
    def seeds(cls):
        plain = cls.region(0x1000, 0x1000, 0x9000, cls.PLAIN)
        adjoining = cls.table(plain, cls.region(0x2000, 3, 0xa000, cls.PLAIN, 0x1fff),
                              cls.region(0x2003, 0x500, 0x8000, cls.ODD, 0x1001))
        sparse = cls.region(0, 1 << 41, 0, cls.SPARSE)
        yield "adjoining", (adjoining + cls.translate(0x1ff0, 0x30) + cls.translate(0x2000, 3) +
                            cls.translate(0x1000, 0x1503) + cls.translate(0x1000, 0x1504) +
                            cls.translate(0x1ff0, 0x30, capacity=2) +
                            cls.translate(0x1ff0, 0x30, capacity=2, count=2) +
                            cls.translate(0, 0) + cls.translate(0xfff, 2) +
                            cls.translate(TOP, 2) + cls.translate(TOP, 1) +
                            cls.user(0x9000, 0x1000) + cls.user(0x9fff, 2) + cls.user(TOP, TOP))
        yield "replaced", (cls.table(plain) + cls.table(cls.region(0x5000, 1, 1, cls.ODD, 0x2344)) +
                           cls.translate(0x1001, 5, step=3) + cls.translate(0x5000, 1) +
                           cls.translate(0x1001, 5))
        yield "none", cls.table() + cls.translate(0, 1) + cls.user(0, 1)
        yield "top", (cls.table(cls.region(TOP - 0xfff, 0xfff, TOP - 0xfff, cls.PLAIN)) +
                      cls.translate(TOP - 5, 5) + cls.translate(TOP - 5, 6) + cls.translate(TOP - 1, 1))
        yield "large", (cls.table(sparse, cls.region(1 << 41, 1 << 41, 1 << 41, cls.SPARSE)) +
                        cls.translate((1 << 41) - 1, 0xffffffff))
        refused = {
            "empty": [cls.region(1, 0, 1, cls.PLAIN)],
            "guest-wraps": [cls.region(TOP, 1, 0, cls.PLAIN), ],
            "guest-wraps-more": [cls.region(TOP, 2, 0, cls.PLAIN)],
            "user-wraps": [cls.region(0, 2, TOP, cls.PLAIN)],
            "file-wraps": [cls.region(0, 2, 0, cls.PLAIN, TOP)],
            "guest-overlap": [plain, cls.region(0x1fff, 2, 0, cls.PLAIN)],
            "user-overlap": [plain, cls.region(0, 2, 0x8fff, cls.PLAIN)],
            "too-large": [sparse, sparse, cls.region(0, 1, 0, cls.PLAIN)],
            "device": [plain, cls.region(0, 2, 0, cls.DEVICE)],
            "no-file": [cls.region(0, 2, 0, cls.NONE)],
            "beyond-file": [cls.region(0, 2, 0, cls.ODD, 0x2344)],
            "last-page": [cls.region(0, 1, 0, cls.SPARSE, 2**63 - 4096)],
        }
        for name, regions in refused.items():
            yield name, adjoining + cls.table(*regions) + cls.translate(0x1ff0, 0x30)
        yield "vanished", adjoining + u8(0x82) + u16(0x1234) + cls.translate(0x1ff0, 0x30)


TARGETS = {"guest_memory": GuestMemory}


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: seeds.py {'|'.join(TARGETS)} DIRECTORY")
    directory = pathlib.Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    for name, script in TARGETS[sys.argv[1]].seeds():
        (directory / f"seed-{name}").write_bytes(script)


if __name__ == "__main__":
    main()
