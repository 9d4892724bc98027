"""An Ottla broker as a separate process, for tests and measurements that treat it as a black box.

Zone: real. Starts a broker; process.py has the parts common to all servers. Nothing of the broker is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from testbench.ports import HOST, free_port
from testbench.process import COMPLAINT, ManagedProcess, NodeError

OTTLA = (sys.executable, "-m", "ottla")


class OttlaNode(ManagedProcess):
    """`ottla up` on a data directory. Use as a context manager, or `start` and `stop`; `start` again is a restart."""

    def __init__(self, data: Path, settings: dict[str, str] | None = None, *, log: Path | None = None) -> None:
        # The log may be on another file system than the data.
        super().__init__("the broker", log or data.with_name(data.name + ".log"))
        self.data = data
        self.settings = settings or {}
        self.port = free_port()

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    def start(self, wait_s: float = 180) -> None:
        """Start, and wait until the broker reports that it is ready. Raises NodeError."""
        ready = self.log.with_suffix(".ready")
        ready.unlink(missing_ok=True)
        self.launch(self._command(ready))
        self.await_ready(lambda: ready.exists() and bool(ready.read_text().strip()), wait_s)

    def _command(self, ready: Path) -> list[str]:
        words = [*OTTLA, "up", "--data", str(self.data), "--port", str(self.port)]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={value}"]
        return [*words, "--ready-file", str(ready)]

    def __enter__(self) -> OttlaNode:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()


__all__ = ["COMPLAINT", "OTTLA", "NodeError", "OttlaNode"]
