"""Touches memory before a row. A virtual machine gets its memory from the host page by page at the first access, which
is expensive.

The cost was some 2 CPU seconds per GB, in the broker that first wrote to such pages: the 1 MB row of three brokers took
two to three times the CPU for both sides in one run. Memory that was returned to the host has to be requested again.
So before each row that writes, as much memory as it will need is touched and freed, for every peer: the kernel reuses
first the pages that were freed last.
"""

from __future__ import annotations

import mmap
from pathlib import Path

ENOUGH = 2_000_000_000
"""Maximum bytes that a row writes at once, with all replicas."""
STEP = 2 << 20
SHARED = Path("/dev/shm")


def touch_memory(size: int = ENOUGH) -> None:
    """Write to this much free memory, at most half of it, and free it."""
    content = b"\1" * STEP
    size = min(size, _available() // 2)
    with mmap.mmap(-1, max(size, STEP)) as free:
        for at in range(0, size - STEP, STEP):
            free[at : at + STEP] = content


def in_memory() -> Path | None:
    """A directory with files in memory, for figures without the disk; None where there is none."""
    return SHARED if SHARED.is_dir() else None


def _available() -> int:
    """Available bytes: the kernel's figure, or the lower limit of a control group."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for group in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                left = int(Path(group, limit).read_text()) - int(Path(group, used).read_text())
            except (OSError, ValueError):  # not there, or "max"
                continue
            available = min(available, left)
    return max(available, 0)
