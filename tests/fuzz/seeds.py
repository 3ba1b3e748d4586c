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


class DeviceQueue:
    """fuzz_device_queue.cc and device_model.h."""
    PACKED, RECEIVE, MERGEABLE, VERSION_1, INDIRECT_DESC, EVENT_IDX, IN_ORDER = (
        1 << bit for bit in range(7))
    NEXT, WRONG_DIRECTION, INDIRECT = 1, 2, 4
    A, B, C, D, E, APART, TOP = range(1, 8)  # regions

    def __init__(self, kind):
        self.packed = bool(kind & self.PACKED)
        self.receive = bool(kind & self.RECEIVE)
        self.kind = kind
        self.features = self.VERSION_1 | self.INDIRECT_DESC

    # Sizes are 64 unless chosen.
    def start(self, features=None, size=None, position=None):
        if size is None:
            size = 8 if self.packed else 6
        if position is None:
            position = 0x8000 if self.packed else 0
        return u8(self.kind | (self.features if features is None else features), size) + u16(position)

    @staticmethod
    def count(number):
        return number - 1 if number <= 8 else 7 + number // 16

    @staticmethod
    def place(region, offset=0):
        return u8(region) + u16(offset)

    def describe(self, index, place, length, flags=0, following=0, count=1):
        return (u8(0) + u16(index) + u8(count - 1) + place + u16(length) + u8(flags) +
                u16(following))

    def offer(self, place, length, flags=0, count=1, same_place=False, number=7):
        return (u8((3 if same_place else 2) | self.count(count) << 4) + place + u16(length) +
                u8(flags) + u16(number))

    def head(self, index):
        return u8(1) + u16(index)

    def table(self, at, place, length, flags=0, following=0, count=1):
        return (u8(4 | self.count(count) << 4) + at + place + u16(length) + u8(flags) +
                u16(following))

    def wish(self, event, flags):
        return u8(8) + u16(event) + u8(flags)

    # Of a receive queue: so many frames of one length, 14 bytes more than `raw`.
    def poll(self, frames=1, raw=100, code=9):
        if not self.receive:
            return u8(code)
        return u8(code | (frames - 1 if frames <= 8 else 7 + frames // 4) << 4) + u16(raw)

    ASK = u8(12)
    RESTART = u8(13)
    RESYNC = u8(14)

    def good(self):
        return self.offer(self.place(self.A, 0x10), 200, count=2) + self.poll(2)

    # A bad chain, and good ones behind it.
    def refused(self, script, **start):
        return self.start(**start) + script + self.poll() + self.good() + self.poll() + self.good()

    def broken(self, script, **start):
        anew = u8(13, 2) + u16(0x8000 if self.packed else 7)
        return (self.start(**start) + self.good() + script + self.poll() + self.good() + anew +
                self.good())

    def scripts(self):
        many = self.MERGEABLE | self.VERSION_1 | self.INDIRECT_DESC
        for name, features in {"legacy": 0, "mergeable": self.MERGEABLE, "version1": self.VERSION_1,
                               "in-order": self.IN_ORDER | self.VERSION_1}.items():
            yield f"good-{name}", (self.start(features) + self.good() + self.ASK + self.wish(0, 1) +
                                   self.good() + self.ASK + self.RESTART + self.good() + self.poll())
        first = 0x8000 if self.packed else 0
        yield "events", (self.start(self.EVENT_IDX | self.VERSION_1) + self.wish(0, 2) +
                         self.good() + self.ASK + self.wish(first + 2, 2) + self.good() + self.ASK +
                         self.wish(first + 40, 2) + self.good() + self.ASK + self.ASK)
        yield "wraps", (self.start(size=4 if self.packed else 2,
                                   position=0x8004 if self.packed else 0xfffe) + self.good() * 9)
        yield "full", (self.start() + self.offer(self.place(self.A), 60, count=48, same_place=True) +
                       self.poll(32, 30) * 2)
        yield "regions", (self.start() + self.offer(self.place(self.A, 0x7f0), 0x900) +
                          self.poll(1, 0x880) + self.offer(self.place(self.TOP, 0xf00), 0xff) +
                          self.poll())
        yield "changed", (self.start() + self.offer(self.place(self.A, 0x10), 300, count=4) +
                          (self.poll(4, 100, 11) if self.receive else
                           u8(11) + self.place(self.A) + u8(40) + bytes(40)))
        if self.packed:
            chain = (self.offer(self.place(self.APART), 5, self.NEXT, 3) +
                     self.offer(self.place(self.B), 200))
        else:
            chain = (self.describe(0, self.place(self.APART), 5, self.NEXT, 1, 3) +
                     self.describe(3, self.place(self.B), 200) + self.head(0))
        yield "chain", self.refused(chain)
        table = (self.table(self.place(self.APART, 3), self.place(self.B), 6, self.NEXT, 1, 3) +
                 self.table(self.place(self.APART, 51), self.place(self.E), 300))
        offered = self.offer(self.place(self.APART, 3), 64, self.INDIRECT)
        yield "table", self.refused(table + offered)
        yield "table-not-negotiated", self.refused(table + offered, features=self.VERSION_1)
        yield "table-odd", self.refused(self.offer(self.place(self.APART), 17, self.INDIRECT))
        yield "table-unmapped", self.refused(self.offer(self.place(self.E, 0x400), 16,
                                                        self.INDIRECT))
        yield "unmapped", self.refused(self.offer(self.place(self.APART, 0x1f0), 17))
        yield "wrong-direction", self.refused(self.offer(self.place(self.A), 99,
                                                         self.WRONG_DIRECTION))
        yield "short", self.refused(self.offer(self.place(self.A), 5))
        pieces = self.place(self.A, 0x7f0), 0x820
        if self.packed:
            yield "loop", self.refused(table + self.offer(self.place(self.APART, 3), 32,
                                                          self.INDIRECT), size=0)
            yield "fragments", self.refused(
                self.offer(*pieces, self.NEXT, 128, True) + self.offer(*pieces, self.NEXT, 64, True) +
                self.offer(*pieces), size=11)
            yield "endless", self.broken(self.offer(self.place(self.A), 50, self.NEXT, 3), size=2)
        else:
            loop = self.describe(0, self.place(self.A), 50, self.NEXT, 0) + self.head(0)
            yield "loop", self.refused(loop)
            yield "index", self.refused(self.describe(0, self.place(self.A), 50, self.NEXT, 64) +
                                        self.head(0))
            yield "fragments", self.refused(self.describe(0, *pieces, self.NEXT, 0) + self.head(0),
                                            size=8)
            yield "jump", self.broken(u8(7) + u16(1000))
            yield "head", self.broken(self.head(64))
        if self.receive:
            yield "several", (self.start(many) + self.offer(self.place(self.A), 100, count=8) +
                              self.poll(1, 500) + self.poll(1, 500))
            yield "put-back", (self.start(many) + self.offer(self.place(self.A), 100) +
                               self.offer(self.place(self.A), 4) +
                               self.offer(self.place(self.B), 100, count=8) + self.poll(2, 300))
            yield "steps", (self.start(many, size=11 if self.packed else 8) +
                            (self.offer(self.place(self.A), 100, count=16) +
                             self.poll(16, 50, 11)) * 70)

    @classmethod
    def seeds(cls):
        for layout, kind in (("split", 0), ("packed", cls.PACKED)):
            for direction, more in (("transmit", 0), ("receive", cls.RECEIVE)):
                for name, script in cls(kind | more).scripts():
                    yield f"{layout}-{direction}-{name}", script


class DriverQueue:
    """fuzz_driver_queue.cc and driver_model.h."""
    PACKED, RECEIVE, MERGEABLE, VERSION_1, INDIRECT_DESC, EVENT_IDX, IN_ORDER, ANY_LAYOUT = (
        1 << bit for bit in range(8))
    RECLAIM = u8(8 + 3)
    RELEASE = u8(8 + 2)
    RESUME = u8((8 + 4) | 0x10)

    def __init__(self, kind):
        self.kind = kind
        self.packed = bool(kind & self.PACKED)
        self.receive = bool(kind & self.RECEIVE)

    # A queue of 16 with as many buffers of 116 bytes.
    def start(self, features, layout=0, buffers=16):
        size = 6 if self.packed else 4
        start = u8(self.kind | features, size, buffers - 1, 100)
        return start if self.receive else start + u8(layout)

    @staticmethod
    def count(number):
        return number - 1 if number <= 8 else 7 + number // 16

    def complete(self, number, length=100, how=0, num_buffers=()):
        return (u8(self.count(number) << 4, how | (2 if num_buffers else 0)) + u16(length) +
                u16(*num_buffers))

    # Sends, or reads and gives back.
    def work(self, number=4):
        code = self.count(number) << 4 | 8
        return u8(code) + self.RELEASE if self.receive else u8(code)

    def turn(self, **how):
        begin = b"" if self.receive else self.work()
        return begin + self.complete(4, 0 if not self.receive else 100, **how) + (
            self.work() if self.receive else self.RECLAIM)

    @staticmethod
    def used(number, length, argument=1):
        return u8(1 | argument << 4) + u16(number, length)

    @staticmethod
    def wish(event, flags):
        return u8(3) + u16(event) + u8(flags)

    def scripts(self):
        plain = self.VERSION_1
        for name, features in {"legacy": 0, "version1": plain, "in-order": plain | self.IN_ORDER,
                               "indirect": self.INDIRECT_DESC}.items():
            yield f"good-{name}", (self.start(features) + self.turn() + self.wish(0, 1) +
                                   self.turn() * 6)
        yield "chain", self.start(self.INDIRECT_DESC, layout=3) + self.turn() * 9
        yield "order", self.start(plain) + self.turn(how=12) * 9
        yield "batch", self.start(plain | self.IN_ORDER) + self.turn(how=1) * 9
        first = 0x8000 if self.packed else 0
        yield "events", (self.start(plain | self.EVENT_IDX) +
                         b"".join(self.wish(first + event, 2) + self.turn()
                                  for event in (9, 5, 200, 13, 14, 17, 18)))
        yield "resume", (self.start(plain) + self.turn() + self.work() + self.RESUME + self.turn() * 3)
        yield "capped", self.start(plain) + (self.complete(2, 0xfff0) + self.work() if self.receive
                                             else self.work() + self.complete(2, 9) + self.RECLAIM)
        for name, bad in {"bad-id": self.used(99, 5), "twice": self.used(0, 5) * 2}.items():
            yield name, (self.start(plain) + self.turn() + self.work() + bad +
                         (self.work() if self.receive else self.RECLAIM) * 2 + self.RESUME +
                         self.turn() * 2)
        yield "jump", (self.start(plain) + self.turn() + u8(2) + u16(999) + self.work(8) * 3 +
                       self.RECLAIM + self.RECLAIM + self.RESUME + self.turn())
        if not self.receive:
            return
        many = plain | self.MERGEABLE
        yield "several", (self.start(many) + self.complete(4, 100, 0, (3, 1, 1, 1)) + self.work())
        yield "waits", (self.start(many) + self.complete(2, 100, 0, (3, 1)) + self.work() +
                        self.complete(1, 100, 0, (1,)) + self.work())
        yield "partial", (self.start(many) + self.complete(2, 100, 0, (9, 1)) + self.work() +
                          self.RESUME + self.complete(2, 100, 0, (1, 1)) + self.work())
        yield "numbers", (self.start(many) + self.complete(4, 100, 0, (0, 17, 1, 0xffff)) +
                          self.work())
        yield "short", self.start(many) + self.complete(4, 5) + self.work() + self.turn()

    @classmethod
    def seeds(cls):
        for layout, kind in (("split", 0), ("packed", cls.PACKED)):
            for direction, more in (("transmit", 0), ("receive", cls.RECEIVE)):
                for name, script in cls(kind | more).scripts():
                    yield f"{layout}-{direction}-{name}", script


TARGETS = {"guest_memory": GuestMemory, "device_queue": DeviceQueue, "driver_queue": DriverQueue}


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: seeds.py {'|'.join(TARGETS)} DIRECTORY")
    directory = pathlib.Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    for name, script in TARGETS[sys.argv[1]].seeds():
        (directory / f"seed-{name}").write_bytes(script)


if __name__ == "__main__":
    main()
