"""Records as the rows of a table.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TIME: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER))),
        pa.field("timestamp", _TIME),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)


def rows_of(records: pa.Table) -> pa.Table:
    """The rows of a table that `Consumer.poll_table` returned. The timestamp is null where a record has none."""
    times = pc.if_else(pc.equal(records["timestamp"], -1), None, records["timestamp"])
    found = records.set_column(records.schema.get_field_index("timestamp"), "timestamp", _to_time(times))
    return found.select(SCHEMA.names).cast(SCHEMA)


def _to_time(ms: pa.ChunkedArray) -> pa.ChunkedArray:
    # A timestamp is any number of the producer's choice: one whose microseconds do not fit is null.
    fits = pc.less(pc.abs_checked(pc.fill_null(ms, 0)), (1 << 63) // 1000)
    return pc.if_else(fits, ms, None).cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)
