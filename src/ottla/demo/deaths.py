"""Kills a worker of Spark, and then the broker, in the middle of the demo.

Zone: real. Both are killed with SIGKILL while tasks run, as in a crash; the recount checks that nothing was lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from ottla.demo.broker import BrokerProcess

_WORKER = "pyspark.daemon pyspark.worker"
_NOTICED_S = 3.0
_LAST_TRY = 3
"""The batch from which on the broker is killed, even if no worker with a task was found."""


class Deaths:
    """Kills one process per batch after the first one, while tasks run; `kill_due` is polled while the query runs."""

    def __init__(self, spark: Any, java: int, broker: BrokerProcess, tell: Callable[[str], None]) -> None:
        """java: Spark's process, whose workers they are."""
        self._tracker = spark.sparkContext.statusTracker()
        self._java = java
        self._broker = broker
        self._report = tell
        self._next_batch = 1
        self.workers = 0
        """Workers that were killed while they had a task."""
        self.brokers = 0

    def kill_due(self, batches: int) -> None:
        """Kill the process that is due after this many batches, if a task is running. Raises BrokerFailed."""
        if batches < self._next_batch or not self._active_stages():
            return
        if not self.workers and batches < _LAST_TRY:
            self._kill_worker(batches)
        elif not self.brokers:
            self._kill_broker(batches)

    def _kill_worker(self, batches: int) -> None:
        """Kill a worker. If it had no task, Spark does not notice it, and the next poll kills another one."""
        stages = self._active_stages()
        for worker in _find_workers(self._java)[:1]:
            # The worker may have ended between the listing and the signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            if self._is_noticed(stages):
                self.workers += 1
                self._next_batch = batches + 1
                self._report(f"killed a Spark worker (process {worker}) in batch {batches}; its task runs again")

    def _is_noticed(self, stages: list[int]) -> bool:
        until = time.monotonic() + _NOTICED_S
        while time.monotonic() < until:
            told = [self._tracker.getStageInfo(stage) for stage in stages]
            if any(each is not None and each.numFailedTasks for each in told):
                return True
            if not set(stages) & set(self._active_stages()):
                return False
            time.sleep(0.01)
        return False

    def _kill_broker(self, batches: int) -> None:
        self._broker.kill_broker()
        gone = time.monotonic()
        self._broker.start_broker()
        self.brokers += 1
        away = time.monotonic() - gone
        self._report(f"killed the broker in batch {batches}; it is back after {away:.1f} s, and the batch continues")

    def _active_stages(self) -> list[int]:
        """The stages that have running tasks."""
        return list(self._tracker.getActiveStageIds())


def _find_workers(java: int) -> list[int]:
    """The Python processes that run tasks of this Spark: children of its daemon, the newest first."""
    if shutil.which("ps") is None:  # a bare container: only the broker is killed then, and the output says so
        return []
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    ours = {int(row[0]): int(row[1]) for row in rows if len(row) == 3 and _WORKER in row[2]}
    # PySpark forks workers from a daemon process: the daemon is a child of Java, the workers are its children.
    daemons = {pid for pid, parent in ours.items() if parent == java}
    return sorted((pid for pid, parent in ours.items() if parent in daemons), reverse=True)
