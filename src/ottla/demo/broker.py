"""The demo's broker: a process of its own, so that it can be killed and started again.

Zone: real. It has a pipe to the process that started it, and ends when that process has ended in any way.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

_PATIENCE_S = 60
_TETHERED = """
import os, signal, sys, threading
from ottla.cli.main import main

def end_with_the_pipe():
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end_with_the_pipe, daemon=True).start()
main()
"""
"""The command line, in a process that ends when its standard input does."""


class BrokerFailed(RuntimeError):
    """The broker did not start; the text ends with the last lines of its log."""


class BrokerProcess:
    """`ottla up` on a data directory; a context manager."""

    def __init__(self, directory: Path) -> None:
        self.bootstrap = ""
        """host:port, set at the first start, and the same after later ones."""
        self._data = directory
        self._log = directory.with_name("broker.log")
        self._ready = directory.with_name("broker.ready")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BrokerProcess:
        self.start_broker()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.communicate()

    def start_broker(self) -> None:
        """Start it on the same port as before, and wait until it is ready. Raises BrokerFailed."""
        # The file of an earlier start would make this one look ready at once.
        self._ready.unlink(missing_ok=True)
        # Spark's clients have the old address in their options, so the broker must come back on the same port.
        port = self.bootstrap.rpartition(":")[2] or "0"
        words = ["up", "--data", str(self._data), "--port", port, "--ready-file", str(self._ready)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _TETHERED, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for this process
            )
        until = time.monotonic() + _PATIENCE_S
        while not (self._ready.is_file() and self._ready.read_text().strip()):
            if self._process.poll() is not None or time.monotonic() > until:
                raise BrokerFailed("\n  ".join(["the broker did not start; the end of its log:", *self._last_lines()]))
            time.sleep(0.01)
        self.bootstrap = self._ready.read_text().strip()

    def kill_broker(self) -> None:
        """Kill it with SIGKILL, as a crash would."""
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        process.communicate()

    def _last_lines(self) -> list[str]:
        return self._log.read_text("utf-8", "replace").splitlines()[-15:]
