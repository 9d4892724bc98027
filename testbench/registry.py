"""`ottla registry` as a process.

Zone: real.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from testbench.ports import HOST, free_port
from testbench.process import ManagedProcess


class RegistryProcess(ManagedProcess):
    """One registry. Use as a context manager, or `start` and `stop`."""

    def __init__(self, directory: Path, bootstrap: str, options: Sequence[str] = (), name: str = "registry") -> None:
        super().__init__(name, directory / f"{name}.log")
        self.port = free_port()
        self._command = [sys.executable, "-m", "ottla", "registry", "-b", bootstrap, "--port", str(self.port), *options]

    @property
    def url(self) -> str:
        """The address for clients."""
        scheme = "https" if "--tls-cert" in self._command else "http"
        return f"{scheme}://{HOST}:{self.port}"

    def start(self, wait_s: float = 180) -> None:
        """Start it, and wait until it is ready."""
        before = self._ready_lines()
        self.launch(self._command)
        self.await_ready(lambda: self._ready_lines() > before, wait_s)

    def _ready_lines(self) -> int:
        return len(re.findall("schema registry ready at", self.log.read_text())) if self.log.exists() else 0

    def __enter__(self) -> RegistryProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
