"""The demo from beginning to end: broker, events, pipeline, recount.

Zone: real. All processes and files are removed when it returns or raises, also after Ctrl-C. The command line prints
the result to stdout.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import NewTopic
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.client.settings import ClientConfig
from ottla.demo import events, pipeline
from ottla.demo.broker import BrokerFailed, BrokerProcess
from ottla.demo.deaths import Deaths
from ottla.demo.events import Counts, Recount
from ottla.demo.jvm import SparkProcess
from ottla.demo.progress import Progress
from ottla.demo.show import Fact
from ottla.spark.lookup import Lookup
from ottla.spark.offsets import Range
from ottla.spark.options import source_options
from ottla.spark.sink.sink_options import sink_options
from ottla.spark.sink.writing import write_batches
from ottla.spark.source.reading import read_range

PARTITIONS = 2
_ROWS = 2_000


class Outcome(NamedTuple):
    """The result of the demo."""

    counts: Counts
    """The pipeline's counts."""
    problems: list[str]
    """Differences from the recount; empty when everything is right."""
    facts: Mapping[str, Fact]


def run_demo(progress: Progress, cores: int = 2) -> Outcome:
    """Run the demo. Raises NoJava, SparkFailed, BrokerFailed, errors of the client, KeyboardInterrupt."""
    began = time.monotonic()
    with progress.left_alone_on_failure(), contextlib.ExitStack() as stack:
        stack.enter_context(_ended_politely())
        directory = stack.enter_context(_temporary_directory())
        progress.begin_step("broker")
        broker = stack.enter_context(BrokerProcess(directory / "broker"))
        spark = SparkProcess(directory, cores)
        # Before Java is started, so that an interrupt during its start ends it as well.
        stack.callback(spark.stop_spark)
        spark.start_java()  # Java takes seconds to start: the next steps run meanwhile
        _create_topics(broker.bootstrap)
        progress.end_step(f"ready at {broker.bootstrap}, topics {pipeline.RAW} and {pipeline.ENRICHED}")
        lines = events.load_lines()
        _produce_events(broker.bootstrap, lines, progress)
        recounted = events.recount_lines(lines)
        counts, deaths = _stream_events(spark, broker, directory, len(lines), progress)
        progress.begin_step("recount")
        problems = [*_check_enriched(broker.bootstrap, recounted), *events.find_differences(recounted.counts, counts)]
        progress.end_step("agrees" if not problems else f"disagrees in {len(problems)} places")
        progress.begin_step("clean up")
    progress.end_step("done, all processes and files are removed")
    return Outcome(counts, problems, _make_facts(lines, counts, problems, deaths, time.monotonic() - began))


def _make_facts(
    lines: list[bytes], counts: Counts, problems: list[str], deaths: Deaths, seconds: float
) -> dict[str, Fact]:
    return {
        "events": len(lines),
        "windows": len({start for start, _ in counts}),
        "directories": len({directory for _, directory in counts}),
        "agrees": not problems,
        "problems": problems,
        "killed_workers": deaths.workers,
        "killed_brokers": deaths.brokers,
        "seconds": round(seconds, 1),
    }


@contextlib.contextmanager
def _temporary_directory() -> Iterator[Path]:
    """One directory for everything; Spark's workers may still be writing while it is removed."""
    with tempfile.TemporaryDirectory(prefix="ottla-demo-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextlib.contextmanager
def _ended_politely() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the demo as Ctrl-C does; none of them interrupts the clean-up."""
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in ours}

    def interrupt(*_: object) -> None:
        for one in ours:
            signal.signal(one, signal.SIG_IGN)
        logging.disable()  # an interrupted call into Java would log long stack traces
        raise KeyboardInterrupt

    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in before.items():
            signal.signal(number, handler)


def _create_topics(bootstrap: str) -> None:
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": bootstrap})) as cluster:
        topics = [NewTopic(name, PARTITIONS, 1) for name in (pipeline.RAW, pipeline.ENRICHED)]
        for answer in Admin(cluster).create_topics(topics).values():
            if isinstance(answer, ClientError):
                raise answer


def _produce_events(bootstrap: str, lines: list[bytes], progress: Progress) -> None:
    """Write the events to the first topic, keyed by commit, so that the files of a commit stay in order."""
    progress.begin_step("produce")
    options = sink_options({"kafka.bootstrap.servers": bootstrap, "topic": pipeline.RAW})
    keys = [json.loads(line)["commit"] for line in lines]

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(lines), _ROWS):
            progress.update_step(f"{first:,} of {len(lines):,} events")
            some = slice(first, first + _ROWS)
            yield pa.record_batch([pa.array(keys[some]), pa.array(lines[some], pa.binary())], names=["key", "value"])

    written = write_batches(options, batches())
    progress.end_step(f"{written:,} real events into {pipeline.RAW}")


def _stream_events(
    spark: SparkProcess, broker: BrokerProcess, directory: Path, total: int, progress: Progress
) -> tuple[Counts, Deaths]:
    progress.begin_step("Spark")
    session = spark.get_session()
    deaths = Deaths(session, spark.pid, broker, progress.add_note)
    progress.end_step(f"{session.version} started")

    def enriched(done: int, batches: int) -> None:
        progress.update_step(f"{done:,} of {total:,} events")
        deaths.kill_due(batches)

    try:
        progress.begin_step("enrich")
        pipeline.enrich_events(session, broker.bootstrap, directory, enriched)
        progress.end_step(f"{pipeline.RAW} → {pipeline.ENRICHED}")
        progress.begin_step("count")
        counts = pipeline.count_events(
            session, broker.bootstrap, directory, lambda done, _: progress.update_step(f"{done:,} of {total:,}")
        )
        progress.end_step(f"{pipeline.ENRICHED} → events per half year and directory")
    except BrokerFailed:
        raise
    except Exception as error:
        raise spark.make_failure(f"a query failed: {str(error).splitlines()[0]}") from error
    return counts, deaths


def _check_enriched(bootstrap: str, recounted: Recount) -> list[str]:
    """Read the enriched topic without Spark: it must have every event of the file once, with its directory."""
    found: Counter[tuple[str, str]] = Counter()
    options = source_options({"kafka.bootstrap.servers": bootstrap, "subscribe": pipeline.ENRICHED}, streaming=False)
    with Lookup(options) as lookup:
        ends = lookup.latest_offsets(lookup.list_partitions())
    for tp, end in ends.items():
        for batch in read_range(options, Range(tp, 0, end)):
            for value in batch.column("value").to_pylist():
                event = json.loads(value)
                found[events.event_fingerprint(event), event["directory"]] += 1
    missing, extra = recounted.lines - found, found - recounted.lines
    problems = [f"missing in {pipeline.ENRICHED}: {one[0]} in {one[1]}" for one in sorted(missing)[:10]]
    return problems + [f"not in the file, or too often: {one[0]} in {one[1]}" for one in sorted(extra)[:10]]
