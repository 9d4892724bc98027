"""Batches of a step that writes a table, without Spark: drivers and tasks that are killed, or come back late."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from testbench.spark_chaos.committed import committed
from tests.pipeline.table_batches import NONE_FAILS, Query, batch_values, change_of
from tests.tables.conftest import Target, target_of

from ottla.client import Admin, ClientConfig, Cluster, NewTopic
from ottla.client.admin.groups import GroupAdmin
from ottla.client.errors import values_of
from ottla.pipeline.table_output import sink
from ottla.pipeline.table_output.sink import TableWriter
from ottla.server.embedded import EmbeddedBroker
from ottla.spark.errors import ExpiredTransaction, Fenced
from ottla.tables.errors import TableError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
STRIDE = int(os.environ.get("TABLES_STRIDE", "11"))
"""Steps from one kill to the next; `TABLES_STRIDE=1` tries all."""
MOST_STEPS = 120
KINDS = ["iceberg", "delta", "parquet"]
WAYS = [("iceberg", None, False), ("delta", "day", False), ("parquet", None, False), ("iceberg", None, True)]
WAYS += [("delta", "day", True)]
"""The formats with their partitions, and with one row per key."""
_numbers = count()


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker.bootstrap


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return target_of(request.param, tmp_path / "lake")


@pytest.fixture
def query(bootstrap: str, target: Target, tmp_path: Path) -> Query:
    return make_query(bootstrap, target, tmp_path)


def make_query(bootstrap: str, target: Target, folder: Path) -> Query:
    dead = f"dead-{next(_numbers)}"
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": bootstrap})) as cluster:
        Admin(cluster).create_topics([NewTopic(dead, 2, 1)])
    # Markers are of a query: each test is one of its own.
    return Query(bootstrap, dead, *target, str(folder), f"query-{dead}")


def table_values(target: Target) -> Counter[bytes]:
    return Counter(target.read_arrow()["value"].to_pylist())


def outcome(query: Query, target: Target) -> tuple[Counter[bytes], Counter[bytes]]:
    """The values in the table, and those of dead letters."""
    letters = Counter(value.encode() for value in committed(query.bootstrap, query.dead))
    found = table_values(target)
    assert found == Counter(target.read_duckdb()["value"].to_pylist())
    return found, letters


def expect_exact(query: Query, target: Target, batches: int) -> None:
    """Each record is in the table or a dead letter, and once; with upsert the last one of each key that is none."""
    found, letters = outcome(query, target)
    values = [value for batch in range(batches) for value in batch_values(batch)]
    if query.upsert:
        last = {row["key"]: row for row in map(change_of, values) if row["value"] not in letters}
        assert found == Counter(row["value"] for row in last.values() if not row["_deleted"])
        assert letters < Counter(values)
    else:
        assert found + letters == Counter(values)
    assert found
    assert letters


@pytest.mark.parametrize(("kind", "partition_by", "upsert"), WAYS)
def test_a_batch_that_is_killed_at_each_step_is_exact(
    bootstrap: str, tmp_path: Path, kind: str, partition_by: str | None, upsert: bool
) -> None:
    target = target_of(kind, tmp_path / "lake")
    query = make_query(bootstrap, target, tmp_path)._replace(partition_by=partition_by, upsert=upsert)
    command = [sys.executable, "-m", "tests.pipeline.table_job", json.dumps(query)]
    batches, answers = count(), list[str]()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as job:
        assert job.stdin is not None
        assert job.stdout is not None

        def run(batch: int, attempt: int, step: int) -> str:
            print(batch, attempt, step, file=job.stdin, flush=True)
            assert job.stdout is not None
            return job.stdout.readline().strip()

        # The way to the decision is the same for all: with upsert fewer of its steps are tried.
        for step in range(1, MOST_STEPS, STRIDE * 2 if upsert and STRIDE > 1 else STRIDE):
            batch = next(batches)
            answers.append(run(batch, 0, step))
            if answers[-1] == "done":
                break
            # The next driver is killed as well, a little later; the third one ends the batch.
            run(batch, 1, step + 1)
            assert run(batch, 2, MOST_STEPS) == "done"
        job.stdin.close()
    assert answers[-1] == "done"
    assert set(answers[:-1]) == {"killed"}
    assert len(answers) > (2 if upsert else 3), "the steps were not seen"
    expect_exact(query, target, next(batches))


@pytest.mark.parametrize(("attempt", "error"), [(NONE_FAILS, Fenced), (0, ExpiredTransaction)])
def test_a_driver_that_was_replaced_before_its_decision_commits_nothing(
    query: Query, target: Target, attempt: int, error: type[Exception]
) -> None:
    late = query.make_writer()
    messages = query.run_tasks(late, 0, attempt)
    query.run_batch(0, attempt=1)
    before = outcome(query, target)
    with pytest.raises(error):
        late._commit_batch(messages)
    late.commit(messages, 0)  # the table has the batch: there is nothing to decide
    assert outcome(query, target) == before
    expect_exact(query, target, 1)


@pytest.mark.parametrize(("kind", "partition_by", "upsert"), WAYS)
def test_a_driver_that_was_replaced_after_its_decision_adds_nothing_again(
    bootstrap: str, tmp_path: Path, kind: str, partition_by: str | None, upsert: bool
) -> None:
    target = target_of(kind, tmp_path / "lake")
    query = make_query(bootstrap, target, tmp_path)._replace(partition_by=partition_by, upsert=upsert)

    class Late(TableWriter):
        def _add_files(self, *arguments: Any) -> None:
            for batch in range(2):
                query.run_batch(batch, attempt=1)
            super()._add_files(*arguments)

    late = query.make_writer(Late)
    late.commit(query.run_tasks(late, 0, attempt=0), 0)
    expect_exact(query, target, 2)


def test_the_files_of_a_batch_are_those_of_the_attempt_that_was_decided(query: Query, target: Target) -> None:
    """Other records fail in the next attempt: with its files a record would be in the table and a dead letter."""

    class Killed(TableWriter):
        def _add_files(self, *_: Any) -> None:
            raise KeyboardInterrupt

    killed = query.make_writer(Killed)
    with pytest.raises(KeyboardInterrupt):
        killed.commit(query.run_tasks(killed, 0, attempt=0), 0)
    assert query.open_table().last_batch(query.name) is None
    query.run_batch(0, attempt=1)
    expect_exact(query, target, 1)


def test_a_batch_whose_decision_was_forgotten_is_in_the_table_and_not_written_again(
    query: Query, target: Target
) -> None:
    query.run_batch(0, attempt=0)
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": query.bootstrap})) as cluster:
        listed, _ = GroupAdmin(cluster).list_groups()
        groups = [each.group_id for each in listed if query.name in each.group_id]
        assert groups
        values_of(GroupAdmin(cluster).delete_groups(groups))
    query.run_batch(0, attempt=1)
    expect_exact(query, target, 1)


def test_changes_that_the_driver_cannot_hold_are_refused_before_the_decision(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of("delta", tmp_path / "lake")
    query = make_query(bootstrap, target, tmp_path)._replace(upsert=True)
    writer = query.make_writer()
    messages = query.run_tasks(writer, 0, attempt=0)
    sizes = [each.table_bytes for each in messages]
    assert min(sizes) > 0
    monkeypatch.setattr(sink, "MAX_BYTES", sum(sizes) - 1)
    with pytest.raises(TableError, match="batch 0 has more than 0 MiB of changes"):
        writer.commit(messages, 0)
    assert query.open_table().last_batch(query.name) is None
    assert not list(committed(query.bootstrap, query.dead))
    # A batch that was decided with another bound is added.
    monkeypatch.setattr(sink, "MAX_BYTES", sum(sizes))
    query.run_batch(0, attempt=0)
    expect_exact(query, target, 1)
    monkeypatch.setattr(sink, "MAX_BYTES", min(sizes) - 1)
    with pytest.raises(TableError, match="batch 1 has more than 0 MiB"):
        query.run_tasks(writer, 1, attempt=0)


def test_tasks_and_the_driver_replace_references_of_properties(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of("iceberg", tmp_path / "lake")
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    hidden = {key: value.replace(str(tmp_path / "lake"), "${env:LAKE}") for key, value in target.properties.items()}
    query = make_query(bootstrap, target._replace(properties=hidden), tmp_path)
    assert str(tmp_path / "lake").encode() not in pickle.dumps(query.make_writer())
    query.run_batch(0, attempt=0)
    expect_exact(query, target, 1)
