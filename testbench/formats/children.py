"""Runs `samples.py` with the source of a release.

Zone: real.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from testbench.releases import environment_of

_PROGRAM: Final = Path(__file__).with_name("samples.py")


def write_with(source: Path) -> dict[str, bytes]:
    """The samples as the release in `source` writes them."""
    return {name: bytes.fromhex(text) for name, text in _run(source, "write", "").items()}


def read_with(source: Path, samples: Mapping[str, bytes]) -> dict[str, Any]:
    """The values that the release in `source` finds in samples."""
    return _run(source, "read", json.dumps({name: data.hex() for name, data in samples.items()}))


def _run(source: Path, verb: str, text: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), verb],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment_of(source),
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    # An installed package of another release would make each comparison one of a release with itself.
    assert Path(answer["package"]).is_relative_to(source), answer["package"]
    samples: dict[str, Any] = answer["samples"]
    return samples
