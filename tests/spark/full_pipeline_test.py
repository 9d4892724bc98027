"""All 101,229 real events through three steps, with poison, temporary failures, and redriven letters."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.spark.full_events_test import EVENTS, consume

from ottla.demo.events import directory_of
from ottla.pipeline import Pipeline, Record, map_batches, map_rows
from ottla.record.batch import Record as Stored
from ottla.retry import headers as trails

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]
PARTITIONS = 4
EVERY = 500
"""One event in this many fails twice before it succeeds."""
DELAYS_MS = (1500, 700)
BROKEN = [b"not json", b"\xff\xff", b'{"path": 7}', b"", b"[]"]
"""Values that are never readable."""


def parked(number: int) -> bytes:
    """An event that cannot be read before the test opens the door."""
    return json.dumps({"path": f"parked/{number}.txt", "ts": number, "added": number, "deleted": 0}).encode()


PARKED = [parked(number) for number in range(60)]


def fill(topics: Any, raw: str, lines: list[bytes]) -> None:
    """The events, with what is no event evenly among them."""
    for partition in range(PARTITIONS):
        mixed, odd = lines[partition::PARTITIONS], [*BROKEN, *PARKED][partition::PARTITIONS]
        for number, one in enumerate(odd, 1):
            mixed.insert(number * len(mixed) // (len(odd) + 1), one)
        for at in range(0, len(mixed), 3_000):
            records = [Stored(n, 1000 + n, b"k", value) for n, value in enumerate(mixed[at : at + 3_000])]
            topics.put_records(raw, partition, records, 3)


def pipeline_of(raw: str, bootstrap: str, door: Path) -> Pipeline:
    """Directory of each event; changed lines; a line of text."""
    p = Pipeline(f"{raw}-audit", bootstrap)

    @p.step(raw, to=f"{raw}.placed", retries=[f"{delay}ms" for delay in DELAYS_MS], abort_on=["AttributeError"])
    @map_rows
    def place(record: Record) -> str:
        event = json.loads(record.value or b"")
        if record.offset % EVERY == 7 and record.attempt < 3:
            raise OSError("the shop is closed")
        if event["path"].startswith("parked/") and not door.exists():
            raise PermissionError(f"the door is closed for {event['path']}")
        return json.dumps({**event, "directory": directory_of(event["path"])})

    @p.step(f"{raw}.placed", to=f"{raw}.counted")
    def count(frame: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        event = F.from_json(F.col("value").cast("string"), "path string, directory string, added int, deleted int")
        told = F.struct(event.path.alias("path"), event.directory.alias("directory"),
                        (event.added + event.deleted).alias("changed"))  # fmt: skip
        return frame.select("key", F.to_json(told).alias("value"))

    @p.step(f"{raw}.counted", to=f"{raw}.told")
    @map_batches
    def tell(batch: Any) -> Any:
        found = [json.loads(value) for value in batch.column(1).to_pylist()]
        return {"value": [f"{one['directory']} {one['changed']} {one['path']}" for one in found]}

    return p


def told(lines: list[bytes]) -> Counter[bytes]:
    """The expected output of the pipeline for these events."""
    events = [json.loads(line) for line in lines]
    return Counter(
        f"{directory_of(one['path'])} {one['added'] + one['deleted']} {one['path']}".encode() for one in events
    )


def run_until_nothing_waits(p: Pipeline, spark: Any, checkpoint: Path) -> None:
    """Runs that take what is there; what is not due yet waits for one of the next."""
    for _ in range(20):
        figures = p.run(str(checkpoint), spark=spark, progress=False)
        if not any(one.lag or one.waiting for one in figures):
            return
    pytest.fail(f"something always waits: {figures}")


def letters(topics: Any, topic: str) -> list[tuple[bytes | None, str]]:
    """(value, kind of its failure) of the dead."""
    found = []
    for records in topics.records(topic).values():
        for record in records:
            failure = trails.read_trail(record.headers).failure
            assert failure is not None
            found.append((record.value, failure.kind.rpartition(".")[2]))
    return found


def test_all_events_come_through_three_steps_once_and_the_mended_come_home(
    spark: Any, topics: Any, tmp_path: Path
) -> None:
    lines = gzip.decompress(EVENTS.read_bytes()).splitlines()
    raw, door = topics.make(PARTITIONS), tmp_path / "open"
    fill(topics, raw, lines)
    p = pipeline_of(raw, topics.bootstrap, door)
    dead = f"{raw}.{raw}-audit.dead"

    run_until_nothing_waits(p, spark, tmp_path / "checkpoint")
    found = Counter(value for _, _, value in consume(topics.bootstrap, f"{raw}.told", PARTITIONS))
    assert found == told(lines), "every good event once, and nothing else"
    parked_letters = Counter((value, "PermissionError") for value in PARKED)
    kinds = ["JSONDecodeError", "UnicodeDecodeError", "AttributeError", "JSONDecodeError", "TypeError"]
    assert Counter(letters(topics, dead)) == parked_letters + Counter(zip(BROKEN, kinds, strict=True))

    arrived = [
        {
            trails.read_trail(one.headers).origin: one.timestamp
            for records in topics.records(name).values()
            for one in records
        }
        for name in (f"{raw}.{raw}-audit.retry-{level}" for level in (1, 2))
    ]
    assert len(arrived[0]) >= len(lines) // EVERY
    assert all(arrived[1][origin] - at >= DELAYS_MS[0] for origin, at in arrived[0].items()), "none came too early"

    door.touch()
    words = ["dlq", "redrive", dead, "--reason", "PermissionError", "--yes", "--bootstrap-server", topics.bootstrap]
    done = subprocess.run([sys.executable, "-m", "ottla", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run_until_nothing_waits(p, spark, tmp_path / "checkpoint")
    found = Counter(value for _, _, value in consume(topics.bootstrap, f"{raw}.told", PARTITIONS))
    assert found == told(lines) + told(PARKED), "the redriven events were written, each once"
    assert len(letters(topics, dead)) == len(PARKED) + len(BROKEN), "and no letter was written twice"
