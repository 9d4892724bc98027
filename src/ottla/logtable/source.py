"""`format("ottla-log")` for Spark: the data source.

Zone: real. Spark creates this object to get a reader; the work of a task is in `reading`. Batch reads only: use
`format("ottla")` for a log that grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ottla.logtable.columns import SCHEMA
from ottla.logtable.options import LogOptions, log_options
from ottla.logtable.reading import Segment, read_segment, segments_of


class OttlaLog(DataSource):  # type: ignore[misc]  # pyspark's classes are not typed
    """The segments of a broker's data directories as one DataFrame."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "ottla-log"

    def schema(self) -> str:
        """The columns; docs/pyspark.md explains them."""
        return SCHEMA

    def reader(self, schema: Any) -> LogReader:  # noqa: ARG002 - Spark's signature
        """For `spark.read`. Raises BadOption."""
        return LogReader(log_options(self.options))


class Part(InputPartition):  # type: ignore[misc]  # pyspark's classes are not typed
    """The input of one task."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.segment = segment


class LogReader(DataSourceReader):  # type: ignore[misc]  # pyspark's classes are not typed
    """A task for every segment."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def partitions(self) -> list[Part]:
        """The tasks. Raises BadOption, CorruptLog, LogChanged."""
        return [Part(each) for each in segments_of(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task. Spark passes a plain InputPartition when there is nothing to read."""
        return read_segment(partition.segment) if isinstance(partition, Part) else iter(())
