"""foreachBatch into a real PostgreSQL: each batch once, whatever is run again."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from testbench.postgres import Postgres
from tests.spark.conftest import Topics

from ottla.sinks.postgres import BadResults, BatchesMissing, OtherQuery, PostgresSink, Rows, UsageError
from ottla.sinks.postgres.database import Cursor

EVENTS = Path(__file__).parent.parent / "data" / "file-changes.jsonl.gz"
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]
RECORDS = 3000


@pytest.fixture(scope="module")
def changes(topics: Topics) -> tuple[str, Counter[str]]:
    """A topic with the first real events, and the lines added per folder."""
    topic, added = topics.make(1), Counter[str]()
    with gzip.open(EVENTS) as lines:
        values = [line.rstrip() for line in islice(lines, RECORDS)]
    for value in values:
        event = json.loads(value)
        added[event["path"].split("/")[0]] += event["added"]
    topics.put(topic, 0, values, at_ms=1_700_000_000_000)
    return topic, added


@pytest.fixture
def table(postgres: Postgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """Sums per batch and folder: what is written twice shows."""
    name = f"sums_{abs(hash(request.node.name)) % 10**8}"
    postgres.execute(f"CREATE TABLE {name} (folder text, added bigint, latest timestamptz)")
    yield name
    postgres.execute(f"DROP TABLE {name}")


@pytest.fixture
def run(spark: Any, topics: Topics, changes: tuple[str, Counter[str]], tmp_path: Path) -> Callable[..., Any]:
    """Run the query to its end over a checkpoint of this test."""

    def run(write: Callable[[Any, int], None], checkpoint: str = "checkpoint") -> Any:
        query = (
            spark.readStream.format("ottla")
            .options(**topics.options, subscribe=changes[0], startingOffsets="earliest", maxOffsetsPerTrigger="1500")
            .load()
            .selectExpr(
                "split_part(get_json_object(CAST(value AS STRING), '$.path'), '/', 1) AS folder",
                "CAST(get_json_object(CAST(value AS STRING), '$.added') AS BIGINT) AS added",
                "timestamp AS latest",
            )
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    return run


def sums(batch: Any) -> Any:
    batch.createOrReplaceTempView("batch")
    return batch.sparkSession.sql(
        "SELECT folder, sum(added) AS added, max(latest) AS latest FROM batch GROUP BY folder"
    )


def totals(postgres: Postgres, table: str) -> Counter[str]:
    rows = postgres.execute(f"SELECT folder, sum(added)::bigint FROM {table} GROUP BY folder")
    return Counter({str(row[0]): int(str(row[1])) for row in rows})


def test_each_batch_is_in_once_whatever_is_killed_or_run_again(
    postgres: Postgres, run: Callable[..., Any], table: str, tmp_path: Path, changes: tuple[str, Counter[str]]
) -> None:
    sums_of = Rows(table)
    calls: list[int] = []

    def store(cursor: Cursor, batch: Any, batch_id: int) -> None:
        calls.append(batch_id)
        sums_of(cursor, sums(batch), batch_id)
        if calls == [0, 1]:  # the connection breaks after the results of a batch and before its commit
            postgres.execute("SELECT pg_terminate_backend(%s)", cursor.connection.info.backend_pid)

    with PostgresSink(postgres.conninfo, table) as sink:
        run(sink.batches(store))
        assert calls == [0, 1, 1]
        (tmp_path / "checkpoint" / "commits" / "1").unlink()  # the driver was killed before it noted the last batch
        (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink()
        run(sink.batches(store))
    assert calls == [0, 1, 1]
    assert totals(postgres, table) == changes[1]
    (latest,) = postgres.execute(f"SELECT max(latest) FROM {table}")[0]
    assert latest == datetime.fromtimestamp(1_700_000_000 + (RECORDS - 1) / 1000, UTC)


def test_a_database_and_a_checkpoint_that_do_not_belong_together_are_refused(
    spark: Any, postgres: Postgres, table: str
) -> None:
    one = spark.createDataFrame([("a", 1)], "folder string, added int")
    with PostgresSink(postgres.conninfo, table) as sink:
        write = sink.batches(Rows(table), query="q")
        with pytest.raises(BatchesMissing, match=r"has no batch yet, and the query writes batch 3.*first_batch=3"):
            write(one, 3)
        sink.batches(Rows(table), query="q", first_batch=3)(one, 3)
        for batch_id in (3, 4, 4, 0):  # the stored batches are skipped
            write(one, batch_id)
        with pytest.raises(BatchesMissing, match="has batches up to 4, and the query writes batch 6"):
            write(one, 6)
        with pytest.raises(OtherQuery, match=r"holds the batches of query q, and this is query other.*call forget"):
            sink.batches(Rows(table), query="other")(one, 0)
        with pytest.raises(UsageError, match="not a batch of a streaming query"):
            sink.batches(Rows(table))(one, 0)
        with pytest.raises(BadResults, match=r"table .*Select only columns that the table has"):
            write(one.toDF("directory", "added"), 5)
        assert totals(postgres, table) == {"a": 2}
        sink.forget()
        sink.batches(Rows(table), query="other")(one, 0)
    assert totals(postgres, table) == {"a": 3}


def test_two_drivers_over_one_checkpoint_write_a_batch_once(spark: Any, postgres: Postgres, table: str) -> None:
    one = spark.createDataFrame([("a", 1)], "folder string, added int")
    calls: list[str] = []
    with PostgresSink(postgres.conninfo, table) as sink, PostgresSink(postgres.conninfo, table) as zombie:

        def overtaken(cursor: Cursor, batch: Any, batch_id: int) -> None:
            calls.append("zombie")
            Rows(table)(cursor, batch, batch_id)
            sink.batches(Rows(table), query="q")(batch, batch_id)

        zombie.batches(overtaken, query="q")(one, 0)
        zombie.batches(overtaken, query="q")(one, 1)
    assert calls == ["zombie", "zombie"]
    assert totals(postgres, table) == {"a": 2}
