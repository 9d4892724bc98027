"""The exactly-once sink inside Spark: tasks, workers and drivers are killed between its steps, and run again.

The topic is read by librdkafka with read_committed. The longer matrix is `make chaos-spark`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from testbench.spark_chaos.committed import apart, await_markers, committed, end_what_is_open
from testbench.spark_chaos.query import Plan, start
from tests.spark.attempts import MARKERS_S

from ottla.client.admin.groups import GroupAdmin, GroupOffset
from ottla.spark import write_batch

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.interop,
]
ROWS = 400
PER_BATCH = 100


class Chaos:
    """A source with rows, an empty sink, and what happens to queries between them."""

    def __init__(self, spark: Any, topics: Any, directory: Path) -> None:
        self.spark = spark
        self.topics = topics
        source = topics.make(2)
        for number in range(2):
            topics.put(source, number, [b"%d" % n for n in range(number * ROWS // 2, (number + 1) * ROWS // 2)])
        self.plan = Plan(topics.bootstrap, source, topics.make(2), str(directory), PER_BATCH)
        self.plan.strikes.mkdir()

    def run(self, *strikes: str, **changes: Any) -> str:
        """A query to its end, or its error."""
        for strike in strikes:
            (self.plan.strikes / strike).touch()
        query = start(self.spark, self.plan._replace(**changes))
        try:
            query.awaitTermination()
        except Exception as error:
            return str(error)
        return ""

    def run_through(self, strikes: Sequence[str], **changes: Any) -> None:
        """One query after the other, each with its strike, and one without; all strikes have hit."""
        for strike in strikes:
            assert self.run(strike, **changes), f"{strike} did not hit"
        for _ in range(3):  # a task that outlived its query may take over from one of the next; here none is run again
            error = self.run(**changes)
            if "Fenced" not in error:
                break
        assert error == ""
        assert not list(self.plan.strikes.iterdir())

    def apart(self) -> dict[int, tuple[int, int]]:
        """Partitions of the source whose committed offset does not match the output."""
        plan = self.plan
        end_what_is_open(plan.bootstrap, Path(plan.directory, "checkpoint"), 2)
        return apart(plan.bootstrap, plan.group, plan.source, plan.sink, lambda number: number * 2 // ROWS)

    def offsets(self) -> dict[str, int]:
        """What the group has committed, by partition."""
        found = GroupAdmin(self.topics.cluster).group_offsets(self.plan.group)
        return {str(tp.partition): at.offset for tp, at in found.items() if isinstance(at, GroupOffset)}

    def committed(self) -> Counter[str]:
        """What readers of committed records see, once the markers are there."""
        await_markers(self.plan.bootstrap, self.plan.sink, MARKERS_S)
        return Counter(committed(self.plan.bootstrap, self.plan.sink))

    def counts(self) -> tuple[int, int]:
        """Missing rows, and duplicate rows."""
        found = self.committed()
        wanted = Counter(f"x-{number}" for number in range(ROWS))
        return (wanted - found).total(), (found - wanted).total()


@pytest.fixture
def chaos(spark: Any, topics: Any, tmp_path: Path) -> Chaos:
    return Chaos(spark, topics, tmp_path)


def test_tasks_workers_and_drivers_that_fail_at_each_step_write_every_row_once(chaos: Chaos) -> None:
    chaos.run_through(["mid@0.1=raise", "after@1.1=exit", "before@2.0=exit", "commit@3=raise"])
    assert chaos.counts() == (0, 0)


@pytest.mark.parametrize("whole", [False, True], ids=["partition", "batch"])
def test_output_and_group_move_together_wherever_a_task_or_the_driver_is_hit(chaos: Chaos, whole: bool) -> None:
    """Read by librdkafka: what is committed in the output, and what the group has committed."""
    chaos.plan = chaos.plan._replace(group=f"{chaos.plan.source}-readers")
    changes = {"once": "batch", "shuffle": "1"} if whole else {}
    for strike in ["mid@0.0=exit", "commit@1=raise"] if whole else ["before@0.1=exit", "after@1.1=exit"]:
        assert chaos.run(strike, **changes)
        assert chaos.apart() == {}, strike
    assert chaos.offsets(), "rows were written, and offsets committed"
    chaos.run_through([], **changes)
    assert (chaos.counts(), chaos.apart()) == ((0, 0), {})
    assert chaos.offsets() == {"0": ROWS // 2, "1": ROWS // 2}


def test_batches_that_the_driver_reads_are_written_once_also_by_runs_without_it(chaos: Chaos) -> None:
    """The checkpoint keeps the one task of such a batch, whatever the next run's options are."""
    for strike in ("mid@0=exit", "commit@1=raise"):
        assert chaos.run(strike, on_driver=True), f"{strike} did not hit"
    assert '"onDriver": true' in Path(chaos.plan.directory, "checkpoint/offsets/1").read_text()
    assert chaos.run("commit@2=raise"), "the same batch 1, and a batch of several tasks"
    chaos.run_through([], on_driver=True)
    assert chaos.counts() == (0, 0)


def test_beside_the_transaction_the_group_is_ahead_of_an_output_whose_task_died(chaos: Chaos) -> None:
    """The safeguard is proved: the test above would notice."""
    chaos.plan = chaos.plan._replace(group=f"{chaos.plan.source}-readers")
    assert chaos.run("before@0.1=exit", unsafe="offsets_inside")
    # Whether the other task has ended when Spark notices that death depends on Spark.
    ahead = (PER_BATCH // 2, 0)
    assert chaos.apart() in ({1: ahead}, {0: ahead, 1: ahead})


def test_offsets_that_are_demanded_where_they_cannot_be_are_refused_before_anything_is_written(chaos: Chaos) -> None:
    chaos.plan = chaos.plan._replace(group=f"{chaos.plan.source}-readers", settings=())
    rows = chaos.spark.readStream.format("ottla").options(**chaos.topics.options, subscribe=chaos.plan.source)
    rows = rows.options(**{"startingOffsets": "earliest", "minPartitions": "4", "kafka.group.id": chaos.plan.group})
    sink = {**chaos.topics.options, "topic": chaos.plan.sink, "checkpointLocation": chaos.plan.directory + "/split"}
    writer = rows.load().select("value").writeStream.format("ottla").options(**sink).trigger(availableNow=True)
    with pytest.raises(Exception, match=r"OffsetsOutside.*by several tasks"):
        writer.option("offsetsInTransaction", "true").start().awaitTermination()
    assert chaos.counts() == (ROWS, 0)
    writer.option("offsetsInTransaction", "auto").start().awaitTermination()
    assert chaos.committed().total() == ROWS
    assert chaos.offsets() == {"0": ROWS // 2, "1": ROWS // 2}, "committed after the batch"


def test_tasks_whose_rows_are_all_filtered_commit_their_offsets(chaos: Chaos) -> None:
    group = f"{chaos.plan.source}-readers"
    rows = chaos.spark.readStream.format("ottla").options(**chaos.topics.options, subscribe=chaos.plan.source)
    rows = rows.options(**{"startingOffsets": "earliest", "kafka.group.id": group}).load().where("partition < 0")
    sink = {**chaos.topics.options, "topic": chaos.plan.sink, "offsetsInTransaction": "true"}
    place = chaos.plan.directory + "/checkpoint"
    query = rows.select("value").writeStream.format("ottla").options(**sink, checkpointLocation=place)
    query.trigger(availableNow=True).start().awaitTermination()
    found = GroupAdmin(chaos.topics.cluster).group_offsets(group)
    told = [at for at in found.values() if isinstance(at, GroupOffset)]
    assert [at.offset for at in told] == [ROWS // 2] * 2
    assert all('"b":0' in at.metadata for at in told), "by the sink, with their marker"


def test_at_least_once_writes_rows_twice_under_the_same_faults(chaos: Chaos) -> None:
    chaos.run_through(["after@1.1=exit", "commit@2=raise"], once="off")
    missing, twice = chaos.counts()
    assert missing == 0
    assert twice >= PER_BATCH


@pytest.mark.parametrize(("strike", "once"), [("commit@1=driver", "auto"), ("decided@1=driver", "batch")])
def test_a_driver_killed_after_its_tasks_and_before_the_end_of_the_commit(chaos: Chaos, strike: str, once: str) -> None:
    """SIGKILL of the driver's JVM; another driver continues from the checkpoint."""
    chaos.plan = chaos.plan._replace(once=once)
    (chaos.plan.strikes / strike).touch()
    words = [sys.executable, "-m", "testbench.spark_chaos.query", json.dumps(chaos.plan._asdict())]
    subprocess.run(words, check=False, capture_output=True, timeout=300, cwd=Path(__file__).parents[2])
    assert not list(chaos.plan.strikes.iterdir()), "the driver was not killed"
    committed = chaos.committed().total()
    # Rows of the decided batch may be hidden by a transaction that is still open.
    assert (committed == 2 * PER_BATCH) if once == "auto" else (PER_BATCH <= committed < 2 * PER_BATCH), committed
    assert chaos.run() == ""
    assert chaos.counts() == (0, 0)


def test_a_whole_batch_of_several_tasks_is_written_once_whatever_the_plan_and_the_step(chaos: Chaos) -> None:
    """Another plan at each start, also within a batch: only the decision counts."""
    strikes = {
        "mid@0.1=raise": "",
        "prepared@0.0=exit": "value",
        "commit@1=raise": "round",
        "decided@2=raise": "value",
        "half@3=raise": "3",
    }
    for strike, shuffle in strikes.items():
        assert chaos.run(strike, once="batch", shuffle=shuffle), f"{strike} did not hit"
    chaos.run_through([], once="batch", shuffle="join")
    assert chaos.counts() == (0, 0)


def test_auto_writes_whole_batches_where_rows_move_and_other_plans_continue_them(chaos: Chaos) -> None:
    """Another plan at each start; after the first shuffle tasks that read their own rows write parts as well."""
    strikes = {"prepared@0.0=exit": "value", "decided@1=raise": "", "half@2=raise": "round"}
    for strike, shuffle in strikes.items():
        assert chaos.run(strike, shuffle=shuffle), f"{strike} did not hit"
    chaos.run_through([], shuffle="join")
    assert chaos.counts() == (0, 0)


def test_auto_writes_the_rest_of_a_batch_when_only_some_tasks_read_their_rows(chaos: Chaos) -> None:
    """A union of the topic with files: the task of the files begins when one of the topic has committed."""
    assert chaos.run("prepared@0.2=raise", files=True)
    assert chaos.committed(), "no task has committed by partition"
    chaos.run_through(["decided@0=raise", "decided@1=raise"], files=True)
    assert chaos.counts() == (0, 0)


def test_rows_of_an_adaptive_shuffle_are_refused_before_a_row_is_written(chaos: Chaos) -> None:
    error = chaos.run(shuffle="value", once="partition")
    assert "UnstableRows" in error
    assert "exactlyOnce=batch" in error
    assert chaos.counts() == (ROWS, 0)


def test_partitions_that_change_lose_rows_where_the_rule_is_switched_off(chaos: Chaos) -> None:
    """The reason of the rule: when the batch runs again, the partition that was committed gets other rows."""
    assert chaos.run("before@1.1=sleep4", "after@1.0=exit", shuffle="3", unsafe="stable_rows")
    chaos.run(shuffle="2", unsafe="stable_rows")
    assert chaos.counts() != (0, 0)


def test_the_result_of_an_aggregation_is_updated_exactly_once(chaos: Chaos) -> None:
    """foreachBatch, output mode update, with a failure after the rows and before Spark notes the batch."""
    plan = chaos.plan._replace(per_batch=ROWS // 2)
    strikes = iter(["raise"])

    def publish(frame: Any, batch: int) -> None:
        options = {"kafka.bootstrap.servers": plan.bootstrap, "topic": plan.sink}
        write_batch(frame, batch, options, sink="counts")
        with pytest.raises(Exception, match="each write needs its own name"):
            write_batch(frame, batch, options, sink="counts")
        for _ in strikes:
            raise RuntimeError("after the rows")

    def run() -> None:
        source = chaos.spark.readStream.format("ottla").options(**chaos.topics.options, subscribe=plan.source)
        rows = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", plan.per_batch).load()
        counts = rows.selectExpr("CAST(value AS STRING) AS value").groupBy("value").count()
        named = counts.selectExpr("concat('x-', value) AS value").writeStream.foreachBatch(publish)
        named = named.outputMode("update").option("checkpointLocation", plan.directory + "/checkpoint")
        named.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="after the rows"):
        run()
    run()
    assert chaos.counts() == (0, 0)


def test_write_batch_belongs_into_foreach_batch(chaos: Chaos) -> None:
    with pytest.raises(Exception, match="call it in the function"):
        write_batch(chaos.spark.range(1).selectExpr("CAST(id AS STRING) AS value"), 0, {}, sink="a")


def test_a_named_batch_write_is_done_once(chaos: Chaos) -> None:
    rows = chaos.spark.range(ROWS).selectExpr("concat('x-', id) AS value")
    for tasks in (3, 2):
        rows = rows.repartition(tasks)
        options = {**chaos.topics.options, "topic": chaos.plan.sink, "jobId": f"job-{chaos.plan.sink}"}
        rows.write.format("ottla").options(**options).mode("append").save()
    assert chaos.counts() == (0, 0)
