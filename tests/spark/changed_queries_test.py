"""What an author changes between two runs over a batch that is committed in part; plans that Spark's guide shows."""

from __future__ import annotations

import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from ottla.client.admin.groups import GroupAdmin, GroupOffset
from ottla.spark import write_batch

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.interop]
ROWS = 10
BAD = "p1-3"


class Author:
    """A topic with two partitions, a sink, a checkpoint, and queries over it that change."""

    def __init__(self, spark: Any, topics: Any, directory: Path) -> None:
        self.spark = spark
        self.topics = topics
        self.source, self.sink = topics.make(2), topics.make(1)
        for number in range(2):
            topics.put(self.source, number, [b"p%d-%d" % (number, n) for n in range(ROWS)])
        self.checkpoint, self.flag = str(directory / "checkpoint"), str(directory / "flag")

    def rows(self, **options: str) -> Any:
        named = {"subscribe": self.source, "startingOffsets": "earliest", **options}
        return self.spark.readStream.format("ottla").options(**self.topics.options, **named).load()

    def fail_half_way(self) -> str:
        """A query whose second task fails when the first one has committed; its error."""
        from pyspark.sql import functions as F  # noqa: N812

        flag = self.flag

        def price(value: bytes) -> str:
            while value.decode() == BAD:
                if os.path.exists(flag):
                    raise KeyError("no price yet")
                time.sleep(0.1)
            return value.decode()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PySpark warns that Arrow could be used
            priced = F.udf(price, "string")("value")
        query = self.start(self.rows().select("key", priced.alias("value")))
        while len(self.written()) < ROWS and query.isActive:
            time.sleep(0.1)
        Path(flag).touch()
        return self.error_of(query)

    def start(self, frame: Any, **options: str) -> Any:
        sink = {**self.topics.options, "topic": self.sink, "checkpointLocation": self.checkpoint, **options}
        return frame.writeStream.format("ottla").options(**sink).trigger(availableNow=True).start()

    def error_of(self, query: Any) -> str:
        try:
            query.awaitTermination()
        except Exception as error:
            return str(error)
        return ""

    def run(self, frame: Any, **options: str) -> str:
        """A query to its end, or its error."""
        return self.error_of(self.start(frame, **options))

    def written(self) -> list[str]:
        return sorted(value.decode() for value in self.topics.values(self.sink))


@pytest.fixture
def author(spark: Any, topics: Any, tmp_path: Path) -> Author:
    return Author(spark, topics, tmp_path)


def test_a_change_over_a_batch_that_is_committed_in_part_is_refused_by_name(author: Author) -> None:
    everything = sorted(f"p{part}-{n}" for part in range(2) for n in range(ROWS))
    plain = author.rows().select("key", "value")
    assert "no price yet" in author.fail_half_way()
    half = author.written()
    assert half == everything[:ROWS]
    assert "exactlyOnce=partition, and this run has exactlyOnce=batch" in author.run(
        plain.repartition(1), exactlyOnce="batch"
    )
    assert "the rows of partition 0 are in other tasks now" in author.run(plain.coalesce(1))
    assert "sink=sink, and this run has sink=other" in author.run(plain, sink="other")
    assert author.written() == half
    assert author.run(plain) == ""
    assert author.written() == everything
    author.topics.put(author.source, 0, [b"next"])
    assert author.run(plain.repartition(1), exactlyOnce="batch") == "", "between two batches it may be changed"
    assert author.written() == sorted([*everything, "next"])


def test_a_union_does_not_move_the_group_past_rows_that_are_not_committed(author: Author) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    group = f"{author.source}-readers"
    rows = author.rows(**{"kafka.group.id": group})
    text = F.col("value").cast("string")
    good = rows.select(F.concat(text, F.lit("-done")).alias("value"))
    bad = rows.select(F.raise_error(F.concat(F.lit("no price yet"), text)).cast("string").alias("value"))
    assert "OffsetsOutside" in author.run(good.union(bad), offsetsInTransaction="true")
    assert author.run(good.union(bad), offsetsInTransaction="auto")
    found = GroupAdmin(author.topics.cluster).group_offsets(group)
    assert {at.offset for at in found.values() if isinstance(at, GroupOffset)} == {0}
    assert author.run(good.union(rows.select(text.alias("value"))), offsetsInTransaction="auto") == ""
    assert len(author.written()) == 4 * ROWS


def test_rows_that_are_kept_and_counted_are_written_to_several_topics_also_in_threads(author: Author) -> None:
    from pyspark import InheritableThread

    some = author.topics.make(1)
    refused: list[BaseException] = []

    def publish(frame: Any, batch: int) -> None:
        kept = frame.select("key", "value").persist()
        kept.count()
        options = author.topics.options
        write_batch(kept, batch, {**options, "topic": author.sink}, sink="all")

        def write_some() -> None:
            write_batch(kept.where("value = X'70302D31'"), batch, {**options, "topic": some}, sink="some")

        def write_without_properties() -> None:
            try:
                write_batch(kept, batch, {**options, "topic": some}, sink="lost")
            except Exception as error:
                refused.append(error)

        for kind, write in ((InheritableThread, write_some), (threading.Thread, write_without_properties)):
            thread = kind(target=write)
            thread.start()
            thread.join()
        kept.unpersist()

    query = author.rows().writeStream.foreachBatch(publish).option("checkpointLocation", author.checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    assert len(author.written()) == 2 * ROWS
    assert author.topics.values(some) == [b"p0-1"]
    assert ["InheritableThread" in str(error) for error in refused] == [True]
