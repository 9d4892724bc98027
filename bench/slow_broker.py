#!/usr/bin/env python3
"""`ottla up` on a disk whose syncs take at least a given time, and are counted.

    bench/slow_broker.py COUNTER DELAY_MS [options of ottla up …]

Every fdatasync of a file of a log takes DELAY_MS at least, in the thread that would wait for the device; COUNTER is a
file whose first eight bytes are the number of them so far, in the machine's byte order.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
import time
from pathlib import Path

from ottla.cli.main import main
from ottla.server.disks import file

COUNT = struct.Struct("=q")


class SlowSync:
    """A slow fdatasync, with a counter."""

    def __init__(self, counter: Path, delay_s: float) -> None:
        counter.write_bytes(bytes(COUNT.size))
        with counter.open("r+b") as opened:
            self._count = mmap.mmap(opened.fileno(), COUNT.size)
        self._delay_s = delay_s
        self._lock = threading.Lock()

    def __call__(self, fd: int) -> None:
        """Sync, and wait for the rest of the time."""
        until = time.monotonic() + self._delay_s
        os.fdatasync(fd)
        time.sleep(max(0.0, until - time.monotonic()))
        with self._lock:
            COUNT.pack_into(self._count, 0, syncs_of(self._count) + 1)


def syncs_of(count: bytes | mmap.mmap) -> int:
    """The value in the bytes of the counter."""
    value: int = COUNT.unpack_from(count)[0]
    return value


if __name__ == "__main__":
    file._fdatasync = SlowSync(Path(sys.argv[1]), float(sys.argv[2]) / 1000)
    sys.argv[1:] = ["up", *sys.argv[3:]]
    main()
