"""The matrix of `make chaos-spark`: every kind of plan, with a death at every place.

Zone: pure. A place is a point and an action. The points of a task are start, begun, mid and prepared, and where it
commits itself before and after; those of the driver are commit and committed, and where it ends a whole batch decided
and half. At each point an error is raised, the process exits, and the driver is killed. At three more places a driver
sleeps while another one runs the same batch.

All strikes hit whatever the number of tasks is, from two on.
"""

from __future__ import annotations

from typing import Any, Final

from testbench.spark_chaos.runs import LAST, Case, Run

AQE_OFF: Final = (("spark.sql.adaptive.streaming.stateless.enabled", "false"),)
PLACES: Final = 27
"""Places at which each plan is struck."""


def partition_sizes(bytes_: int) -> tuple[tuple[str, str], ...]:
    """Settings with which adaptive execution makes partitions of about this size, so that there are several."""
    name = "spark.sql.adaptive"
    return (
        (f"{name}.coalescePartitions.minPartitionSize", "1b"),
        (f"{name}.coalescePartitions.parallelismFirst", "false"),
        (f"{name}.advisoryPartitionSizeInBytes", f"{bytes_}b"),
    )


STABLE_PLANS: Final[dict[str, dict[str, Any]]] = {
    "no shuffle": {},
    "a union": {"union": True},
    "a shuffle without adaptive execution": {"shuffle": "4", "settings": AQE_OFF},
}
"""Rows come to the same task again: each task commits its own."""

MOVING_PLANS: Final[dict[str, dict[str, Any]]] = {
    "no shuffle": {"once": "batch"},
    "an adaptive shuffle": {"shuffle": "value", "settings": partition_sizes(2_000)},
    "a round-robin shuffle": {"shuffle": "round"},
    "a join with a table": {"shuffle": "join", "settings": partition_sizes(2_000)},
    "a union": {"once": "batch", "union": True},
    "a union with files": {"once": "batch", "files": True},
    "a union with files by auto": {"files": True},
    "a cached frame in foreachBatch": {"once": "batch", "foreach": "cached"},
}
"""Rows may come to other tasks: the batch is written as a whole; by auto without those that tasks commit before."""

_FAILURES: Final = (
    "start@0=raise", "begun@0=exit", "mid@1=raise", "prepared@1=exit",
    "start@2=exit", "begun@2=raise", "mid@3=exit", "prepared@3=raise",
)  # fmt: skip
"""Spark runs the tasks again in the same query, which writes all batches."""
_OWN_FAILURES: Final = ("before@0=raise", "after@1=raise", "before@2=exit", "after@3=exit")
"""Also of tasks that commit themselves. At most three strikes hit one task, and Spark gives it up after four."""


def _killed(*places: str) -> tuple[Run, ...]:
    """A run for each place, which is its end."""
    return tuple(Run((place,)) for place in places)


_IN_TASKS: Final = _killed("start@0=driver", "begun@1=driver", "mid@2=driver", "prepared@3=driver")
_BATCH_ENDS: Final = _killed(
    "commit@0=raise", "commit@0=exit", "commit@0=driver", "decided@0=raise", "committed@0=raise",
    "decided@1=exit", "committed@1=exit", "decided@2=driver", "committed@2=driver",
)  # fmt: skip
_HALVES: Final = _killed("half@0=raise", "half@1=exit", "half@2=driver")
"""Of other batches: the next run ends the transactions of a decided batch within a task, where no point is."""
_OWN_ENDS: Final = _killed(
    "before@0=driver", "after@0=driver", "commit@1=raise", "committed@1=raise",
    "commit@2=exit", "committed@2=exit", "commit@3=driver", "committed@3=driver",
)  # fmt: skip
_AT_END, _AT_HALF = "at each step of a batch's end", "when half of a batch's transactions are ended"


def _asleep(title: str, plan: dict[str, Any]) -> tuple[Case, ...]:
    """A driver sleeps at a place while a second one runs to its end; the first wakes up beside or after it."""
    return tuple(
        Case(f"{title} two drivers, one asleep at {point}", (Run((f"{point}@1=sleep30",), beside=True), LAST), plan)
        for point in ("mid", "prepared", "commit")
    )


def _cases(title: str, plan: dict[str, Any], failures: tuple[str, ...], ends: dict[str, tuple[Run, ...]]) -> list[Case]:
    """failures: strikes at the tasks of one run. ends: runs that are struck when a batch ends, by name."""
    return [
        Case(f"{title} tasks and workers die at each step", (Run(failures), LAST), plan),
        Case(f"{title} drivers die at each step of a task", (*_IN_TASKS, LAST), plan),
        *(Case(f"{title} drivers die {when}", (*runs, LAST), plan) for when, runs in ends.items()),
        *_asleep(title, plan),
    ]


MATRIX: Final = (
    *(
        case
        for name, plan in STABLE_PLANS.items()
        for case in _cases(f"tasks of their own, {name}:", plan, _FAILURES + _OWN_FAILURES, {_AT_END: _OWN_ENDS})
    ),
    *(
        case
        for name, plan in MOVING_PLANS.items()
        for case in _cases(
            f"whole batches of several tasks, {name}:", plan, _FAILURES, {_AT_END: _BATCH_ENDS, _AT_HALF: _HALVES}
        )
    ),
)
