"""The kept samples: bytes that release 0.1 wrote.

Zone: real.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from testbench.releases import ROOT

STORED: Final = ROOT / "tests" / "formats" / "release_0_1"


def path_of(name: str) -> Path:
    """The file of a sample."""
    return STORED / ("nodes" if name.startswith("znode-") else "logs") / f"{name}.bin"


def stored_samples() -> dict[str, bytes]:
    """The bytes by the names of samples."""
    return {path.stem: path.read_bytes() for path in sorted(STORED.rglob("*.bin"))}
