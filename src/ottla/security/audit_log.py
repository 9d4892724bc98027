"""The audit log: one line for each denied operation, and for each change of ACLs, users, quotas and settings.

Zone: deterministic. The logger is `ottla.audit`. A line is a word (`denied`, `changed`) and `key="value"` pairs, whose
values are JSON strings, cut, so that no name from outside can begin a line or make it long.

Denials are limited, for each connection and for all of them: a client that repeats a denied request a million times
must not fill the disk. Each line has the number of denials that were left out since the line before. Changes are not
limited: each of them is a write to the metadata store.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from ottla.seams import Clock, Peer

logger = logging.getLogger("ottla.audit")

TEXT_MAX: Final = 200
"""Most characters of a value."""
LINES_PER_S: Final = 100
"""Most denials in the log per second, of all connections."""
LINES_OF_CONNECTION_PER_S: Final = 5
"""Most denials of one connection in the log per second."""
_NS_PER_S: Final = 1_000_000_000


class LineLimit:
    """Counts lines in the present second."""

    __slots__ = ("_lines", "_most", "_since_ns")

    def __init__(self, most: int) -> None:
        """`most`: lines per second."""
        self._most = most
        self._lines = 0
        self._since_ns = -_NS_PER_S

    def take_line(self, now_ns: int) -> bool:
        """Whether another line may be written."""
        if now_ns - self._since_ns >= _NS_PER_S:
            self._since_ns, self._lines = now_ns, 0
        self._lines += 1
        return self._lines <= self._most


class AuditLog:
    """Writes the lines of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit = LineLimit(LINES_PER_S)
        self._left_out = 0
        """Denials without a line since the last line."""
        self.denials = 0
        """All denials."""

    def admits_denial(self, of_connection: LineLimit) -> bool:
        """Count a denial. Returns whether it gets a line."""
        self.denials += 1
        now_ns = self._clock.now().mono_ns
        # The connection's own limit first: a connection that repeats itself then takes nothing from the limit of all.
        if of_connection.take_line(now_ns) and self._limit.take_line(now_ns):
            return True
        self._left_out += 1
        return False

    def log_denial(self, peer: Peer, **facts: object) -> None:
        """Write the line of a denial that `admits_denial` has admitted."""
        self._write_line("denied", peer, {**facts, "left_out": self._left_out})
        self._left_out = 0

    def log_change(self, peer: Peer, kind: str, **facts: object) -> None:
        """Write the line of a change that was made for a connection. `kind`: "acl", "config", "feature", "quota" …"""
        self._write_line("changed", peer, {"kind": kind, **facts})

    def report_left_out(self) -> None:
        """Write how many denials were left out, if any, when no line may follow soon."""
        if self._left_out and self._limit.take_line(self._clock.now().mono_ns):
            logger.info('denied left_out="%d"', self._left_out)
            self._left_out = 0

    @staticmethod
    def _write_line(word: str, peer: Peer, facts: dict[str, object]) -> None:
        pairs = {"principal": peer.principal, "host": peer.host, "listener": peer.listener, **facts}
        logger.info("%s %s", word, " ".join(f"{key}={quote_text(value)}" for key, value in pairs.items()))


def quote_text(value: object) -> str:
    """A value as a JSON string of ASCII characters, cut."""
    text = str(value)
    return json.dumps(text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…({len(text)} characters)")
