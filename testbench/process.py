"""A server as a process that tests start, stop, kill and pause, here or in a network namespace; and its log.

Zone: real. Contains nothing specific to one server.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

COMPLAINT = re.compile(r"Traceback \(most recent call last\)|AssertionError|\b(?:FATAL|CRITICAL)\b")
"""Lines that an Ottla broker must never write."""


class NodeError(Exception):
    """A server did not start, or did not end properly; the message has the end of its log."""


class ManagedProcess:
    """One server. `log` has the standard error of all its starts, one after the other."""

    def __init__(self, name: str, log: Path, prefix: Sequence[str] = ()) -> None:
        self.name = name
        self.log = log
        self.started_s = 0.0
        """Seconds from the last start until it was ready."""
        self._prefix = list(prefix)
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the command; it may not be ready yet."""
        with self.log.open("ab") as log:
            # A separate process group: Ctrl-C in the terminal reaches only the test, which then stops the server.
            self._process = subprocess.Popen(
                [*self._prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                process_group=0,
                env=environment,
            )

    def await_ready(self, ready: Callable[[], bool], wait_s: float, pause_s: float = 0.01) -> None:
        """Wait until it is ready. Raises NodeError when it ends first, or takes too long."""
        began = time.monotonic()
        while not ready():
            if not self.alive:
                raise NodeError(f"{self.name} ended before it was ready:\n{self.tail()}")
            if time.monotonic() - began > wait_s:
                raise NodeError(f"{self.name} was not ready after {wait_s} s:\n{self.tail()}")
            time.sleep(pause_s)
        self.started_s = time.monotonic() - began

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs; it may be paused."""
        return self._process is not None and self._process.poll() is None

    def must_live(self) -> None:
        """Raises NodeError with its exit code and the end of its log when the process has ended by itself."""
        if not self.alive:
            code = None if self._process is None else self._process.returncode
            raise NodeError(f"{self.name} is gone, with exit code {code}:\n{self.tail()}")

    def stop(self, wait_s: float = 180) -> None:
        """SIGTERM, and wait for the end. Raises NodeError when it does not end by itself with exit code 0."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise NodeError(f"{self.name} did not stop within {wait_s} s:\n{self.tail()}") from None
        if process.returncode not in self.clean_exits:
            raise NodeError(f"{self.name} ended with exit code {process.returncode}:\n{self.tail()}")

    clean_exits: tuple[int, ...] = (0,)
    """Allowed exit codes after SIGTERM."""

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone; does nothing if it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """SIGSTOP, and wait until every thread has stopped: system calls that were under way have ended by then."""
        stand_still(self.pid)

    def resume(self) -> None:
        """SIGCONT, after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def said(self, since: int = 0) -> str:
        """The log from a byte position on; `position` gives one."""
        with self.log.open("rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace")

    def wait_until_says(self, text: str, since: int = 0, wait_s: float = 180) -> None:
        """Wait until the log has a text after a position. Raises NodeError."""
        deadline = time.monotonic() + wait_s
        while text not in self.said(since):
            if time.monotonic() > deadline:
                raise NodeError(f"{self.name} did not say {text!r} within {wait_s} s:\n{self.tail()}")
            time.sleep(0.02)

    @property
    def position(self) -> int:
        """The present end of the log, in bytes."""
        return self.log.stat().st_size if self.log.exists() else 0

    def tail(self, lines: int = 40) -> str:
        """The last lines of the log."""
        return "\n".join(self.said().splitlines()[-lines:]) if self.log.exists() else ""

    def complaints(self, since: int = 0) -> list[str]:
        """Complaints: an ended process, tracebacks in its log."""
        found = [] if self.alive else [f"{self.name}: the process is gone"]
        return found + [line for line in self.said(since).splitlines() if COMPLAINT.search(line)]

    def resident_bytes(self) -> int:
        """Resident memory of the process, in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def stand_still(pid: int) -> None:
    """SIGSTOP, and wait until no thread runs any more."""
    os.kill(pid, signal.SIGSTOP)
    while any(state not in "TtZ" for state in _thread_states(pid)):
        time.sleep(0.001)


def _thread_states(pid: int) -> list[str]:
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has just ended
    return states
