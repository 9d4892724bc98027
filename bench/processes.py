"""Whole processes, from their start to their end."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple


class Used(NamedTuple):
    """What a process used, from its start to its end."""

    cpu_s: float
    seconds: float
    peak_mib: float


def run_measured(command: list[str], log: Path) -> Used:
    """Run a command. Raises SystemExit, with its output, if it fails."""
    # Keep bytecode, like an ordinary installation.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()}")
    return Used(used.ru_utime + used.ru_stime, seconds, used.ru_maxrss / 1024)
