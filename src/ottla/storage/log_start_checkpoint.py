"""The checkpoint of log starts, and the callers that wait until a log start is durable.

Zone: deterministic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from ottla.storage.layout import LOG_STARTS
from ottla.storage.log_dir_context import CoalescingWriter, LogDirContext

CONTINUED_PER_TURN: Final = 8
"""Callers that continue in one turn once their log start is durable: each renames the files of its log's segments."""

Then = Callable[[], None]


class LogStartCheckpoint:
    """The log starts of one directory that the names of files do not show."""

    __slots__ = ("_content", "_home", "_is_busy", "_waiting", "file")

    def __init__(self, home: LogDirContext, content: Callable[[], bytes]) -> None:
        """`content` returns the new content of the file; it is called once per write."""
        self._home = home
        self._content = content
        self.file = CoalescingWriter(home, LOG_STARTS)
        """The writer of the file; others only read whether it is busy."""
        self._waiting: deque[Then] = deque()
        """Callers that wait for a write that has not begun."""
        self._is_busy = False
        """Whether callers wait for a write that has begun, or continue after it."""

    def write_starts(self) -> None:
        """Begin to write the log starts to the file."""
        self._home.starts_changed = False
        self.file.write_soon(self._content)

    def write_now(self) -> None:
        """Write the log starts to the file, blocking. Raises Failure."""
        self.file.write_now(self._content())

    def save_starts(self, then: Then) -> None:
        """Make the log starts durable, then call back in a later turn.

        Callers that come during a write share the next one.
        """
        self._waiting.append(then)
        if not self._is_busy:
            self._save_for_all()

    def _save_for_all(self) -> None:
        callers, self._waiting = self._waiting, deque()
        self._is_busy = bool(callers)
        if callers:
            self.write_starts()
            self.file.when_idle(lambda _: self._continue_some(callers))

    def _continue_some(self, callers: deque[Then]) -> None:
        for _ in range(min(CONTINUED_PER_TURN, len(callers))):
            callers.popleft()()
        if callers:
            self._home.timers.add_timer(self._home.clock.now().mono_ns, lambda: self._continue_some(callers))
        else:
            self._save_for_all()
