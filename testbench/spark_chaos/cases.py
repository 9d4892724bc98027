"""The cases of `make chaos-spark`: strikes, runs of a query, and the expected content of the topic.

Zone: pure. 4 batches of 4 tasks each, unless a case differs. The kinds of plans at all places are in `matrix`.
"""

from __future__ import annotations

from typing import Any, Final

from testbench.spark_chaos.brokers import ROLES
from testbench.spark_chaos.matrix import AQE_OFF, MATRIX, partition_sizes
from testbench.spark_chaos.runs import LAST, Case, Run

SPECULATION: Final = (
    ("spark.speculation", "true"),
    ("spark.speculation.interval", "100ms"),
    ("spark.speculation.multiplier", "1.5"),
    ("spark.speculation.quantile", "0.25"),
    ("spark.speculation.minTaskRuntime", "100ms"),
)
OTHER_SOURCE: Final = "chaos-source-b"
CLUSTER: Final = "cluster"
"""Selects the standalone cluster: a master and two workers, each on a separate host."""


HALF: Final = Run(("after@1.1=driver",))
"""A run that ends when one or two tasks of the second batch have committed."""


def _changed(
    name: str, then: dict[str, Any], refused: str = "", first: dict[str, Any] | None = None, **more: Any
) -> Case:
    """The query changes while a batch is partly committed; if Ottla refuses that, it changes back."""
    runs = (HALF, Run(plan=then, refused=refused), *([LAST] if refused else []))
    return Case(f"changed between two runs: {name}", runs, first or {}, **more)


CHANGES: Final = (
    _changed("tasks to a whole batch", {"once": "batch", "shuffle": "1"}, "ChangedUnit"),
    _changed("a shuffle", {"shuffle": "4", "settings": AQE_OFF}, "ChangedUnit"),
    _changed("no shuffle", {"shuffle": "", "settings": ()}, "ChangedUnit", {"shuffle": "4", "settings": AQE_OFF}),
    _changed("the prefix of the names", {"prefix": "other-"}, "ChangedUnit"),
    _changed("the name of the sink", {"name": "other"}, "ChangedUnit"),
    _changed("foreachBatch", {"foreach": "append"}, "ChangedUnit"),
    _changed("another topic", {"suffix": "-b"}),
    _changed("another expression", {"keyed": True}),
    _changed("offsets beside the rows", {"offsets": "false"}, offsets=True, behind=True),
    Case(
        "changed between two runs: a whole batch to tasks",
        (Run(("commit@1=driver",)), Run(plan={"once": "auto", "shuffle": ""})),
        {"once": "batch", "shuffle": "1"},
    ),
    Case(
        "changed between two runs: another query in the same directory",
        (HALF, Run(plan={"source": OTHER_SOURCE}, refused="BadCheckpoint"), LAST),
    ),
    Case(
        "offsets of a source that a union reads twice: driver killed with part of the tasks committed",
        (HALF, Run(("after@2.4=driver",)), LAST),
        {"union": True, "offsets": "auto"},
        offsets=True,
        behind=True,
    ),
    Case(
        "foreachBatch with rows that are kept, two writes, one in a thread: driver killed between and behind them",
        (Run(("between@1=driver",)), Run(("behind@2=driver",)), LAST),
        {"kept": True},
    ),
    Case(
        "4,200 tasks read beside a task that waits before its end",
        (Run(("mid@1.1=wait",), {"others": 4_200}),),
    ),
)


def _at_steps(role: str) -> tuple[str, ...]:
    """A broker dies when a task starts, has taken its id, has written, and is about to end its transaction."""
    return tuple(f"{point}@{batch}.1={role}" for batch, point in enumerate(("start", "begun", "mid", "before")))


def _at_ends(role: str) -> tuple[str, ...]:
    """After the end of a transaction, and around the end of a batch, where no transaction has a coordinator."""
    around = ("commit@2", "committed@3") if role != "coordinator" else ("after@2.2", "after@3.3")
    return tuple(f"{where}={role}" for where in ("after@0.1", "mid@1.2", *around))


CASES: Final = (
    Case(
        "tasks raise, workers exit before and after the end, drivers are killed before and after the commit",
        (
            Run(("mid@0.1=raise", "before@1.1=exit", "after@1.2=exit", "commit@2=driver")),
            Run(("committed@3=driver",)),
            LAST,
        ),
    ),
    Case(
        "driver killed with part of the tasks committed, an orphan commits later; a zombie sleeps over the next run",
        (
            Run(("before@1.0=sleep6", "after@1.1=driver"), wait_s=9),
            Run(("before@2.0=sleep40", "after@2.1=driver")),
            Run(wait_s=25),
        ),
    ),
    Case("two drivers, one asleep in its commit", (Run(("commit@1=sleep30",), beside=True), LAST)),
    Case("two drivers, one asleep in a task", (Run(("before@1.1=sleep30",), beside=True), LAST)),
    Case(
        "shuffle by value into four partitions, driver killed with part of them committed",
        (Run(("after@1.1=driver",)), LAST),
        {"shuffle": "4", "settings": AQE_OFF},
    ),
    Case(
        "shuffle by value without adaptive execution, restart with one core",
        (Run(("after@1.2=driver",)), Run(plan={"master": "local[1,4]"})),
        {"shuffle": "value", "settings": AQE_OFF},
    ),
    Case(
        "whole batches, driver killed before its commit, worker exits in the middle",
        (Run(("commit@1=driver",)), Run(("mid@2.0=exit",)), LAST),
        {"once": "batch", "shuffle": "1"},
    ),
    Case(
        "batches that the driver reads: a task raises, workers exit, drivers are killed before and after the commit",
        (
            Run(("mid@0=raise", "begun@1=exit", "prepared@1=exit", "commit@1=driver")),
            Run(("committed@2=driver",)),
            LAST,
        ),
        {"on_driver": True},
    ),
    Case(
        "batches that the driver reads, and tasks after the restart; and the other way round",
        (
            Run(("commit@1=driver",), plan={"on_driver": True}),
            Run(("prepared@2.1=driver",)),
            Run(plan={"on_driver": True}),
        ),
    ),
    Case(
        "foreachBatch, two kills",
        (Run(("after@1.1=driver",)), Run(("before@2.1=exit", "after@3.0=driver")), LAST),
        {"foreach": "append"},
    ),
    Case(
        "foreachBatch, output mode update with an aggregation, two kills",
        (Run(("after@1.1=driver",)), Run(("after@2.1=driver",)), LAST),
        {"foreach": "update"},
    ),
    Case(
        "executors killed in the middle and after the end",
        (Run(("mid@1.1=executor", "after@2.2=executor")),),
        {"master": CLUSTER},
    ),
    Case(
        "speculative twins",
        (Run(("before@1.1=sleep12", "start@2.2=sleep12")), LAST),
        {"master": CLUSTER, "settings": SPECULATION},
    ),
    Case(
        "offsets with whole batches: driver killed before and behind its commit, worker exits in the middle",
        (Run(("commit@1=driver",)), Run(("mid@2.0=exit", "committed@3=driver")), LAST),
        {"once": "batch", "shuffle": "1"},
        offsets=True,
    ),
    Case(
        "offsets with each task: workers exit before and after the end, drivers are killed before and after the commit",
        (
            Run(("mid@0.1=raise", "before@1.1=exit", "after@1.2=exit", "commit@2=driver")),
            Run(("committed@3=driver",)),
            LAST,
        ),
        offsets=True,
    ),
    Case(
        "offsets with each task: an orphan commits behind its driver; a zombie sleeps over the next run",
        (
            Run(("before@1.0=sleep6", "after@1.1=driver"), wait_s=9),
            Run(("before@2.0=sleep40", "after@2.1=driver"), look=False),
            Run(wait_s=25),
        ),
        offsets=True,
    ),
    *CHANGES,
    *MATRIX,
    Case(
        "whole batches of several tasks: adaptive execution chooses other partitions at each start",
        (
            Run(("commit@1=driver",), plan={"settings": partition_sizes(4_000)}),
            Run(("decided@1=driver",), plan={"settings": partition_sizes(1_000)}),
            Run(("half@2=driver",), plan={"settings": partition_sizes(6_000)}),
            LAST,
        ),
        {"once": "batch", "shuffle": "value", "settings": partition_sizes(2_000)},
    ),
    Case(
        "a union with files by auto: drivers are killed when one task has committed, and around the end of the rest",
        (
            *(Run((f"{place}=driver",)) for place in ("before@0", "after@0", "prepared@0.4", "decided@0")),
            LAST,
        ),
        {"files": True},
    ),
    Case(
        "a union with files by auto: an orphan commits after its driver, a driver sleeps before the end of the rest",
        (
            Run(("before@0.0=sleep6", "after@0.1=driver"), wait_s=9),
            Run(("commit@0=sleep30",), beside=True),
            LAST,
        ),
        {"files": True},
    ),
    Case(
        "a union with files by auto, which a shuffle before the topic moves to other tasks at each start: drivers die "
        "when one task has committed, before the rest is committed and after its decision",
        (
            Run(("after@0=driver",), plan={"moved_first": 1, "slow_s": 50}),
            Run(("commit@0=driver",), plan={"moved_first": 3}),
            Run(("decided@0=driver",)),
            LAST,
        ),
        {"files": True, "moved_first": 2, "master": "local[8,4]"},
    ),
    Case(
        "whole batches of several tasks: executors killed in the middle and at the end",
        (Run(("mid@1=executor", "prepared@2=executor")),),
        {"once": "batch", "master": CLUSTER},
    ),
    Case(
        "whole batches of several tasks: between two runs tasks of their own",
        (Run(("decided@1=driver",)), Run(("after@2.1=driver",), plan={"once": "auto"}), Run(plan={"once": "auto"})),
        {"once": "batch"},
    ),
    *(
        Case(f"the {role} is killed in every batch, {when}", (Run(strikes(role)),), brokers=3)
        for role in ROLES
        for when, strikes in (("at every step of a task", _at_steps), ("at the ends of tasks and batches", _at_ends))
    ),
    Case(
        "at least once: a task raises in the middle",
        (Run(("mid@1.1=raise",)),),
        {"once": "off"},
        exact=False,
    ),
    Case(
        "at least once: driver killed before its commit",
        (Run(("commit@1=driver",)), LAST),
        {"once": "off"},
        exact=False,
    ),
    Case(
        "at least once: speculative twins",
        (Run(("before@1.1=sleep12",)), LAST),
        {"once": "off", "master": CLUSTER, "settings": SPECULATION},
        exact=False,
    ),
    Case(
        "Spark's own connector: a task raises in the middle",
        (Run(("mid@1.1=raise",)),),
        {"stock": True},
        exact=False,
    ),
    Case(
        "Spark's own connector: driver killed with part of the tasks written",
        (Run(("start@1.3=driver",)), LAST),
        {"stock": True},
        exact=False,
    ),
    Case(
        "without the marker in the transaction: driver killed before its commit",
        (Run(("commit@1=driver",)), LAST),
        {"unsafe": "marker_inside"},
        exact=False,
    ),
    Case(
        "without the list of a batch's transactions: driver killed after its decision",
        (Run(("decided@1=driver",)), LAST),
        {"once": "batch", "unsafe": "parts_recorded"},
        exact=False,
    ),
    Case(
        "with the offsets beside the transaction: driver killed behind its task, before the end",
        (Run(("before@1.1=driver",)), LAST),
        {"unsafe": "offsets_inside"},
        offsets=True,
        exact=False,
    ),
)
