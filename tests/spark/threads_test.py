"""Pipelines and streams are started from any thread. Spark looks for a sink written in Python in the active session of
the thread only, and a thread that a program starts has none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline import Pipeline, map_rows
from ottla.spark import activate_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def error_in_thread(work: Callable[[], object]) -> str:
    """Run it in a thread of its own; its error, or nothing."""
    errors: list[str] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return "".join(errors)


def test_pipelines_and_streams_are_started_from_any_thread(spark: Any, topics: Any, tmp_path: Path) -> None:
    source, piped, streamed = (topics.make(1) for _ in range(3))
    topics.put(source, 0, [b"a", b"b"])
    pipeline = Pipeline(f"threads-{source}", topics.bootstrap)
    pipeline.step(source, to=piped)(map_rows(lambda record: record.value))
    rows = spark.readStream.format("ottla").options(**topics.options, subscribe=source, startingOffsets="earliest")

    def stream() -> None:
        sink = {**topics.options, "topic": streamed, "checkpointLocation": str(tmp_path / "stream")}
        query = rows.load().select("value").writeStream.format("ottla").options(**sink)
        query.trigger(availableNow=True).start().awaitTermination()

    assert "DATA_SOURCE_NOT_FOUND" in error_in_thread(stream), "Spark finds it by itself now: activate_session can go"
    assert error_in_thread(lambda: (activate_session(spark), stream())) == ""
    place = str(tmp_path / "pipeline")
    assert error_in_thread(lambda: pipeline.run(place, spark=spark, progress=False)) == ""
    assert topics.values(streamed) == topics.values(piped) == [b"a", b"b"]
