"""A keyed aggregation in Spark whose state outlives its checkpoint."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import Topics

from ottla.sinks.changelog import Changelog, UsageError

EVENTS = Path(__file__).parent.parent / "data" / "file-changes.jsonl.gz"
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]
RECORDS = 1200


def per_folder(batch: Any) -> Any:
    return (
        batch.selectExpr("CAST(value AS STRING) AS event")
        .selectExpr(
            "split_part(get_json_object(event, '$.path'), '/', 1) AS key", "get_json_object(event, '$.added') n"
        )
        .groupBy("key")
        .agg({"n": "sum"})
        .toDF("key", "added")
    )


def add(total: bytes | None, row: Any) -> bytes:
    return b"%d" % (int(total or 0) + int(row.added))


def totals(state: Changelog) -> Counter[str]:
    return Counter({key.decode(): int(value) for key, value in state.items()})


@pytest.fixture
def run(spark: Any, topics: Topics, tmp_path: Path) -> Callable[..., None]:
    def run(source: str, write: Callable[[Any, int], None], starting: str = "earliest") -> None:
        query = (
            spark.readStream.format("ottla")
            .options(**topics.options, subscribe=source, startingOffsets=starting, maxOffsetsPerTrigger="500")
            .load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    return run


def test_after_the_loss_of_the_checkpoint_the_state_comes_back_exactly(
    topics: Topics, run: Callable[..., None], tmp_path: Path
) -> None:
    source, topic, expected = topics.make(2), topics.make(1) + "-state", Counter[str]()
    with gzip.open(EVENTS) as lines:
        values = [line.rstrip() for line in islice(lines, RECORDS)]
    settings = {"bootstrap.servers": topics.bootstrap}
    for turn, part in enumerate([values[:400], values[400:800], values[800:]]):
        for value in part:
            event = json.loads(value)
            expected[event["path"].split("/")[0]] += event["added"]
        topics.put(source, 0, part[::2])
        topics.put(source, 1, part[1::2])
        with Changelog(settings, topic) as state:
            # Both ways back: all again, with other batches than before; and from where the state ends.
            run(source, state.batches(per_folder, add), state.starting_offsets(source) if turn == 2 else "earliest")
            assert totals(state) == expected
        shutil.rmtree(tmp_path / "checkpoint")
    with Changelog(settings, topic) as state:
        assert totals(state) == expected
        assert sum(state.positions.values()) == RECORDS


def test_batches_without_the_columns_of_their_source_are_refused(spark: Any, topics: Topics) -> None:
    rows = spark.createDataFrame([("t", 0, 0, "v")], "topic string, partition int, offset long, value string")
    with Changelog({"bootstrap.servers": topics.bootstrap}, topics.make(1) + "-state") as state:
        with pytest.raises(UsageError, match=r"the batch has no column offset.*Keep the source's columns"):
            state.batches(per_folder, add)(rows.drop("offset"), 0)
        with pytest.raises(UsageError, match="no column key"):
            state.batches(lambda batch: batch, add)(rows, 0)
