"""Records that are not rows of the table: kept until their dead letters are written, or an error.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ottla.client.consumer.record import ConsumerRecord
from ottla.retry.headers import Failure
from ottla.tables.decoded_columns import CONFLICT
from ottla.tables.errors import ColumnConflictError, RowNotReadableError
from ottla.tables.rows import Refused

_OVERHEAD: Final = 1024
"""Memory of a record besides its bytes."""


class RefusedRecords:
    """Records since the last commit."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._records: list[ConsumerRecord] = []
        self._failures: list[Failure] = []

    def add_records(self, records: pa.Table, refused: Sequence[Refused], *, is_kept: bool) -> int:
        """Keep the refused rows of a table of records; returns their memory.

        is_kept: whether there will be letters; otherwise raises RowNotReadableError.
        """
        rows = records.take([each.row for each in refused]).to_pylist()
        size = 0
        for row, each in zip(rows, refused, strict=True):
            if not is_kept:
                raise self._refusal(row, each)
            self._records.append(_record_of(self._topic, row))
            self._failures.append(Failure(each.kind, each.reason))
            size += _OVERHEAD + len(row["key"] or b"") + len(row["value"] or b"")
        return size

    def _refusal(self, row: dict[str, Any], refused: Refused) -> RowNotReadableError:
        where = f"{self._topic}-{row['partition']}, offset {row['offset']}"
        if refused.kind == CONFLICT:
            return ColumnConflictError(
                f"{where}: {refused.reason}",
                "Give --dead-letters TOPIC to keep such records there, register a compatible schema, or copy the topic "
                "into a new table",
            )
        return RowNotReadableError(
            f"{where} is not a row of the table: {refused.reason}",
            "Give --dead-letters TOPIC to keep such records there",
        )

    def take_records(self) -> tuple[list[ConsumerRecord], list[Failure]]:
        """The records, each with the reason; there are none after this."""
        found = self._records, self._failures
        self._records, self._failures = [], []
        return found


def _record_of(topic: str, row: dict[str, Any]) -> ConsumerRecord:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    place = topic, row["partition"], row["offset"]
    return ConsumerRecord(*place, row["timestamp"], row["timestamp_type"], row["key"], row["value"], headers, -1)


def without_places(records: pa.Table, places: Collection[tuple[int, int]]) -> pa.Table:
    """The records of a table that are not at these partitions and offsets."""
    found = zip(records["partition"].to_pylist(), records["offset"].to_pylist(), strict=True)
    return records.filter(pa.array(np.array([place not in places for place in found], np.bool_)))
