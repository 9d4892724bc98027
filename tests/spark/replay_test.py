"""A replay on Spark: the second output has the records from the time on, once; the first pipeline stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline import Pipeline, map_rows
from ottla.pipeline.replay import count_outputs, replay_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_replay_beside_its_pipeline(spark: Any, topics: Any, tmp_path: Path) -> None:
    source = topics.make(2)
    for number in range(2):
        topics.put(source, number, [b"%d" % n for n in range(100)], at_ms=1_000)
    first = Pipeline(f"{source}-first", topics.bootstrap)
    first.step(source, to=f"{source}.out", retries=["1h"], name="copy")(map_rows(lambda record: record.value))
    first.run(str(tmp_path / "first"), spark=spark, progress=False)
    status = first.status()

    second = replay_pipeline(first, "v2", 1_060)
    (figures,) = second.run(str(tmp_path / "second"), spark=spark, progress=False)
    assert (figures.rows_in, figures.lag) == (80, 0)
    expected = sorted(b"%d" % n for n in range(60, 100)) * 2
    assert sorted(topics.values(f"{source}.out.v2")) == sorted(expected)
    assert len(topics.values(f"{source}.out")) == 200
    assert first.status() == status

    topics.put(source, 0, [b"later"], at_ms=9_000)
    (figures,) = second.run(str(tmp_path / "second"), spark=spark, progress=False)
    assert figures.rows_in == 1, "it continues from its checkpoint"
    (counts,) = count_outputs(first, second, 1_060)
    assert (counts.records, counts.replayed_records, counts.replayed_dead) == (200, 81, 0)
    assert [one.lag for one in first.status()] == [1]
