"""Keys, values and times of the records of kafka-verifiable-producer.

Zone: deterministic. The elapsed time is an argument.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.kafka_tools.options import ToolError


class VerifiableRecord(NamedTuple):
    """A record before it is sent."""

    key: str | None
    value: str
    timestamp: int | None
    """None: the time at which it is sent."""


class VerifiableRecords:
    """The records, in the order of their numbers."""

    def __init__(self, *, prefix: int | None, keys: int | None, create_ms: int) -> None:
        """keys: how many keys are used in turn. create_ms: the time of the first record; -1 for none."""
        self._prefix = prefix
        self._keys = keys
        self._next_key = 0
        self._timed = create_ms != -1
        self._next_ms = create_ms

    def next_record(self, number: int, elapsed_ms: int) -> VerifiableRecord:
        """The record of a number, sent this long after the start. Raises ToolError for an impossible time."""
        value = str(number) if self._prefix is None else f"{self._prefix}.{number}"
        return VerifiableRecord(self._take_key(), value, self._take_time(elapsed_ms))

    def _take_key(self) -> str | None:
        if self._keys is None:
            return None
        key = self._next_key
        self._next_key = 0 if key + 1 == self._keys else key + 1
        return str(key)

    def _take_time(self, elapsed_ms: int) -> int | None:
        if not self._timed:
            return None
        taken = self._next_ms
        if not 0 <= taken < 2**63:
            raise ToolError(
                f"Invalid timestamp: {taken}. Timestamp should always be non-negative or null.",
                "java.lang.IllegalArgumentException",
            )
        # As Kafka's tool: the whole elapsed time is added for each record, so that times grow faster than the clock.
        self._next_ms = taken + elapsed_ms
        return taken
