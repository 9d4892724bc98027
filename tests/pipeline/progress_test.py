"""The figures of a running step, out of Spark's documents, and how they are shown."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from ottla.pipeline.pipeline import Line
from ottla.pipeline.progress import METRICS, Counter, StepProgress


def document(batch: int, rows: int, good: int = 0, retries: int = 0, dead: int = 0, **ends: tuple[int, int]) -> Any:
    """Spark's progress of a batch; `ends`: (read up to, latest) by topic."""
    latest = {topic.replace("_", "."): {"0": pair[1]} for topic, pair in ends.items()}
    end = {topic.replace("_", "."): {"0": pair[0]} for topic, pair in ends.items()}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": 10.0 * rows,
        "sources": [{"latestOffset": json.dumps(latest), "endOffset": end}],
        "observedMetrics": {METRICS: {"rows_out": good, "retries": retries, "dead": dead}},
    }


def counter() -> Counter:
    return Counter("price", "exactly once", ["a"], ["a.retry.1"])


def test_batches_are_added_up_and_what_is_left_is_that_of_the_last() -> None:
    found = counter()
    found.add_documents([document(0, 5, 3, 1, 1, a=(5, 9), a_retry_1=(0, 0))])
    figures = found.add_documents([document(1, 4, 4, a=(9, 12), a_retry_1=(0, 2), other=(0, 7))])
    assert figures == StepProgress("price", "exactly once", 2, 9, 7, 1, 1, 40.0, 3, 2)


def test_documents_are_counted_once_and_idle_ones_not_at_all() -> None:
    """Spark shows the number of the next batch while there is nothing to do."""
    found = counter()
    idle = document(1, 0, a=(5, 5))
    found.add_documents([document(0, 5, 5, a=(5, 5)), idle])
    figures = found.add_documents([document(0, 5, 5, a=(5, 5)), idle, document(1, 2, 2, a=(7, 7))])
    assert (figures.batches, figures.rows_in, figures.rows_out, figures.lag) == (2, 7, 7, 0)


def test_a_batch_that_only_writes_is_counted() -> None:
    """A window that is closed by the time alone."""
    assert counter().add_documents([document(3, 0, good=4)]).rows_out == 4


def test_documents_of_spark_connect_are_counted_as_those_of_other_sessions() -> None:
    """As Spark 4.3 gives them: figures of the batch only at its sources, and a row as values and schema."""
    wanted = document(0, 5, 3, 1, 1, a=(5, 9))
    row = wanted["observedMetrics"][METRICS]
    schema = {"type": "struct", "fields": [{"name": name, "type": "long"} for name in row]}
    rate = wanted["processedRowsPerSecond"]
    sources = [{**each, "numInputRows": 5, "processedRowsPerSecond": rate} for each in wanted["sources"]]
    for remote in ({"values": [*row.values()], "schema": schema}, Row(values=[*row.values()], schema=schema)):
        found = {**wanted, "numInputRows": None, "processedRowsPerSecond": None, "sources": sources}
        found["observedMetrics"] = {METRICS: remote}
        assert counter().add_documents([found]) == counter().add_documents([wanted])
    assert counter().add_documents([{**wanted, "observedMetrics": {METRICS: Row(**row)}}]).rows_out == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), max_size=20))
def test_whatever_is_seen_how_often_every_batch_counts_once(seen: list[tuple[int, int, int]]) -> None:
    batches = {number: document(number, rows, good) for number, rows, good in seen}
    found = counter()
    for end in range(len(batches)):
        found.add_documents([batches[number] for number in sorted(batches)[: end + 1]])
    wanted = [one for one in batches.values() if one["numInputRows"] or one["observedMetrics"][METRICS]["rows_out"]]
    figures = found.add_documents([batches[number] for number in sorted(batches)])
    assert figures.batches == len(wanted)
    assert figures.rows_in == sum(one["numInputRows"] for one in wanted)
    assert figures.rows_out == sum(one["observedMetrics"][METRICS]["rows_out"] for one in wanted)


def test_the_line_leaves_out_counts_of_zero() -> None:
    plain = StepProgress("price", "exactly once", 2, 9000, 7, rows_per_s=40.4, lag=3)
    assert plain.status_line() == "price: 2 batches · 9,000 read · 7 written · 40 rows/s · lag 3"
    assert plain._replace(retries=1, waiting=2, dead=3).status_line().endswith("lag 3 · 1 retried · 2 waiting · 3 dead")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_line_that_is_rewritten_and_a_file_the_last_one() -> None:
    steps = [StepProgress("price", "exactly once")]
    for stream, rewritten in ((Terminal(), True), (io.StringIO(), False)):
        line = Line(stream)
        line.update_line(steps)
        line.end_lines(steps)
        shown = stream.getvalue()
        assert ("\r" in shown) is rewritten
        assert shown.endswith(f"{steps[0].status_line()} · exactly once\n")
    quiet = Terminal()
    Line(quiet, quiet=True).update_line(steps)
    Line(quiet, quiet=True).end_lines(steps)
    assert quiet.getvalue() == ""
