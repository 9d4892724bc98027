"""A run over a checkpoint does as the plan has said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline import Pipeline, StepFailed
from ottla.pipeline.checkpoint_files import HadoopFiles, LocalFiles, read_step
from ottla.spark.errors import BadCheckpoint

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def count(frame: Any) -> Any:
    return frame.groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) AS value")


def copy(frame: Any) -> Any:
    return frame.select("key", "value", "_source")


def test_what_the_plan_refuses_stops_the_run_and_nothing_else_does(spark: Any, topics: Any, tmp_path: Path) -> None:
    source, other = topics.make(), topics.make()
    topics.put(source, 0, [b"%d" % (n % 7) for n in range(70)])
    topics.put(other, 0, [b"1"])

    def pipeline(function: Any, *sources: str, name: str = "copied", **more: Any) -> Pipeline:
        found = Pipeline(f"{source}-changed", topics.bootstrap)
        mode = "complete" if function is count else "append"
        found.step(sources or (source,), to=f"{source}.out", name=name, output_mode=mode, **more)(function)
        return found

    def try_change(checkpoint: str, changed: Pipeline, expected: str) -> None:
        place = str(tmp_path / checkpoint)
        plan = changed.plan(spark, place).checkpoint
        assert expected in [each.effect for each in plan], plan
        if expected == "refused":
            with pytest.raises(StepFailed):
                changed.run(place, spark=spark, progress=False)
        else:
            changed.run(place, spark=spark, progress=False)

    try_change("plain", pipeline(copy), "begins")
    try_change("plain", pipeline(copy, retries=["1s"]), "changes")
    try_change("plain", pipeline(copy), "refused")  # the retry topic is gone
    try_change("plain", pipeline(copy, other), "refused")
    try_change("state", pipeline(count), "begins")
    try_change("state", pipeline(count), "continues")
    topics.put(source, 0, [b"new"])  # Spark compares the state when it runs a batch
    try_change("state", pipeline(copy), "refused")
    renamed = pipeline(count, name="renamed").plan(spark, (tmp_path / "state").as_uri()).checkpoint
    assert [(each.step, each.effect) for each in renamed] == [("renamed", "begins"), ("copied", "unused")]
    assert "if it is copied under another name" in renamed[0].reason

    # Any other file system is read through Java.
    local, through_java = LocalFiles(str(tmp_path)), HadoopFiles(spark, tmp_path.as_uri())
    assert through_java.names("") == local.names("") == ["plain", "state"]
    for step in ("state/copied", "plain/copied", "plain/none", "state/copied/metadata"):
        assert read_step(through_java, step) == read_step(local, step)
    with pytest.raises(BadCheckpoint, match=r"nosuch://there cannot be read: .*No FileSystem for scheme"):
        HadoopFiles(spark, "nosuch://there").names("")
