"""Records as rows, and the last row of each key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ottla.client.consumer.arrow_tables import SCHEMA
from ottla.tables.errors import TableError
from ottla.tables.rows import BYTES, DELETED, FLAT, NESTED, last_rows, live_rows, require_columns, rows_of

TIMES = [0, -1, 253_402_300_799_999, 253_402_300_800_000, -62_135_596_800_001, 2**63 - 1, -(2**63)]


def records(keys: list[bytes], values: list[bytes | None], times: list[int] | None = None) -> pa.Table:
    count = len(keys)
    columns = {
        "topic": ["t"] * count,
        "partition": [0] * count,
        "offset": list(range(count)),
        "timestamp": [0] * count if times is None else times,
        "timestamp_type": [0] * count,
        "key": keys,
        "value": values,
        "headers": [None] * count,
    }
    return pa.table(columns, schema=SCHEMA)


def test_timestamps_that_tables_cannot_hold_are_null() -> None:
    rows = rows_of(records([b"k"] * len(TIMES), [None] * len(TIMES), TIMES))
    assert rows["timestamp"].is_valid().to_pylist() == [True, False, True, False, False, False, False]


def test_the_last_row_of_each_key_counts() -> None:
    layout = BYTES._replace(is_upsert=True)
    rows = rows_of(records([b"a", b"b", b"a", b"c", b"b"], [b"1", b"2", b"3", b"4", None]), layout)
    found = last_rows(pa.concat_tables([rows, rows.slice(0, 1)]), layout)
    assert found["key"].to_pylist() == [b"c", b"b", b"a"]
    assert found[DELETED].to_pylist() == [False, True, False]
    assert live_rows(found)["value"].to_pylist() == [b"4", b"1"]
    assert DELETED not in live_rows(found).schema.names


def test_columns_of_records_must_be_there() -> None:
    require_columns("t", NESTED, BYTES.schema)
    with pytest.raises(TableError, match="t has no column _kafka_key of type binary"):
        require_columns("t", FLAT, BYTES.schema)
    with pytest.raises(TableError, match="t has no column value of type binary"):
        require_columns("t", BYTES, NESTED.schema.append(pa.field("value", pa.int32())))
