"""The copy of a topic into a table: reads, gathers, commits.

Zone: real.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from ottla.client import ClientConfig, Cluster, Consumer, TopicPartition
from ottla.tables.dead_letters import DeadLetters
from ottla.tables.errors import TopicRecreatedError
from ottla.tables.offsets import TableOffsets, check_offsets
from ottla.tables.refused import RefusedRecords, without_places
from ottla.tables.rows import BytesRows, Refused, RowMaker, last_rows, records_with_keys
from ottla.tables.writers import TableWriter, commit_rows

_POLL_S: Final = 1.0
_ROWS_BYTES: Final = 64 << 20
"""Of the rows that are made at a time; those of one larger batch may be."""
_FIRST_BYTES: Final = 4 << 20
_LEAST_BYTES: Final = 1 << 20
_READER: Final = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "isolation.level": "read_committed",
    "fetch.max.bytes": str(8 << 20),
    "max.partition.fetch.bytes": str(8 << 20),
}


class CopyOptions(NamedTuple):
    """When to commit, and when to end."""

    commit_s: float = 30.0
    commit_bytes: int = 128 << 20
    """Of rows in memory; one fetch more may be there."""
    exit_at_end: bool = False
    skip_deleted: bool = False
    """Continue at the first offset of a partition whose next records retention deleted."""


class TopicCopy:
    """One run over all partitions of a topic. Close it."""

    def __init__(
        self,
        settings: Mapping[str, str | int | bool],
        topic: str,
        writer: TableWriter,
        options: CopyOptions,
        rows: RowMaker | None = None,
        letters: DeadLetters | None = None,
    ) -> None:
        """settings: of the client. rows: None: keys and values are bytes. letters: None: a record that is not a row
        ends the copy. Raises ClientError."""
        self._topic = topic
        self._writer = writer
        self._options = options
        self._maker = BytesRows() if rows is None else rows
        self._letters = letters
        self._cluster = Cluster(ClientConfig.from_mapping(dict(settings)))
        self._topic_id = self._read_topic_id()
        self._consumer = Consumer({**settings, **_READER})
        self._next: dict[TopicPartition, int] = {}
        self._saved: TableOffsets | None = None
        self._before = TableOffsets(self._topic_id, {})
        self._gathered: list[pa.Table] = []
        self._refused = RefusedRecords(topic)
        self._bytes = 0
        self._poll_bytes = _FIRST_BYTES
        self.rows = self.commits = self.dead_letters = 0

    @property
    def offsets(self) -> Mapping[int, int]:
        """The first offset of each partition that the table does not have."""
        return self._before.next_offsets

    def close(self) -> None:
        """Close the connections. Rows that are not committed are read again by the next run."""
        self._consumer.close()
        self._cluster.close()

    def copy_records(self, is_stopped: Callable[[], bool], on_commit: Callable[[TopicCopy, int], object]) -> None:
        """Copy until `is_stopped`, or until the end at the start of this call (`exit_at_end`). Raises ClientError.

        on_commit: called after each commit with its number of rows.
        """
        until = self._resume_reading()
        due = time.monotonic() + self._options.commit_s
        # Asked after each fetch, so that a signal ends the run after a second at most, with a commit of what is there.
        while not is_stopped() and not self._is_at_end(until):
            wait_s = max(0.0, min(_POLL_S, due - time.monotonic()))
            self._gather_rows(self._consumer.poll_table(wait_s, headers=True, max_bytes=self._poll_bytes))
            if self._bytes >= self._options.commit_bytes or time.monotonic() >= due:
                self._commit_gathered(on_commit)
                self._add_partitions()
                due = time.monotonic() + self._options.commit_s
        self._commit_gathered(on_commit)

    def _resume_reading(self) -> Mapping[TopicPartition, int]:
        """Continue from the table's offsets; returns the ends of the partitions."""
        # The table before the log: another writer may add to both, and offsets past an older end would look lost.
        self._saved = self._writer.read_offsets()
        self._maker.begin_table(self._writer.name, self._writer.columns)
        if self._letters is not None:
            self._letters.begin_table(self._topic_id, self._saved)
        partitions = self._consumer.partitions_for_topic(self._topic)
        starts, ends = self._consumer.beginning_offsets(partitions), self._consumer.end_offsets(partitions)
        known: Mapping[int, int] = {}
        if self._saved is not None:
            known = self._saved.next_offsets
            usable = self._skip_deleted(self._saved, starts)
            log = {tp.partition: (starts[tp], ends[tp]) for tp in partitions}
            check_offsets(self._topic, usable, self._topic_id, log)
            known = usable.next_offsets
        self._assign_partitions({tp: known.get(tp.partition, starts[tp]) for tp in partitions})
        self._before = self._positions_now()
        return ends

    def _skip_deleted(self, saved: TableOffsets, starts: Mapping[TopicPartition, int]) -> TableOffsets:
        if not self._options.skip_deleted:
            return saved
        first = {tp.partition: offset for tp, offset in starts.items()}
        return TableOffsets(
            saved.topic_id, {at: max(offset, first.get(at, 0)) for at, offset in saved.next_offsets.items()}
        )

    def _assign_partitions(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._next |= offsets
        self._consumer.assign(self._next)
        for tp, offset in offsets.items():
            self._consumer.seek(tp, offset)

    def _add_partitions(self) -> None:
        """Partitions that the topic got since the start, from their beginning."""
        found = self._consumer.partitions_for_topic(self._topic)
        if new := [tp for tp in found if tp not in self._next]:
            self._assign_partitions(self._consumer.beginning_offsets(new))
            self._before = self._positions_now()

    def _read_topic_id(self) -> str:
        self._cluster.forget_topics([self._topic])
        return self._cluster.topic(self._topic).topic_id.hex()

    def _require_same_topic(self) -> None:
        found = self._read_topic_id()
        if found != self._topic_id:
            raise TopicRecreatedError(
                f"topic {self._topic} was created again during the copy: its id is {found}, it was {self._topic_id}",
                "Copy the topic into a new table",
            )

    def _is_at_end(self, until: Mapping[TopicPartition, int]) -> bool:
        return self._options.exit_at_end and all(self._next[tp] >= end for tp, end in until.items())

    def _gather_rows(self, records: pa.Table) -> None:
        # Also without records: markers and aborted transactions move the position, and with it the end of a backfill.
        self._next |= {tp: found.offset for tp, found in self._consumer.positions().items()}
        if self._letters is not None and self._letters.written:
            records = without_places(records, self._letters.written)
        if records.num_rows:
            keyed, refused = records_with_keys(records, self._maker.layout)
            self._keep_refused(records, refused)
            rows, refused = self._maker.make_rows(keyed)
            self._keep_refused(keyed, refused)
            self._gathered.append(rows)
            self._bytes += rows.nbytes
            # Rows with many columns, most of them null, are larger than their records.
            ratio = max(1.0, rows.nbytes / records.nbytes)
            self._poll_bytes = max(_LEAST_BYTES, int(_ROWS_BYTES / ratio))

    def _keep_refused(self, records: pa.Table, refused: list[Refused]) -> None:
        if refused:
            self._bytes += self._refused.add_records(records, refused, is_kept=self._letters is not None)

    def _positions_now(self) -> TableOffsets:
        return TableOffsets(self._topic_id, {tp.partition: offset for tp, offset in self._next.items()})

    def _commit_gathered(self, on_commit: Callable[[TopicCopy, int], object]) -> None:
        if not self._gathered:
            return
        # A topic that was created again has other records at these offsets: they must not be added to the table.
        self._require_same_topic()
        rows, after = self._maker.join_rows(self._gathered), self._positions_now()
        if self._maker.layout.is_upsert:
            rows = last_rows(rows, self._maker.layout)
        self._write_letters()
        count = sum(each.num_rows for each in self._gathered)
        commit_rows(self._writer, rows, self._saved, self._before, after)
        if self._letters is not None:
            self._letters.note_commit()
        self._saved = self._before = after
        self._gathered.clear()
        self._bytes = 0
        self.rows += count
        self.commits += 1
        on_commit(self, count)

    def _write_letters(self) -> None:
        # Before the table's commit: a letter of a record that the table has passed could be lost.
        records, failures = self._refused.take_records()
        if records:
            assert self._letters is not None
            self._letters.write_letters(records, failures)
            self.dead_letters += len(records)
