"""`format("ottla")` for Spark: the data source.

Zone: real. Spark makes this object in processes of its own to ask for readers and writers; what they do is in `readers`
and `writers`.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from ottla.spark.errors import BadOption
from ottla.spark.options import source_options
from ottla.spark.readers import BatchReader, StreamReader
from ottla.spark.reading import HEADERS, SCHEMA
from ottla.spark.sink_options import SinkOptions, check_schema, sink_options, stream_scope
from ottla.spark.source_positions import check_source_column
from ottla.spark.writers import BatchWriter, StreamWriter


class OttlaSource(DataSource):  # type: ignore[misc]  # pyspark's classes are not typed
    """Kafka topics as DataFrames, with the options and columns of Spark's own Kafka source."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return "ottla"

    def schema(self) -> str:
        """The columns, as Spark's Kafka source has them; `headers` with includeHeaders."""
        headers = str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        return f"{SCHEMA}, {HEADERS}" if headers else SCHEMA

    def reader(self, schema: Any) -> BatchReader:  # noqa: ARG002 - Spark's signature
        """For `spark.read`. Raises BadOption."""
        return BatchReader(source_options(self.options, streaming=False))

    def streamReader(self, schema: Any) -> StreamReader:  # noqa: ARG002, N802 - Spark's signature
        """For `spark.readStream`. Raises BadOption."""
        return StreamReader(source_options(self.options, streaming=True))

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        """For `df.write`. Raises BadOption, BadRows."""
        if overwrite:
            raise BadOption("mode", "must be append: a topic cannot be overwritten")
        return BatchWriter(self._checked(schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802
        """For `df.writeStream`; output mode complete appends the whole result every time. Raises BadOption, BadRows."""
        return StreamWriter(self._checked_stream(schema))

    def _checked_stream(self, schema: Any) -> SinkOptions:
        options = self._checked(schema)
        check_source_column(schema, options.once, stream_scope(options))
        return options

    def _checked(self, schema: Any) -> SinkOptions:
        options = sink_options(self.options)
        check_schema(schema, options.topic)
        return options
