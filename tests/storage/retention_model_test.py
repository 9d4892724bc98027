"""Retention against a list of records: after each check the log begins where Kafka's rules say, applied to the list."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.record.batch import Record, encode_batch, header_at, set_append_time

SEGMENT = 2000
DELAY_MS = 1000
BASE = {"segment_bytes": SEGMENT, "index_interval_bytes": 300, "file_delete_delay_ms": DELAY_MS, "segment_ms": 1 << 40}
"""Of a topic whose settings change."""

SECOND = 1000
ages = st.one_of(st.none(), st.integers(-2, 6))
"""The age of a record when it is written, in seconds; negative: from the future; None: it has no timestamp."""
rows = st.lists(st.tuples(ages, st.sampled_from([0, 50, 600])), min_size=1, max_size=3)
policies = st.sampled_from([("delete",), ("delete",), ("compact",), ("compact", "delete")])
append = st.tuples(st.just("append"), rows)
check = st.tuples(st.just("check"), st.none())
STEP = st.one_of(
    append,
    append,
    append,
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("pass"), st.integers(0, 4)),
    st.tuples(st.just("commit"), st.sampled_from([1.0, 1.0, 0.5])),
    st.tuples(st.just("delete records"), st.integers(0, 4)),
    st.tuples(st.just("keep seconds"), st.tuples(st.sampled_from([-1, 0, 1, 3]), policies, st.booleans())),
    st.tuples(st.just("keep segments"), st.tuples(st.integers(0, 3), st.sampled_from([-1, 0, 1]), policies)),
    check,
    check,
    st.tuples(st.just("stop"), st.none()),
    st.tuples(st.just("kill"), st.none()),
)


class Batch(NamedTuple):
    """A batch of the list."""

    base: int
    end: int
    size: int
    largest: int
    """Its largest timestamp; -1: it has none."""
    written_ms: int


class Piece(NamedTuple):
    """A segment: the log decides where it begins, the list what it contains."""

    base: int
    end: int
    size: int
    largest: int


class Both:
    """The log and the list."""

    def __init__(self, kit: Any) -> None:
        self.kit = kit
        self.world = kit.SimWorld()
        self.config = TopicConfig(**BASE, retention_ms=-1)
        self.shelf = kit.Shelf(self.world, self.config)
        self.records: list[Record] = []
        self.batches: list[Batch] = []
        self.start = self.end = self.mark = 0

    @property
    def now_ms(self) -> int:
        return self.world.clock.now().wall_ms

    def step(self, verb: str, argument: Any) -> None:
        getattr(self, "do_" + verb.replace(" ", "_"))(argument)
        self.world.settle()
        self.shelf.log.high_watermark = max(self.mark, self.shelf.log.start_offset)
        self.compare()

    def do_append(self, rows: list[tuple[int | None, int]]) -> None:
        now = self.now_ms
        stamps = [-1 if age is None else now - age * SECOND for age, _ in rows]
        made = [Record(at, stamps[at], None, b"v" * size) for at, (_, size) in enumerate(rows)]
        batch = encode_batch(made)
        if self.config.message_timestamp_type == "LogAppendTime":
            set_append_time(batch, 0, now)
            made = [record._replace(timestamp=now) for record in made]
        self.batches.append(Batch(self.end, self.end + len(made), len(batch), header_at(batch).max_timestamp, now))
        assert self.shelf.put(batch) == [self.end]
        self.records += [record._replace(offset=self.end + record.offset) for record in made]
        self.end += len(made)

    def do_roll(self, _: None) -> None:
        self.shelf.log.roll_segment()

    def do_pass(self, seconds: int) -> None:
        self.world.advance(seconds * SECOND)

    def do_commit(self, share: float) -> None:
        self.mark = max(self.mark, int(share * self.end))

    def do_delete_records(self, segments: int) -> None:
        """Exactly this many segments, as far as they are committed; or up to the middle of the log."""
        pieces = self.pieces()
        wanted = pieces[segments].base if segments < len(pieces) else (self.start + self.end) // 2
        self.start = max(self.start, min(wanted, self.mark))
        self.shelf.log.set_start_offset(self.start)

    def do_keep_seconds(self, chosen: tuple[int, tuple[str, ...], bool]) -> None:
        seconds, policy, append_time = chosen
        kind = "LogAppendTime" if append_time else "CreateTime"
        self.configure(
            retention_ms=-1 if seconds < 0 else seconds * SECOND, cleanup_policy=policy, message_timestamp_type=kind
        )

    def do_keep_segments(self, chosen: tuple[int, int, tuple[str, ...]]) -> None:
        """Exactly the bytes of the newest segments, or one more, or one fewer."""
        count, more, policy = chosen
        pieces = self.pieces()
        size = sum(piece.size for piece in pieces[len(pieces) - count :]) if count < len(pieces) else 0
        self.configure(retention_ms=-1, retention_bytes=max(0, size + more), cleanup_policy=policy)
        self.do_commit(1.0)
        self.shelf.log.high_watermark = self.mark
        self.do_check(None)

    def configure(self, **changed: Any) -> None:
        self.config = TopicConfig(**BASE, **changed)
        self.shelf.config = self.config
        self.shelf.log.apply_config(self.config)

    def do_check(self, _: None) -> None:
        pieces = self.pieces()
        left = self.expected(pieces)
        dropped = self.shelf.log.delete_old_segments(self.world.clock.now())
        assert dropped == len(pieces) - len(left)
        self.start = max(self.start, left[0].base if left else self.end)
        self.world.settle()
        self.names_are_right()

    def do_stop(self, _: None) -> None:
        assert self.shelf.stop() is None
        self.shelf = self.shelf.again(self.config)

    def do_kill(self, _: None) -> None:
        self.shelf.manager.dirs[0].checkpoint_starts()
        self.world.settle()
        self.world.restart()
        self.shelf = self.shelf.again(self.config)

    # -- the list --------------------------------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        """The segments according to the list."""
        bases = [segment.base_offset for segment in self.shelf.log.segments]
        assert bases == sorted(set(bases))
        found = []
        for base, end in zip(bases, [*bases[1:], self.end], strict=True):
            inside = [batch for batch in self.batches if base <= batch.base < end]
            largest = max((batch.largest for batch in inside), default=-1)
            if largest < 0:
                largest = max((batch.written_ms for batch in inside), default=0)
            found.append(Piece(base, end, sum(batch.size for batch in inside), largest))
        return found

    def expected(self, pieces: list[Piece]) -> list[Piece]:
        """The segments that Kafka keeps: three loops over the oldest, none of which passes the high watermark."""
        left, now, config = list(pieces), self.now_ms, self.config
        spare = sum(piece.size for piece in left) - config.retention_bytes

        def may_go() -> bool:
            is_empty_active = len(left) == 1 and not left[0].size
            return bool(left) and left[0].end <= self.mark and not is_empty_active

        while config.delete and config.retention_ms >= 0 and may_go() and now - left[0].largest > config.retention_ms:
            spare -= left.pop(0).size
        while config.delete and config.retention_bytes >= 0 and may_go() and spare >= left[0].size:
            spare -= left.pop(0).size
        while len(left) > 1 and may_go() and left[1].base <= self.start:
            left.pop(0)
        return left

    # -- both ------------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        log = self.shelf.log
        assert (log.start_offset, log.end_offset) == (self.start, self.end)
        seen = [record for record in self.records if record.offset >= self.start]
        assert self.kit.read_all(self.world, log, max_bytes=900) == seen
        assert log.size == sum(piece.size for piece in self.pieces())

    def names_are_right(self) -> None:
        """Removed segments are renamed now, and deleted after file.delete.delay.ms; the others keep their names."""
        live = {f"{segment.base_offset:020}.log" for segment in self.shelf.log.segments}
        assert {name for name in self.world.names("t-0") if name.endswith(".log")} == live
        self.world.advance(DELAY_MS)
        self.shelf.manager.timers.run(self.world.clock.now().mono_ns)
        self.world.settle()
        assert not [name for name in self.world.names("t-0") if name.endswith(".deleted")]


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=8, max_size=25))
def test_retention_is_kafkas_over_a_list(kit: Any, steps: list[tuple[str, Any]]) -> None:
    both = Both(kit)
    for verb, argument in steps:
        both.step(verb, argument)
    both.step("kill", None)
    both.step("check", None)
