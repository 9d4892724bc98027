"""Memory of a virtual machine: the host gives it page by page, when it is touched first, and that is dear.

Some 2 CPU seconds per GB were seen, in whichever broker wrote to pages that nobody had used lately: three brokers' 1 MB
row was two to three times dearer for both sides in one run than in the next. What is given back to the host stays
away, so before each row that writes as much memory as it will need is touched and freed, for every peer alike: the
kernel hands out first what was freed last.
"""

from __future__ import annotations

import mmap
from pathlib import Path

ENOUGH = 2_000_000_000
"""Bytes; no row writes more in one go, all replicas counted."""
STEP = 2 << 20
SHARED = Path("/dev/shm")


def touch_memory(size: int = ENOUGH) -> None:
    """Write to this much free memory, or to half of what there is, and give it back."""
    content = b"\1" * STEP
    size = min(size, _available() // 2)
    with mmap.mmap(-1, max(size, STEP)) as free:
        for at in range(0, size - STEP, STEP):
            free[at : at + STEP] = content


def in_memory() -> Path | None:
    """A directory whose files are in memory, for what is not to be a figure of the disk; None where there is none."""
    return SHARED if SHARED.is_dir() else None


def _available() -> int:
    """Bytes that may be taken without harm: what the kernel says, less where a control group allows less."""
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
