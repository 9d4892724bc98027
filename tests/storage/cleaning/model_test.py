"""Passes of compaction over random logs, against a plain list of records."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ottla.record.batch import Record, batches_of, encode_batch, header_at, records_of
from ottla.record.compaction import Rewrite, keys_of, rewrite_batches, sorted_offsets
from ottla.record.control import ControlType, Marker, control_key, marker_batch, parse_marker
from ottla.record.crc import crc32c
from ottla.storage.cleaning.batch_retention import BatchRetention, LastBatch, RetentionBounds, RetentionFate
from ottla.storage.cleaning.live_offsets import LiveOffsets
from ottla.storage.cleaning.offset_map import ENTRY_BYTES, OffsetMap
from ottla.storage.cleaning.transactions import CleanedTransactions
from ottla.storage.indexes.txn_index import AbortedTransaction

LIMIT = 1 << 20
RETENTION_MS = 1000


@dataclass
class Written:
    """A record of the model."""

    record: Record
    producer: int
    visible: bool
    """Whether read_committed consumers see it."""


@dataclass
class World:
    """A log that is written, cleaned and read."""

    log: list[bytes] = field(default_factory=list)
    model: list[Written] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    producers: dict[int, LastBatch] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    """First offsets of transactions that have not ended."""
    end: int = 0
    cleaned_to: int = 0
    now_ms: int = 10_000

    def write(self, producer: int, rows: list[tuple[bytes, bytes | None]], codec: int) -> None:
        """Producer 0 is a plain one, the others write transactions."""
        records = [
            Record(self.end + n, self.now_ms + n, key, value, (("h", b"x"),) if n % 3 == 2 else ())
            for n, (key, value) in enumerate(rows)
        ]
        sequence = self.sequences.get(producer, 0)
        transactional = producer > 0
        facts = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence} if transactional else {}
        batch = encode_batch(records, base_offset=self.end, codec=codec, transactional=transactional, **facts)
        self.log.append(bytes(batch))
        self.model += [Written(record, producer, not transactional) for record in records]
        if transactional:
            self.open.setdefault(producer, self.end)
            self.sequences[producer] = sequence + len(rows)
            self.producers[producer] = LastBatch(0, self.end + len(rows) - 1)
        self.end += len(rows)

    def finish(self, producer: int, commit: bool) -> None:
        first = self.open.pop(producer, None)
        if first is None:
            return
        batch = marker_batch(producer, 0, Marker(commit, 1), self.now_ms)
        batch[:8] = self.end.to_bytes(8, "big")
        self.log.append(bytes(batch))
        if commit:
            for written in self.model:
                if written.producer == producer and written.record.offset >= first:
                    written.visible = True
        else:
            stable = min(self.open.values(), default=self.end)
            self.aborted.append(AbortedTransaction(producer, first, self.end, stable))
        self.end += 1

    def clean(self, room: int, removable_below: int) -> None:
        """One pass over everything below the oldest open transaction."""
        dirty_end = min(self.open.values(), default=self.end)
        latest = OffsetMap(self.cleaned_to, room * ENTRY_BYTES)
        first = CleanedTransactions(self.aborted)
        for batch in self.log:
            header = header_at(batch)
            if header.base_offset >= dirty_end or latest.is_full:
                break
            if header.is_control or first.is_aborted(header) or not header.record_count:
                if not header.is_control or first.is_needless(header, _marker(batch)) is not None:
                    latest.skip_to_offset(max(header.last_offset, latest.end_offset - 1))
            elif header.base_offset >= self.cleaned_to:
                latest.add_keys(header.base_offset, keys_of([batch], LIMIT)[0])
                latest.skip_to_offset(header.last_offset)
        second = CleanedTransactions(self.aborted)
        alive = LiveOffsets(latest.start_offset, latest.end_offset, *sorted_offsets(b"".join(latest.packed_offsets())))
        judge = BatchRetention(
            latest, alive, second, self.producers, RetentionBounds(self.now_ms, RETENTION_MS, removable_below)
        )
        self.log = [out for batch in self.log if (out := self._judged(judge, batch, dirty_end)) is not None]
        self.aborted = [txn for txn in self.aborted if txn in second.kept or txn.last_offset >= dirty_end]
        self.cleaned_to = max(self.cleaned_to, min(latest.end_offset, dirty_end))

    def _judged(self, judge: BatchRetention, batch: bytes, end: int) -> bytes | None:
        header = header_at(batch)
        if header.base_offset >= end:
            return batch
        if header.is_control:
            verdict = judge.decide_control(header, _marker(batch))
        else:
            verdict = judge.decide_without_keys(header) or judge.decide_with_keys(
                header, *judge.kept_records(header, keys_of([batch], LIMIT)[0])
            )
        event(f"{'control' if header.is_control else 'data'} {verdict.fate.name}")
        if verdict.fate is RetentionFate.DROP:
            return None
        if verdict.fate is RetentionFate.COPY:
            return batch
        event("by offsets" if isinstance(verdict.keep, array) else "by keys")
        keep = bytes(header.record_count) if verdict.fate is RetentionFate.BARE else verdict.keep
        return rewrite_batches([Rewrite(batch, keep, verdict.delete_horizon_ms)], LIMIT)[0]

    def read(self) -> dict[int, Record]:
        """The records of a read_committed consumer, with the aborted list as Fetch returns it."""
        seen: dict[int, Record] = {}
        waiting = sorted(self.aborted, key=lambda txn: txn.first_offset)
        skipping: set[int] = set()
        for batch in self.log:
            header = header_at(batch)
            assert int.from_bytes(batch[17:21], "big") == crc32c(batch[21:])
            if header.base_offset >= min(self.open.values(), default=self.end):
                break
            while waiting and waiting[0].first_offset <= header.last_offset:
                skipping.add(waiting.pop(0).producer_id)
            if header.is_control:
                skipping.discard(header.producer_id) if _aborts(batch) else None
            elif not (header.is_transactional and header.producer_id in skipping):
                seen |= {record.offset: record for record in records_of(batch, max_bytes=LIMIT)}
        return seen

    def check(self) -> None:
        """Check everything that compaction guarantees."""
        stable = min(self.open.values(), default=self.end)
        rows = [each.record for each in self.model if each.visible and each.record.offset < stable]
        original = {record.offset: record for record in rows}
        seen = self.read()
        assert list(seen) == sorted(seen)
        for offset, record in seen.items():
            assert record == original[offset], "no record changes, none of an aborted transaction shows"
        state, read = {}, {}
        for record in rows:
            state[record.key] = record.value
        for record in seen.values():
            read[record.key] = record.value
        assert {k: v for k, v in read.items() if v is not None} == {k: v for k, v in state.items() if v is not None}
        assert [o for o in seen if o >= self.cleaned_to] == [o for o in original if o >= self.cleaned_to]
        clean = [record for record in seen.values() if record.offset < self.cleaned_to]
        values = [record.key for record in clean if record.value is not None]
        assert len(values) == len(set(values)), "one value of a key is left"
        self._check_sequences()

    def _check_sequences(self) -> None:
        last = {}
        for batch in self.log:
            header = header_at(batch)
            if header.base_sequence >= 0:
                last[header.producer_id] = header.last_sequence
        assert last == {producer: sequence - 1 for producer, sequence in self.sequences.items()}


def _marker(batch: bytes) -> Marker | None:
    return next((parse_marker(r.key, r.value) for r in records_of(batch, max_bytes=LIMIT)), None)


def _aborts(batch: bytes) -> bool:
    abort = control_key(ControlType.ABORT)
    return any(record.key == abort for record in records_of(batch, max_bytes=LIMIT))


KEYS = st.sampled_from([b"a", b"b", b"c", b"a key of more than sixteen bytes", b"another one of those, longer", b""])
ROWS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=200)), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), ROWS, st.sampled_from([0, 1, 2, 3, 4])),
        st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("clean"), st.integers(1, 40), st.just(1 << 60) | st.integers(0, 30)),
        st.tuples(st.just("wait"), st.sampled_from([1, 500, 1000, 2000])),
    ),
    max_size=30,
)


@settings(max_examples=300)
@given(STEPS)
def test_a_compacted_log_has_the_same_latest_records(steps: list[tuple]) -> None:
    world = World()
    for what, *arguments in steps:
        if what == "wait":
            world.now_ms += arguments[0]
        else:
            {"write": world.write, "end": world.finish, "clean": world.clean}[what](*arguments)
        world.check()
    world.clean(1000, 1 << 60)
    world.check()
    assert all(pos == 0 for batch in world.log for pos, _ in batches_of(batch))
