"""Killed at each step of a commit, the next run makes the table equal to the topic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.tables.conftest import Target, Topic, sorted_rows
from tests.tables.copying_test import copy_topic
from tests.tables.dead_letters_test import make_letters, read_letters
from tests.tables.maintenance_test import age_files
from tests.tables.registered import Registered, ServiceInMemory, served

from ottla.client import Producer
from ottla.schemas.framing import write_framing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MOST_STEPS = 120
FIRST_WIDE = 13
"""The step from which on records have another column: one that is killed around the table's commit."""
STRIDE = int(os.environ.get("TABLES_STRIDE", "5"))
"""Steps from one run to the next where a run takes long; `TABLES_STRIDE=1` tries all."""


def run_killed(words: list[str], send: Callable[[int], None], stride: int = 1) -> None:
    """Run the command until it ends, killed some steps later each time. send: records of the run up to a step."""
    command, answers, step = [sys.executable, "-m", "tests.tables.copy_job", *words], list[str](), 1
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        # New records for each run: the first run makes the table, and later ones continue where the one before died.
        while "done" not in answers and step < MOST_STEPS:
            send(step)
            print(step, file=job.stdin, flush=True)
            answers.append(job.stdout.readline().strip())
            step += stride
        job.stdin.close()
    assert answers[-1] == "done"
    assert set(answers[:-1]) == {"killed"}
    assert len(answers) > 6, "the steps were not seen"


def test_a_copy_that_is_killed_at_each_step_is_exact(topic: Topic, target: Target) -> None:
    sent = count(0, 6)
    words = ["table", topic.name, *target.words, "--exit-at-end", "-b", topic.bootstrap, "-o", "json"]
    run_killed(words, lambda _: topic.send(next(sent), 6))
    assert sorted_rows(target.read_arrow()) == sorted_rows(target.read_duckdb()) == topic.rows(next(sent))


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_maintenance_that_is_killed_at_each_step_changes_no_row(
    topic: Topic, make_target: Callable[[str], Target], tmp_path: Path, kind: str
) -> None:
    target, sent = make_target(kind), count(0, 4)
    older = ["--older-than", "0s"] if kind == "iceberg" else []
    words = ["table", "maintain", target.location, "--format", kind, *target.words[4:], *older, "-o", "json"]

    def send(_: int) -> None:
        """The copy continues after each kill and finds the offsets; there is always something to compact and delete."""
        for _ in range(2):
            topic.send(next(sent), 4)
            assert copy_topic(topic, target) == 4
        age_files(tmp_path)

    run_killed(words, send, STRIDE if kind == "iceberg" else 1)
    assert sorted_rows(target.read_arrow()) == sorted_rows(target.read_duckdb()) == topic.rows(next(sent))
    assert copy_topic(topic, target) == 0


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_upserts_and_dead_letters_are_exact_as_well(
    topic: Topic, make_target: Callable[[str], Target], kind: str
) -> None:
    """Columns are added, keys change their values and are deleted, and one record of each run becomes a letter."""
    target, letters, wanted = make_target(kind), make_letters(topic), dict[bytes, tuple[int, str | None]]()
    bad: list[bytes] = []
    with served(ServiceInMemory()) as port:
        registered = Registered(port, topic)
        types = [{"a": {"type": "integer"}}, {"a": {"type": "integer"}, "b": {"type": "string"}}]
        schemas = [registered.register({"type": "object", "properties": each}, "JSON") for each in types]

        def send(step: int) -> None:
            # The second schema comes late, so that a run adds its column.
            number, text = (schemas[0], None) if step < FIRST_WIDE else (schemas[1], f"b-{step}")
            value = {"a": step} if text is None else {"a": step, "b": text}
            keys = [f"key-{step % 5}", "same", "gone"]
            with Producer(topic.settings) as producer:
                for key in keys:
                    producer.send(topic.name, write_framing(number, json.dumps(value).encode()), key=key.encode())
                    wanted[key.encode()] = (step, text)
                producer.send(topic.name, None, key=b"gone")
                producer.send(topic.name, b"bad-%d" % step, key=b"same")
            del wanted[b"gone"]
            bad.append(b"bad-%d" % step)

        words = ["table", topic.name, *target.words, "--exit-at-end", "-b", topic.bootstrap, "-o", "json", "--upsert"]
        more = ["--value-schema", "json", "--schema-registry", registered.url, "--dead-letters", letters]
        run_killed([*words, *more], send, STRIDE)
    rows = target.read_arrow().to_pylist()
    assert {row["_kafka_key"]: (row["a"], row.get("b")) for row in rows} == wanted
    assert len(rows) == len(wanted)
    assert sorted(each.value for each in read_letters(topic, letters)) == sorted(bad)
