"""The streaming reader that reads small batches on the driver, while it plans them.

Zone: real. Spark has this way for the readers of its `SimpleDataSourceStreamReader`: the planner process passes the
rows of a batch with its plan, the driver keeps them as a block, and the task takes them from there, so that no Python
worker has to read. Spark looks for the private class of that reader. Where it is missing, the ordinary way is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from ottla.spark import offsets
from ottla.spark.source.readers import StreamReader, WholeBatch

try:
    from pyspark.sql import datasource_internal as _internal
except ImportError:
    _internal = None
_Prefetching: Any = getattr(_internal, "_SimpleStreamReaderWrapper", object)

DRIVER_BYTES: Final = 8 << 20
"""The most bytes of a batch that the driver reads: they are in the memory of Python and of Java."""


class DriverReader(StreamReader, _Prefetching):  # type: ignore[misc]  # pyspark's classes are not typed
    """Marks batches of at most `maxRecordsOnDriver` offsets in the checkpoint, and reads them.

    Nothing is kept between calls: a batch that is run again is read again, by a driver or by its task.
    """

    @property
    def simple_reader(self) -> DriverReader:
        """Spark looks here for the support of Trigger.AvailableNow."""
        return self

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing to do: `latestOffset` commits the offsets of finished batches."""

    def getCache(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Iterator[pa.RecordBatch] | None:
        """The rows of a batch, which Spark requests after each plan; None: its tasks read them.

        Raises DataLoss and the client's errors.
        """
        if not offsets.read_end(end).on_driver:
            return None
        rows, size = list[pa.RecordBatch](), 0
        for batch in self.read(WholeBatch(self._ranges_of(start, end))):
            size += batch.nbytes
            if size > DRIVER_BYTES:
                return None
            rows.append(batch)
        return iter(rows)

    def _most_on_driver(self) -> int:
        return 0 if _Prefetching is object else self._options.max_records_on_driver
