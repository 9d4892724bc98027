"""A log against a plain list of records: the same operations give the same content."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.config.topic import TopicConfig
from ottla.record.batch import Record, encode_batch
from ottla.seams import Instant

CONFIG = TopicConfig(segment_bytes=3000, index_interval_bytes=300, segment_ms=5000, retention_ms=-1)

STEP = st.one_of(
    st.tuples(
        st.just("append"), st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 300)), min_size=1, max_size=4)
    ),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("start"), st.integers(0, 120)),
    st.tuples(st.just("truncate"), st.integers(0, 120)),
    st.tuples(st.just("keep bytes"), st.integers(0, 9000)),
    st.tuples(st.just("keep since"), st.integers(0, 8000)),
    st.tuples(st.just("stop"), st.none()),
    st.tuples(st.just("kill"), st.none()),
)


class Both:
    """The log and the list."""

    def __init__(self, kit) -> None:
        self.kit = kit
        self.world = kit.SimWorld()
        self.shelf = kit.Shelf(self.world, CONFIG)
        self.records: list[Record] = []
        self.bases: list[int] = []
        self.end = 0

    def step(self, verb: str, argument) -> None:
        getattr(self, verb.replace(" ", "_"))(argument)
        self.shelf.log.high_watermark = self.shelf.log.end_offset

    def append(self, stamps) -> None:
        made = [Record(number, ts, None, b"v" * size) for number, (ts, size) in enumerate(stamps)]
        assert self.shelf.put(encode_batch(made)) == [self.end]
        self.bases.append(self.end)
        self.records += [record._replace(offset=self.end + record.offset) for record in made]
        self.end += len(made)

    def roll(self, _) -> None:
        self.shelf.log.roll_segment()

    def start(self, offset: int) -> None:
        log = self.shelf.log
        log.set_start_offset(min(offset, self.end))
        log.delete_old_segments(self.world.clock.now())

    def truncate(self, offset: int) -> None:
        log = self.shelf.log
        if offset >= self.end:
            return
        first = log.segments.first.base_offset
        log.truncate_to(offset)
        if offset < first:
            self.records, self.bases, self.end = [], [], offset
        else:
            self.end = max([first, *(base for base in self.bases if base <= offset)])
            if self.end not in self.bases:
                self.end = offset
        self.bases = [base for base in self.bases if base < self.end]
        self.records = [record for record in self.records if record.offset < self.end]

    def keep_bytes(self, size: int) -> None:
        self._retain(TopicConfig(segment_bytes=3000, retention_ms=-1, retention_bytes=size), Instant(0, 0))
        assert self.shelf.log.size < size + 2 * 3000

    def keep_since(self, timestamp: int) -> None:
        self._retain(TopicConfig(segment_bytes=3000, retention_ms=0), Instant(0, timestamp))
        segments = self.shelf.log.segments
        assert not segments.first.size or segments.first.largest_timestamp >= timestamp

    def _retain(self, config: TopicConfig, now: Instant) -> None:
        log = self.shelf.log
        log.apply_config(config)
        log.delete_old_segments(now)
        log.apply_config(CONFIG)

    def stop(self, _) -> None:
        assert self.shelf.stop() is None
        self.shelf = self.shelf.again()

    def kill(self, _) -> None:
        before = self.shelf.log.start_offset
        self.shelf.manager.dirs[0].checkpoint_starts()
        self.world.settle()
        self.world.restart()
        self.shelf = self.shelf.again()
        assert self.shelf.log.start_offset == before

    def compare(self) -> None:
        log = self.shelf.log
        assert log.end_offset == self.end
        seen = [record for record in self.records if record.offset >= log.start_offset]
        assert self.kit.read_all(self.world, log, max_bytes=700) == seen
        stamps = sorted({record.timestamp for record in seen})
        for wanted in (0, *stamps[:3], *(stamp + 1 for stamp in stamps[-3:])):
            expected = next(((r.timestamp, r.offset) for r in seen if r.timestamp >= wanted), None)
            assert self.shelf.lookup(wanted) == expected
        for offset in range(log.start_offset, self.end, 3):
            region = self.kit.read(self.world, log, offset, 1, self.end)
            ((header, _),) = self.kit.batches_in(region)
            assert header.base_offset <= offset <= header.last_offset


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=20))
def test_a_log_is_a_list(kit, steps) -> None:
    both = Both(kit)
    for verb, argument in steps:
        both.step(verb, argument)
        both.world.settle()
    both.compare()
