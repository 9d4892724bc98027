"""`format("ottla")` for Spark: the data source.

Zone: real. Spark creates this object in processes of its own, and gets readers and writers from it (`readers`,
`writers`). These modules are imported on demand: Spark starts a process for each streaming query to plan its reads, and
loading the writers would take more than half of our part of its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource

from ottla.spark.errors import BadOption
from ottla.spark.gc_freeze import freeze_loaded_modules
from ottla.spark.options import source_options

if TYPE_CHECKING:
    from ottla.spark.sink.sink_options import SinkOptions
    from ottla.spark.sink.writers import BatchWriter, StreamWriter
    from ottla.spark.source.readers import BatchReader, StreamReader

SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
HEADERS: Final = "headers array<struct<key: string, value: binary>>"


class OttlaSource(DataSource):  # type: ignore[misc]  # pyspark's classes are not typed
    """Kafka topics as DataFrames, with the options and columns of Spark's own Kafka source."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        freeze_loaded_modules()

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "ottla"

    def schema(self) -> str:
        """The columns of Spark's Kafka source; `headers` with includeHeaders."""
        headers = str(self.options.get("includeHeaders", "false")).strip().lower() == "true"
        return f"{SCHEMA}, {HEADERS}" if headers else SCHEMA

    def reader(self, schema: Any) -> BatchReader:  # noqa: ARG002 - Spark's signature
        """The reader of `spark.read`. Raises BadOption."""
        from ottla.spark.source.readers import BatchReader  # noqa: PLC0415 - see above

        freeze_loaded_modules()
        return BatchReader(source_options(self.options, streaming=False))

    def streamReader(self, schema: Any) -> StreamReader:  # noqa: ARG002, N802 - Spark's signature
        """The reader of `spark.readStream`. Raises BadOption."""
        from ottla.spark.source.readers import StreamReader  # noqa: PLC0415

        options = source_options(self.options, streaming=True)
        if not options.max_records_on_driver:
            return StreamReader(options)
        from ottla.spark.source.driver_reading import DriverReader  # noqa: PLC0415

        return DriverReader(options)

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        """The writer of `df.write`. Raises BadOption, BadRows."""
        if overwrite:
            raise BadOption("mode", "must be append: a topic cannot be overwritten")
        from ottla.spark.sink.writers import BatchWriter  # noqa: PLC0415

        return BatchWriter(self._checked_options(schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802
        """The writer of `df.writeStream`; output mode complete appends all of the result. Raises BadOption, BadRows."""
        from ottla.spark.sink.writers import StreamWriter  # noqa: PLC0415

        return StreamWriter(self._checked_stream_options(schema))

    def _checked_stream_options(self, schema: Any) -> SinkOptions:
        from ottla.spark.sink.sink_options import stream_scope  # noqa: PLC0415
        from ottla.spark.source.source_positions import check_source_column  # noqa: PLC0415

        options = self._checked_options(schema)
        check_source_column(schema, options.once, stream_scope(options))
        return options

    def _checked_options(self, schema: Any) -> SinkOptions:
        from ottla.spark.sink.sink_options import check_schema, sink_options  # noqa: PLC0415

        freeze_loaded_modules()
        options = sink_options(self.options)
        check_schema(schema, options.topic)
        return options
