"""`format("ottla_chaos")`: Ottla's source and sink, with strikes at points between their steps.

Zone: real. Runs in Spark's Python workers and on its driver. The points are in `points`; a strike is a file that the
first process at its point removes, so each happens once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from ottla.spark.safeguards import SinkSafeguards
from ottla.spark.sink.exactly_once import BATCH, TaskBatch
from ottla.spark.sink.writers import BatchWriter, StreamWriter, Written
from ottla.spark.source.source import OttlaSource
from testbench.spark_chaos import brokers
from testbench.spark_chaos.points import PointedWriter
from testbench.spark_chaos.waiting import GO


class Chaos(Exception):
    """A strike that raises."""


class Strikes:
    """The remaining strikes: files `point@b=1,p=0=action` in a directory."""

    def __init__(self, place: str, bootstrap: str, topic: str) -> None:
        self.place = Path(place)
        self._bootstrap = bootstrap
        self._topic = topic

    def at(self, point: str, batch: int, partition: int | None = None, name: str = "") -> None:
        """Carry out the strikes of this point; `name` is that of the transaction."""
        for strike in sorted(os.listdir(self.place)):
            where, _, action = strike.partition("=")
            if where not in (f"{point}@{batch}", f"{point}@{batch}.{partition}"):
                continue
            try:
                os.rename(self.place / strike, self.place.parent / f"{strike}.done-{time.time_ns()}")
            except FileNotFoundError:
                continue  # another process took the strike
            if action in brokers.ROLES:
                brokers.kill(action, self._status, self._bootstrap, self._topic, name)
            else:
                self._carry_out(action, strike)

    @property
    def _status(self) -> Path:
        """The status file of the brokers' supervisor."""
        return Path((self.place.parent.parent / "brokers").read_text())

    def _carry_out(self, action: str, name: str) -> None:
        if action == "raise":
            raise Chaos(name)
        if action == "exit":
            os._exit(17)
        if action == "driver":
            os.kill(int((self.place.parent / "jvm.pid").read_text()), signal.SIGKILL)
            time.sleep(60)
        if action == "wait":
            while not (self.place.parent / GO).exists():
                time.sleep(0.1)
        if action == "executor":
            _kill_executor()
        if action.startswith("sleep"):
            for number in (signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(float(action[5:]))


def _kill_executor() -> None:
    """The parent of the daemon that forked this worker, if it is a separate executor."""
    above = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{above}/cmdline").read_bytes():
        os.kill(above, signal.SIGKILL)
        time.sleep(60)


class _Struck(PointedWriter):
    """The common part of both writers."""

    strikes: Strikes
    _scope: Any

    def at(self, point: str, turn: TaskBatch) -> None:
        """A point of an attempt."""
        self.strikes.at(point, turn.batch, turn.partition, turn.name)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        if self._scope is not None:
            return super().write(iterator)  # type: ignore[misc,no-any-return]
        context = TaskContext.get()
        batch, partition = int(context.getLocalProperty(BATCH)), context.partitionId()
        self.strikes.at("start", batch, partition)
        written = super().write(self._tapped(iterator, batch, partition))  # type: ignore[misc]
        for point in ("before", "after"):
            self.strikes.at(point, batch, partition)
        return written  # type: ignore[no-any-return]

    def _tapped(self, iterator: Iterator[pa.RecordBatch], batch: int, partition: int) -> Iterator[pa.RecordBatch]:
        for one in iterator:
            yield one
            self.strikes.at("mid", batch, partition)


class StruckStreamWriter(_Struck, StreamWriter):
    """`df.writeStream`, one batch."""

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        self.strikes.at("commit", batchId)
        super().commit(messages, batchId)
        self.strikes.at("committed", batchId)


class StruckBatchWriter(_Struck, BatchWriter):
    """`df.write`, within foreachBatch."""

    def commit(self, messages: Any) -> None:
        batch = next((one.result.turn.batch for one in messages if one is not None and one.result is not None), -1)
        self.strikes.at("commit", batch)
        super().commit(messages)
        self.strikes.at("committed", batch)


class ChaosSource(OttlaSource):
    """The option `chaos` names the directory of the strikes; `unsafe` switches off a safeguard."""

    @classmethod
    def name(cls) -> str:
        return "ottla_chaos"

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:  # noqa: ARG002 - Spark's signature
        return self._struck(StruckBatchWriter(self._checked_options(schema)))

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802
        return self._struck(StruckStreamWriter(self._checked_options(schema)))

    def _struck(self, writer: Any) -> Any:
        options = self.options
        writer.strikes = Strikes(options["chaos"], options["kafka.bootstrap.servers"], options["topic"])
        if "unsafe" in self.options:
            writer.safeguards = SinkSafeguards(**{self.options["unsafe"]: False})
        return writer
