"""A query that its author changes between two runs. The test replaces Spark; the source that plans, the sink
that writes, and the broker are real.

A run stops at a place that the test chooses. Its tasks and driver are then dead, or zombies that wake up later.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from testbench.spark_chaos.points import At, PointedWriter
from tests.spark.planning import Offset, logged, stream

from ottla.client.admin.groups import GroupAdmin, GroupOffset
from ottla.client.batch_transaction import BatchTransaction, ConnectionCache
from ottla.client.errors import ClientError, values_of
from ottla.client.settings import ClientConfig
from ottla.spark.errors import ChangedUnit, ExpiredTransaction, Fenced, StaleDriver, UnstableRows
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.batch_decision import parts_base
from ottla.spark.sink.exactly_once import ADAPTIVE, ADAPTIVE_STREAMS, BATCH, QUERY, TaskBatch
from ottla.spark.sink.sink_options import DEFAULT_SINK, PREFIX, sink_options
from ottla.spark.sink.whole_batches import BatchCalls
from ottla.spark.sink.writers import BatchWriter, StreamWriter, Written
from ottla.spark.sink.writing import write_batches
from ottla.spark.source.readers import Part
from ottla.spark.source.source_positions import COLUMN, TaskPosition
from ottla.spark.tasks import Task
from ottla.types import TopicPartition

ROWS = 3
WAKE_S = 60.0
"""The longest that a zombie sleeps, so that a test that forgets it ends."""
LATE = (Fenced, StaleDriver, ChangedUnit, ExpiredTransaction, UnstableRows, ClientError)
"""The errors that a zombie may get."""


class Version(NamedTuple):
    """The author's version of the query."""

    unit: str = "auto"
    """The option exactlyOnce."""
    spread: str = "read"
    """How rows come to tasks, one of SPREADS."""
    adaptive: bool = True
    """Adaptive execution, Spark's default."""
    sink: str = ""
    prefix: str = ""
    topic: int = 0
    """Which of the topics is written."""
    partitions: int = 1
    """Of the topic that is written: more are made."""
    text: str = "a"
    """What the expression puts before each value."""
    offsets: str = "auto"
    group: str = "readers"
    reads: tuple[int, ...] = (0,)
    """Which of the topics are read."""
    foreach: bool = False
    """By write_batch within foreachBatch."""
    late: bool = False
    """A task begins to read its second range only after its first rows have been written, as Spark's readers do."""


class Place(NamedTuple):
    """Where a run of a batch stops."""

    name: str
    tasks: tuple[str, ...] = ()
    """How far each task comes, of those that begin: fence (the id is about to be taken), begun (it is taken), prepared
    (all is in the transaction), or ended."""
    driver: str = ""
    """How far the driver comes: all (every task has ended), sent, decided or half (points of `PointedCalls`; to the end
    where there is none), committed (its own commit is through), or logged (Spark has noted that the batch is
    finished)."""


class Died(BaseException):
    """The process was killed: nothing is tidied up."""


class _StreamWriter(PointedWriter, StreamWriter):
    pass


class _BatchWriter(PointedWriter, BatchWriter):
    pass


class Rows(NamedTuple):
    """What a task gets."""

    parts: list[Part]
    """The ranges that it has read itself; none after a shuffle."""
    rows: list[tuple[TopicPartition, int]]


def _read(scans: list[list[Part]]) -> list[Rows]:
    return [Rows([part], rows_of(part)) for part in scans[0]]


def _coalesced(scans: list[list[Part]]) -> list[Rows]:
    return [Rows(scans[0], [row for part in scans[0] for row in rows_of(part)])]


def _shuffled(number: int) -> Callable[[list[list[Part]]], list[Rows]]:
    def spread(scans: list[list[Part]]) -> list[Rows]:
        rows = [row for part in scans[0] for row in rows_of(part)]
        return [Rows([], rows[task::number]) for task in range(number)]

    return spread


def _union(scans: list[list[Part]]) -> list[Rows]:
    """Even offsets, then odd ones."""
    return [
        Rows([part], [row for row in rows_of(part) if row[1] % 2 == half])
        for half, parts in enumerate(scans)
        for part in parts
    ]


def _mixed(moved: int) -> Callable[[list[list[Part]]], list[Rows]]:
    """One of the tasks gets rows of another, and the others have their own."""

    def spread(scans: list[list[Part]]) -> list[Rows]:
        return [Rows([] if number == moved else [part], rows_of(part)) for number, part in enumerate(scans[0])]

    return spread


def _beside(before: int, after: int) -> Callable[[list[list[Part]]], list[Rows]]:
    """Rows that their tasks have read, and rows of a shuffle: in so many tasks before and after those."""

    def spread(scans: list[list[Part]]) -> list[Rows]:
        places, tasks = len(scans) + 1, before + after
        own = [
            Rows([part], [row for row in rows_of(part) if row[1] % places == place])
            for place, parts in enumerate(scans)
            for part in parts
        ]
        rest = [row for part in scans[0] for row in rows_of(part) if row[1] % places == len(scans)]
        moved = [Rows([], rest[task::tasks]) for task in range(tasks)]
        return [*moved[:before], *own, *moved[before:]]

    return spread


SPREADS: Mapping[str, Callable[[list[list[Part]]], list[Rows]]] = {
    "read": _read,
    "coalesced": _coalesced,
    "one": _shuffled(1),
    "two": _shuffled(2),
    "three": _shuffled(3),
    "union": _union,
    "mixed": _mixed(0),
    "mixed, own rows first": _mixed(1),
    **{f"{number} moved first": _beside(number, 0) for number in (1, 2, 3, 4)},
    **{f"{number} moved last": _beside(0, number) for number in (1, 2, 3, 4)},
    **{f"{number} moved before a union": _beside(number, 0) for number in (1, 2, 3, 4)},
    **{f"{number} moved before two loads": _beside(number, 0) for number in (1, 2, 3, 4)},
}


def rows_of(part: Part) -> list[tuple[TopicPartition, int]]:
    """The records of a range."""
    wanted = part.range
    return [(wanted.tp, offset) for offset in range(wanted.start, wanted.end)]


class Sleeper:
    """A task or a driver that is asleep; `wake` lets it continue to its end."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        """work: takes what it has to call where it sleeps."""
        self._reached, self._woken = threading.Event(), threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()
        assert self._reached.wait(WAKE_S)
        assert not self._errors, self._errors

    def wake(self) -> list[BaseException]:
        """Let it continue to its end. Returns its error, if it had one."""
        self._woken.set()
        self._thread.join(WAKE_S)
        assert not self._thread.is_alive()
        for error in self._errors:
            assert isinstance(error, LATE), error
        return self._errors

    def _run(self, work: Callable[[Callable[[], None]], None]) -> None:
        try:
            work(self._sleep)
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._reached.set()

    def _sleep(self) -> None:
        self._reached.set()
        assert self._woken.wait(WAKE_S)


class Query:
    """A checkpoint, its topics, and the runs over it."""

    def __init__(self, topics: Any, safeguards: SinkSafeguards = ALL_ON) -> None:
        self.topics = topics
        self.safeguards = safeguards
        self._sources: dict[int, str] = {}
        self._sinks: dict[int, str] = {}
        self.id = f"query-{self._source_topic(0)}"
        self.batch = 0
        self._sleepers: list[Sleeper] = []
        self._last: Offset | None = None
        self._pending: tuple[Offset, Offset] | None = None
        self._partitions = [1, 1]
        self._groups: set[str] = set()
        self._ids: set[str] = set()
        self._committed: set[tuple[TopicPartition, int]] = set()
        self._wanted: Counter[str] = Counter()

    def more(self) -> None:
        """More records in the first source."""
        for number in range(2):
            self.topics.put(self._sources[0], number, [b"x"] * ROWS)

    def _source_topic(self, number: int) -> str:
        """The first has two partitions; the other one is made where it is read."""
        if number not in self._sources:
            self._sources[number] = topic = self.topics.make(2 - number)
            for partition in range(2 - number):
                self.topics.put(topic, partition, [b"x"] * ROWS)
        return self._sources[number]

    def _sink_topic(self, number: int) -> str:
        if number not in self._sinks:
            self._sinks[number] = self.topics.make(1)
        return self._sinks[number]

    def run(self, version: Version, place: Place | None = None, *, asleep: bool = False) -> None:
        """One batch: the one that was left unfinished, or the next. Raises what its tasks raise.

        place: where the run stops. asleep: its tasks and driver become zombies, which `wake` lets continue.
        """
        self._add_partitions(version)
        with stream(self.topics, **self._source(version)) as reader:
            start, end = self._next(reader)
            scans = [list(reader.partitions(start, end)) for _ in range(1 + ("union" in version.spread))]
        if "loads" in version.spread:
            with stream(self.topics, **self._source(version)) as reader:
                scans.append(list(reader.partitions(start, end)))
        writer, messages = self._writer(version), []
        tasks = SPREADS[version.spread](scans)
        for number, rows in enumerate(tasks):
            stop = "ended" if place is None or place.driver else (*place.tasks, *[""] * len(tasks))[number]
            if stop:
                messages.append(self._task(version, writer, number, rows, stop, asleep=asleep))
        if place is not None and not place.driver:
            return
        if place is not None and place.driver == "all":
            if asleep:
                self._sleepers.append(Sleeper(lambda sleep: (sleep(), self._commit(writer, messages, tasks))))
            return
        if place is not None and place.driver in ("sent", "decided", "half"):
            self._die_in_commit(writer, messages, tasks, place.driver)
            return
        self._commit(writer, messages, tasks)
        if place is None or place.driver == "logged":
            self._pending, self._last, self.batch = None, end, self.batch + 1

    def wake(self) -> list[BaseException]:
        """Let all sleeping tasks and drivers continue to their end. Returns their errors."""
        errors = list[BaseException]()
        while self._sleepers:
            errors += self._sleepers.pop().wake()
        return errors

    def counts(self) -> tuple[list[str], list[str]]:
        """Missing rows and duplicate rows of all planned batches."""
        self._end_what_is_open()
        found = Counter(
            value.decode().partition(":")[2] for sink in self._sinks.values() for value in self.topics.values(sink)
        )
        return sorted((self._wanted - found).elements()), sorted((found - self._wanted).elements())

    def open_parts(self) -> list[str]:
        """The open transactions of whole batches and rests."""
        links = ConnectionCache(ClientConfig(bootstrap_servers=self.topics.bootstrap))
        try:
            return [*BatchCalls(links, 60_000).list_open(parts_base(TaskBatch(PREFIX, self.id, DEFAULT_SINK, 0, 0)))]
        finally:
            links.close_connections()

    def _end_what_is_open(self) -> None:
        """Abort open transactions, as the coordinator does after their timeout: they hide later rows from readers."""
        links = ConnectionCache(ClientConfig(bootstrap_servers=self.topics.bootstrap))
        try:
            for name in self._ids:
                BatchTransaction(links, name, 60_000).fence_producer()
        finally:
            links.close_connections()

    def ahead(self) -> list[TopicPartition]:
        """Partitions of the source where a group is past rows that are not committed."""
        found = []
        for group in self._groups:
            for tp, at in GroupAdmin(self.topics.cluster).group_offsets(group).items():
                done = next(offset for offset in count() if (tp, offset) not in self._committed)
                if isinstance(at, GroupOffset) and at.offset > done:
                    found.append(tp)
        return found

    def _next(self, reader: Any) -> tuple[Offset, Offset]:
        """The offsets of the batch, which are logged before it begins."""
        if self._pending is None:
            start = self._last if self._last is not None else logged(reader.initialOffset())
            end = logged(reader.latestOffset(start, ReadAllAvailable()))
            self._pending = start, end
            rows = [row for part in reader.partitions(start, end) for row in rows_of(part)]
            self._wanted.update(f"{tp}-{offset}" for tp, offset in rows)
            reader._scanned = None  # Spark plans once
        return self._pending

    def _source(self, version: Version) -> dict[str, str]:
        named = ",".join(self._source_topic(number) for number in version.reads)
        group = f"{self.id}-{version.group}"
        self._groups.add(group)
        return {"subscribe": named, "startingOffsets": "earliest", "kafka.group.id": group}

    def _writer(self, version: Version) -> Any:
        options = {**self.topics.options, "topic": self._sink_topic(version.topic), "exactlyOnce": version.unit}
        options |= {"sink": version.sink} if version.sink else {}
        options |= {"transactionalIdPrefix": version.prefix} if version.prefix else {}
        if version.foreach:
            options = {"sink": "sink", **options}
        else:
            options |= {"offsetsInTransaction": version.offsets, "sourceGroup": f"{self.id}-{version.group}"}
        writer = (_BatchWriter if version.foreach else _StreamWriter)(sink_options(options))
        writer.safeguards = self.safeguards
        return writer

    def _task(self, version: Version, writer: Any, number: int, rows: Rows, stop: str, *, asleep: bool) -> Any:
        """The task's message to the driver, if it comes to its end."""

        def dies(point: str, _turn: TaskBatch) -> None:
            if point == stop:
                raise Died

        def sleeps(sleep: Callable[[], None]) -> None:
            self._write(version, writer, number, rows, lambda point, _turn: sleep() if point == stop else None)

        if asleep and stop != "ended":
            self._sleepers.append(Sleeper(sleeps))
            return None
        try:
            return self._write(version, writer, number, rows, dies)
        except Died:
            return None

    def _write(self, version: Version, writer: Any, number: int, rows: Rows, at: At) -> Written:
        if writer._scope is None:
            return Written(write_batches(writer._options, [self._encoded(version, rows)]))
        adaptive = str(version.adaptive).lower()
        settings = {QUERY: self.id, BATCH: str(self.batch), ADAPTIVE: adaptive, ADAPTIVE_STREAMS: adaptive}
        cluster = self.topics.cluster.view.cluster_id
        known = [TaskPosition(cluster, part.group, part.range.tp, part.range.end, part.place) for part in rows.parts]
        notes = known[:1] if version.late else known
        task, mine = Task(number, settings.get, lambda: notes), copy.copy(writer)
        mine.at = at
        turn, links = mine._task_batch(task), ConnectionCache(writer._options.client)
        self._ids.add(turn.name)
        try:
            written = mine._write_transactional(links, task, turn, self._coming(version, rows, notes, known))
        finally:
            links.close_connections()
        if written.result is None or written.result.prepared is None:
            self._committed.update(rows.rows)
        return written  # type: ignore[no-any-return]

    def _coming(
        self, version: Version, rows: Rows, notes: list[TaskPosition], known: list[TaskPosition]
    ) -> Iterator[pa.RecordBatch]:
        yield self._encoded(version, rows)
        notes[:] = known

    def _encoded(self, version: Version, rows: Rows) -> pa.RecordBatch:
        values = [f"{version.text}:{tp}-{offset}" for tp, offset in rows.rows]
        columns = {"value": pa.array(values, pa.string())}
        if version.unit == "batch":
            made = [{"topic": tp.topic, "partition": tp.partition, "offset": at} for tp, at in rows.rows]
            kinds = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
            columns[COLUMN] = pa.array(made, pa.struct(kinds))
        return pa.record_batch(columns)

    def _die_in_commit(self, writer: Any, messages: Sequence[Any], tasks: Sequence[Rows], stop: str) -> None:
        def dies(point: str, _turn: TaskBatch) -> None:
            if point == stop:
                raise Died

        writer.at = dies
        with contextlib.suppress(Died):
            self._commit(writer, messages, tasks)

    def _commit(self, writer: Any, messages: Sequence[Any], tasks: Sequence[Rows]) -> None:
        writer.commit(messages, *([self.batch] if writer.streaming else []))
        for rows in tasks:
            self._committed.update(rows.rows)

    def _add_partitions(self, version: Version) -> None:
        if version.partitions > self._partitions[version.topic]:
            name = self._sink_topic(version.topic)
            values_of(self.topics.admin().create_partitions({name: version.partitions}))
            self._partitions[version.topic] = version.partitions
