"""A process beside the brokers, such as the schema registry of `ottla up`, which is started again when it ends.

Zone: real. It ends with this process, whatever ends that one: its standard input is a pipe that only this process
holds, and at the end of the pipe it stops.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 30.0
"""Pauses before it is started again: doubled each time; the first one again after it ran for STEADY_S."""
STEADY_S: Final = 10.0
STOP_S: Final = 10.0
"""Time to stop in order; after that it is killed."""


class ChildProcess:
    """One process. `start_process` and `stop_process` are called once each, by any thread."""

    def __init__(self, name: str, make_command: Callable[[str], Sequence[str]]) -> None:
        """make_command: the command, for the address of the brokers. It must stop at the end of its standard input."""
        self._name = name
        self._make_command = make_command
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start_process(self, bootstrap: str) -> None:
        """Start it in a thread that starts it again when it ends."""
        command = list(self._make_command(bootstrap))
        self._thread = threading.Thread(target=self._keep_running, args=(command,), name=self._name, daemon=True)
        self._thread.start()

    def stop_process(self) -> None:
        """Stop it and wait for its end; kill it if that takes longer than STOP_S. Nothing if it was never started."""
        # Under the lock: no process can be started between the look at it and the mark.
        with self._lock:
            self._stopping.set()
            process = self._process
            if process is not None:
                _close_input(process)
        if self._thread is None:
            return
        self._thread.join(STOP_S)
        if self._thread.is_alive() and process is not None:
            log.warning("the %s (pid %d) did not stop within %.0f s: killing it", self._name, process.pid, STOP_S)
            process.kill()
            self._thread.join()

    def _keep_running(self, command: list[str]) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            end = self._run_once(command)
            if self._stopping.is_set():
                break
            # One that ran well for a while is started again at once; one that cannot start is tried less and less.
            pause_s = FIRST_PAUSE_S if time.monotonic() - began > STEADY_S else pause_s
            log.warning("the %s ended: %s; starting it again in %.1f s", self._name, end, pause_s)
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    def _run_once(self, command: list[str]) -> str:
        """Run it until it ends; returns how it ended."""
        try:
            with self._lock:
                if self._stopping.is_set():
                    return "not started"
                # A process group of its own: Ctrl-C in the terminal reaches this process alone, which stops the child
                # after the brokers.
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, process_group=0)
                self._process = process
        except OSError as error:
            return f"cannot start {command[0]}: {error.strerror}"
        log.info("started the %s (pid %d)", self._name, process.pid)
        status = process.wait()
        _close_input(process)
        return f"exit status {status}"


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
