"""Events of the verifiable clients as lines of JSON, and the signals that end them.

Zone: real. Writes to standard output; a thread waits for the signal.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class EventWriter:
    """Writes events to standard output. Safe to use from several threads."""

    def __init__(self, on_failure: Callable[[], object]) -> None:
        """on_failure: called when a line cannot be written, because the reader has gone or the disk is full."""
        self._lock = threading.Lock()
        self._on_failure = on_failure
        self._failure: OSError | None = None

    def write_event(self, name: str, **fields: object) -> None:
        """Write one line, in the order of the fields."""
        line = json.dumps({"timestamp": now_ms(), "name": name, **fields}, ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            if self._failure is not None:
                return
            try:
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
            except OSError as error:
                # An exception in a callback would only be logged, and the tool would send without end.
                self._failure = error
                self._on_failure()

    def raise_failure(self) -> None:
        """Raises the error of an earlier line."""
        if self._failure is not None:
            raise self._failure


class Stopper:
    """Closes or wakes a client when SIGTERM or SIGINT comes, or on request. Use as a context manager.

    As in Kafka's tools, the client is closed in another thread than the one that uses it, which may be waiting in it.
    A second signal ends the process at once.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close
        # A signal may interrupt any step of the main thread: `SimpleQueue.put` takes no lock that it could hold.
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._close_when_asked, daemon=True)
        self._before: dict[int, Any] = {}
        self._signal = 0

    @property
    def stopped(self) -> bool:
        """Whether the client is being closed."""
        return self._stopped.is_set()

    @property
    def exit_code(self) -> int:
        """The exit code as a shell shows it: 143 after SIGTERM, 130 after SIGINT, else 0."""
        return 128 + self._signal if self._signal else 0

    def request_stop(self) -> None:
        """Let the other thread close the client."""
        self._requests.put(True)

    def wait_for_stop(self, timeout_s: float | None = None) -> None:
        """Wait until the client is being closed, or for this long."""
        self._stopped.wait(timeout_s)

    def _close_when_asked(self) -> None:
        if self._requests.get():
            self._stopped.set()
            self._close()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signal = number
        self.request_stop()
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __enter__(self) -> Stopper:
        self._thread.start()
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._restore_handlers()
        self._requests.put(False)
        self._thread.join()
