"""A batch of many tasks, against a model of a broker: at every step the driver may die, or another one runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from ottla.client.positions import OffsetAndMetadata
from ottla.spark.errors import BadCheckpoint, ExpiredTransaction, Fenced, IncompleteBatch, StaleDriver, TooManyTasks
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.batch_decision import (
    Batch,
    Part,
    Stray,
    abort_batch,
    abort_parts,
    commit_batch,
    finish_batch,
    list_files,
    list_name,
    list_parts,
    parse_files,
    parse_parts,
    parts_base,
)
from ottla.spark.sink.exactly_once import MOST_LISTS, Marker, TaskBatch, already_written, marker_position, parse_marker

TURN = TaskBatch("ottla-", "3f1c", "sink", 0, 0)
BATCHES = 2
ROWS = 6
"""Rows of a batch; each run distributes them differently."""


class Killed(BaseException):
    """The process is gone; nothing of it runs any more."""


@dataclass
class Transaction:
    producer_id: int
    epoch: int = 0
    open: bool = False
    rows: list[str] = field(default_factory=list)
    positions: dict[str, OffsetAndMetadata] = field(default_factory=dict)


class Model:
    """A broker: transactional ids, and what is committed. `at` is called before and after the effect of each step."""

    def __init__(self) -> None:
        self.ids: dict[str, Transaction] = {}
        self.rows: Counter[str] = Counter()
        self.positions: dict[str, OffsetAndMetadata] = {}
        self.at: Callable[[], None] = lambda: None
        self._producers = count()

    def init(self, name: str) -> Part:
        self.at()
        found = self.ids.setdefault(name, Transaction(next(self._producers)))
        self._close(found)
        taken = Part(0, name, found.producer_id, found.epoch, 2)
        self.at()
        return taken

    def send(self, part: Part, rows: Iterable[str], positions: Mapping[str, OffsetAndMetadata]) -> None:
        self.at()
        found = self._of(part)
        if found is None:
            raise Fenced(part.name)
        found.open = True
        found.rows += rows
        found.positions |= positions
        self.at()

    def end(self, part: Part, *, commit: bool) -> bool:
        self.at()
        found = self._of(part)
        if found is None or not found.open:
            return False
        if commit:
            self.rows.update(found.rows)
            self.positions |= found.positions
        self._close(found)
        self.at()
        return True

    def expire(self, base: str = "") -> None:
        for name, found in self.ids.items():
            if found.open and name.startswith(base):
                self._close(found)

    def _of(self, part: Part) -> Transaction | None:
        found = self.ids[part.name]
        return found if (found.producer_id, found.epoch) == (part.producer_id, part.epoch) else None

    def _close(self, found: Transaction) -> None:
        found.rows, found.positions, found.open = [], {}, False
        found.epoch += 1


class Calls:
    """The seam over the model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def list_open(self, base: str) -> Mapping[str, int]:
        self.model.at()
        found = {name: one.producer_id for name, one in self.model.ids.items() if one.open and name.startswith(base)}
        self.model.at()
        return found

    def describe_strays(self, names: Iterable[str]) -> Sequence[Stray]:
        self.model.at()
        found = {name: self.model.ids[name] for name in names}
        return [Stray(name, one.producer_id, one.epoch) for name, one in sorted(found.items()) if one.open]

    def send_decision(self, decider: Part, batch: Batch, lists: Sequence[OffsetAndMetadata]) -> None:
        for number, each in enumerate(lists):
            self.model.send(decider, [], {list_name(batch.turn, number): each})
        marker = marker_position(batch.turn, batch.rows, lists=len(lists))
        self.model.send(decider, [], {batch.turn.name: marker})

    def commit_decider(self, decider: Part) -> None:
        if not self.model.end(decider, commit=True):
            raise Fenced(decider.name)

    def commit_part(self, part: Part) -> bool:
        return self.model.end(part, commit=True)

    def is_part_committed(self, part: Part, turn: TaskBatch) -> bool:
        self.model.at()
        marker = parse_marker(self.model.positions.get(part.name), part.name)
        return marker is not None and marker.query == turn.query and marker.batch >= turn.batch

    def abort(self, part: Part) -> bool:
        return self.model.end(part, commit=False)

    def is_undecided(self, turn: TaskBatch) -> bool:
        self.model.at()
        marker = parse_marker(self.model.positions.get(turn.name), turn.name)
        return marker is None or marker.batch < turn.batch

    def fence_stray(self, stray: Stray) -> None:
        self.model.at()
        found = self.model.ids[stray.name]
        if (found.producer_id, found.epoch) == (stray.producer_id, stray.epoch):
            self.model.init(stray.name)


class Query:
    """A query with a checkpoint, run by any number of drivers."""

    def __init__(self, safeguards: SinkSafeguards = ALL_ON) -> None:
        self.model = Model()
        self.calls = Calls(self.model)
        self.safeguards = safeguards
        self.checkpoint = 0
        """The next batch."""
        self._runs = count()
        self._names = count()

    def run(self, *, aborts: bool = True) -> None:
        """A driver, to its end. aborts: Spark calls `abort` after an error."""
        run = next(self._runs)
        while (batch := self.checkpoint) < BATCHES:
            turn, tasks = replace_batch(batch), 2 + (batch + run) % 2
            found: list[tuple[Part, list[str]] | None] = []
            try:
                for task in range(tasks):
                    # Another run distributes the rows differently: as an adaptive shuffle.
                    rows = [f"{batch}.{row}" for row in range(ROWS) if (row + run) % tasks == task]
                    found.append(self._task(turn, task, rows))
                self._commit(turn, found)
            except (Fenced, StaleDriver, ExpiredTransaction, IncompleteBatch):
                if aborts:
                    self._abort(turn, found)
                raise
            if self.checkpoint != batch:
                raise StaleDriver("Spark's own check of its checkpoint")
            self.checkpoint += 1

    def _task(self, turn: TaskBatch, task: int, rows: list[str]) -> tuple[Part, list[str]] | None:
        if task:
            part = self.model.init(f"{parts_base(turn)}{next(self._names)}")._replace(partition=task)
            self.model.send(part, rows, {part.name: marker_position(turn._replace(partition=task), len(rows))})
            return part, rows
        part = self.model.init(turn.name)
        marker = parse_marker(self.model.positions.get(turn.name), turn.name)
        if already_written(turn, marker):
            assert marker is not None
            lists = [self.model.positions.get(list_name(turn, number)) for number in range(marker.lists)]
            finish_batch(self.calls, parse_parts(turn, marker, lists), self.safeguards)
            return None
        self.model.send(part, rows, {turn.name: marker_position(turn, len(rows))})
        return part, rows

    def _commit(self, turn: TaskBatch, found: list[tuple[Part, list[str]] | None]) -> None:
        first, *others = found
        parts = tuple(one[0] for one in others if one is not None)
        if first is None:
            abort_parts(self.calls, parts)
            return
        commit_batch(self.calls, Batch(turn, ROWS, parts), first[0], is_open=True, safeguards=self.safeguards)

    def _abort(self, turn: TaskBatch, found: list[tuple[Part, list[str]] | None]) -> None:
        parts = [one[0] for one in found[1:] if one is not None]
        abort_batch(self.calls, turn, found[0][0] if found and found[0] is not None else None, parts)

    def finish(self) -> None:
        """Drivers start until one reaches the end."""
        self.model.at = lambda: None
        for _ in range(3):
            try:
                self.run()
            except (Fenced, StaleDriver, ExpiredTransaction):
                continue
            return
        raise AssertionError("the query does not end")

    def is_exact(self) -> bool:
        return self.model.rows == Counter(f"{batch}.{row}" for batch in range(BATCHES) for row in range(ROWS))


def replace_batch(batch: int) -> TaskBatch:
    return TURN._replace(batch=batch)


def at_step(number: int, act: Callable[[], None]) -> Callable[[], None]:
    """Act at one step, once."""
    steps = count()

    def at() -> None:
        if next(steps) == number:
            act()

    return at


def kill() -> None:
    raise Killed


def steps_of_a_run() -> int:
    query, steps = Query(), count()
    query.model.at = lambda: next(steps) and None
    query.run()
    return next(steps)


STEPS = steps_of_a_run()


def run_until(query: Query, step: int, act: Callable[[], None]) -> None:
    query.model.at = at_step(step, act)
    try:
        query.run()
    except (Killed, Fenced, StaleDriver, ExpiredTransaction):
        return


def test_drivers_that_are_killed_at_every_step_write_every_row_once() -> None:
    assert STEPS > 40
    for first in range(STEPS):
        for second in range(first % 3, STEPS, 3):
            query = Query()
            run_until(query, first, kill)
            run_until(query, second, kill)
            query.finish()
            assert query.is_exact(), (first, second, query.model.rows)


def test_a_driver_that_sleeps_at_any_step_while_another_runs_changes_nothing() -> None:
    for step in range(STEPS):
        for other in range(step % 5, STEPS, 5):
            query = Query()

            def another(query: Query = query, other: int = other) -> None:
                run_until(query, other, kill)
                query.model.at = lambda: None

            run_until(query, step, another)
            query.finish()
            assert query.is_exact(), (step, other, query.model.rows)


def test_an_expired_transaction_is_reported_wherever_the_driver_was_killed() -> None:
    """All open transactions expire after the death of the driver. Rows that are missing then are named."""
    outcomes = Counter[str]()
    for step in range(STEPS):
        query = Query()
        run_until(query, step, kill)
        query.model.expire()
        try:
            query.finish()
        except IncompleteBatch:
            outcomes["incomplete"] += 1
            with pytest.raises(IncompleteBatch, match="rows of partitions"):  # the next start does not pass it over
                query.finish()
            continue
        outcomes["exact"] += 1
        assert query.is_exact(), (step, query.model.rows)
    assert outcomes["incomplete"]
    assert outcomes["exact"]


def test_transactions_that_expire_while_the_driver_runs_are_found_before_the_decision_or_reported() -> None:
    for step in range(STEPS):
        query = Query()
        run: Callable[[], None] = query.model.expire
        try:
            query.model.at = at_step(step, run)
            query.run()
        except (Fenced, ExpiredTransaction):
            query.finish()
        except IncompleteBatch:
            continue
        assert query.is_exact(), (step, query.model.rows)


def test_transactions_of_attempts_that_lost_are_fenced_when_a_batch_is_committed() -> None:
    query = Query()
    for _ in range(3):
        loser = query.model.init(f"{parts_base(TURN)}loser")
        query.model.send(loser, ["twice"], {})
    query.run()
    assert not [name for name, one in query.model.ids.items() if one.open]
    assert query.is_exact()


@pytest.mark.parametrize("off", ["parts_recorded", "lost_parts_reported"])
def test_rows_are_missing_silently_without_a_safeguard(off: str) -> None:
    missing = 0
    for step in range(STEPS):
        query = Query(replace(ALL_ON, **{off: False}))
        run_until(query, step, kill)
        if off == "lost_parts_reported":
            query.model.expire()
        query.finish()
        missing += not query.is_exact()
    assert missing


def test_a_batch_with_an_expired_part_is_written_again_because_parts_are_checked_before_the_decision() -> None:
    assert incomplete_runs(ALL_ON) < incomplete_runs(replace(ALL_ON, parts_checked=False))


def incomplete_runs(safeguards: SinkSafeguards) -> int:
    """At how many steps the expiry of the parts leaves a batch incomplete; all others are exact."""
    lost = 0
    for step in range(STEPS):
        query = Query(safeguards)
        try:
            run_until(query, step, lambda query=query: query.model.expire(parts_base(TURN)))
            query.finish()
        except IncompleteBatch:
            lost += 1
            continue
        assert query.is_exact(), (step, query.model.rows)
    return lost


def test_lists_name_every_part_and_come_back() -> None:
    base = parts_base(TURN)
    parts = tuple(Part(number, f"{base}0a1b2c3d4e5f.{number}", 9_000_000 + number, number, 2) for number in range(1000))
    batch = Batch(TURN, 5, parts)
    lists = list_parts(batch)
    assert 5 < len(lists) < 20
    assert all(len(each.metadata) <= 4096 and each.offset == 1 for each in lists)
    assert parse_parts(TURN, Marker("3f1c", 0, 5, None, len(lists)), lists) == batch
    assert list_parts(batch._replace(parts=())) == []


def test_a_batch_of_too_many_tasks_is_refused_before_it_is_decided() -> None:
    one = Part(1, parts_base(TURN) + "x" * 3_700, 1, 1, 2)
    with pytest.raises(TooManyTasks, match="coalesce"):
        list_parts(Batch(TURN, 1, (one,) * (MOST_LISTS + 1)))


@pytest.mark.parametrize(
    "found", [None, OffsetAndMetadata(2, -1, "[]"), OffsetAndMetadata(1, -1, '[["a",1]]'), OffsetAndMetadata(1, -1, "")]
)
def test_a_list_that_is_damaged_or_missing_is_named(found: OffsetAndMetadata | None) -> None:
    with pytest.raises(BadCheckpoint, match="damaged or missing"):
        parse_parts(TURN, Marker("3f1c", 0, 5, None, 1), [found])


def test_a_marker_names_the_number_of_its_lists() -> None:
    found = marker_position(TURN, 7, lists=3)
    assert parse_marker(found, TURN.name) == Marker("3f1c", 0, 7, None, 3)
    with pytest.raises(BadCheckpoint):
        parse_marker(found._replace(metadata=found.metadata.replace('"l":3', '"l":501')), TURN.name)


def test_the_files_of_a_batch_are_named_by_positions() -> None:
    files = tuple(f"data/day=2026-01-31/{number:05}-\u00fc.parquet" for number in range(300))
    batch = Batch(replace_batch(7), 0, (), files)
    lists = list_files(batch)
    assert len(lists) > 1
    assert all(len(each.metadata.encode()) < 4096 for each in lists)
    marker = parse_marker(marker_position(batch.turn, 0, files=len(lists)), "name")
    assert marker is not None
    assert (marker.files, parse_files(batch.turn, marker, lists)) == (len(lists), list(files))
    for damaged in ([None], [lists[0]._replace(offset=7)], [lists[0]._replace(metadata="[")]):
        with pytest.raises(BadCheckpoint, match="the list of the files of batch 7"):
            parse_files(batch.turn, marker, damaged)
    with pytest.raises(TooManyTasks, match="1 files, more than a decision can name"):
        list_files(batch._replace(files=("x" * 4000,)))
