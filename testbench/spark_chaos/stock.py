"""Spark's own Kafka connector as the sink of the query under test, with strikes in the Python step before it.

Zone: real. Strikes between the steps of the connector are impossible from here, but not needed to see its duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from ottla.spark.sink.exactly_once import BATCH
from testbench.apache_kafka.packages import connector_jars
from testbench.spark_chaos.source import Strikes

if TYPE_CHECKING:
    from testbench.spark_chaos.query import Plan


def jars() -> str:
    """For `spark.jars`. Raises BenchError when they were not fetched."""
    return ",".join(map(str, connector_jars()))


def writer(rows: Any, plan: Plan) -> Any:
    """The `writeStream` of these rows, with a column `value`, into the plan's sink."""
    struck = rows.mapInArrow(_struck(str(plan.strikes), plan.bootstrap, plan.sink), "value string")
    options = {"kafka.bootstrap.servers": plan.bootstrap, "topic": plan.sink}
    return struck.writeStream.format("kafka").options(**options)


def _struck(place: str, bootstrap: str, sink: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def halves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        strikes, context = Strikes(place, bootstrap, sink), TaskContext.get()
        batch, partition = int(context.getLocalProperty(BATCH)), context.partitionId()
        strikes.at("start", batch, partition)
        for rows in batches:
            yield rows[: len(rows) // 2]
            strikes.at("mid", batch, partition)
            yield rows[len(rows) // 2 :]

    return halves
