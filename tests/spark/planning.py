"""The batch reader and the streaming reader, called as Spark calls them, without Spark around them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from ottla.spark.options import source_options
from ottla.spark.source.readers import BatchReader, StreamReader

Offset = Mapping[str, Any]


def batch(topics: Any, **options: str) -> list[tuple[str, int, int]]:
    reader = BatchReader(source_options({**topics.options, **options}, streaming=False))
    return ranges(reader.partitions())


def ranges(parts: Any) -> list[tuple[str, int, int]]:
    parts = pickle.loads(pickle.dumps(parts))
    return [(str(part.range.tp), part.range.start, part.range.end) for part in parts]


@contextmanager
def stream(topics: Any, **options: str) -> Iterator[StreamReader]:
    reader = pickle.loads(pickle.dumps(StreamReader(source_options({**topics.options, **options}, streaming=True))))
    try:
        yield reader
    finally:
        reader.stop()


def logged(offset: Offset) -> Offset:
    """An offset as it comes back from Spark's log."""
    return json.loads(json.dumps(offset))


class Query:
    """Spark's micro-batch loop in small: what it logs and what it plans."""

    def __init__(self, reader: StreamReader, committed: Offset | None = None) -> None:
        self.reader = reader
        self.last = committed if committed is not None else logged(reader.initialOffset())

    def trigger(self, limit: ReadLimit | None = None) -> list[tuple[str, int, int]] | None:
        """The tasks of the next batch; None when there is none."""
        end = logged(self.reader.latestOffset(self.last, limit or self.reader.getDefaultReadLimit()))
        if end == self.last:
            return None
        start, self.last = self.last, end
        return ranges(self.reader.partitions(start, end))
