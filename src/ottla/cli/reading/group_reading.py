"""`ottla consume --group`: the records of the partitions that the group gives to this member.

Zone: real. Commits positions only after the records before them were written to stdout. When every received record is
written, the consumer's own position is committed: it is also past transaction markers and aborted records, which are
never written.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cli.clients import make_consumer
from ottla.cli.options import ClientSettings
from ottla.cli.reading.outage import PatientPoll, outage_settings
from ottla.cli.views.printer import Printer
from ottla.cli.views.progress import Progress

if TYPE_CHECKING:
    from ottla.client import Consumer, ConsumerRecord, TopicPartition

_POLL_S = 0.5
_COMMIT_EVERY_S = 1.0


class GroupReading:
    """One run of a member."""

    def __init__(
        self,
        topics: Sequence[str] | re.Pattern[str],
        settings: ClientSettings,
        printer: Printer,
        patience_s: float,
        *,
        exit_at_end: bool,
    ) -> None:
        """topics: names, or a pattern of whole names. patience_s: how long to wait without a record; 0: for ever."""
        self._topics = topics
        self._settings = settings
        self._printer = printer
        self._patience_s = patience_s
        self._exit_at_end = exit_at_end
        self._done: dict[TopicPartition, int] = {}
        """Written and not committed: the next offset of each partition."""
        self._noted: dict[TopicPartition, int] = {}
        """The offset last put into `_done`, of each assigned partition."""
        self._committed_at = time.monotonic()
        self._assigned = False
        self._ends: dict[TopicPartition, int] = {}

    def read_group(self) -> None:
        """Read until the count or the end is reached, or until Ctrl-C; closing calls `_on_revoked`. Raises
        ClientError."""
        with (
            make_consumer(outage_settings(), self._settings) as consumer,
            Progress("read", shown=not sys.stdout.isatty()) as progress,
        ):
            consumer.subscribe(
                self._topics,
                on_assigned=lambda added: self._add_partitions(consumer, added),
                on_revoked=lambda gone: self._on_revoked(consumer, gone),
                on_lost=self._drop_partitions,
            )
            try:
                self._read_until_done(consumer, progress)
            except OSError:  # the reader of our stdout is gone, and did not get what is buffered: do not commit it
                self._done = {}
                raise

    def _read_until_done(self, consumer: Consumer, progress: Progress) -> None:
        from ottla.client import DeadlineError

        last = time.monotonic()
        topic = None if isinstance(self._topics, re.Pattern) else self._topics[0]
        patient = PatientPoll(consumer, topic, lambda: self._awaited(consumer))
        while not self._printer.is_full and not self._is_at_end(consumer):
            records = patient.poll(min(_POLL_S, self._patience_s or _POLL_S))
            self._print_records(consumer, records)
            progress.add_progress(len(records), sum(len(each.value or b"") for each in records))
            if records or not self._assigned:
                last = time.monotonic()
            elif self._patience_s and time.monotonic() > last + self._patience_s:
                raise DeadlineError(f"no record came for {self._patience_s:g} s")
            if time.monotonic() > self._committed_at + _COMMIT_EVERY_S:
                self._committed_at = time.monotonic()
                if self._done and patient.commit_offsets(self._done):
                    self._done = {}  # not earlier: Ctrl-C may come while the response is awaited

    def _awaited(self, consumer: Consumer) -> str:
        """What this member waits for."""
        if not consumer.assignment():
            return "waiting for partitions: the other members of the group have all, or it rebalances (Ctrl-C stops)"
        return "waiting for new records in the partitions of this member (Ctrl-C stops; -e would stop at the end)"

    def _print_records(self, consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
        from ottla.client import TopicPartition

        for each in records:
            if self._printer.is_full:
                self._printer.flush_output()
                return
            self._printer.print_record(each.topic, each.partition, each)
            self._mark_written(TopicPartition(each.topic, each.partition), each.offset + 1)
        self._printer.flush_output()
        # All records of the poll are written: the consumer's own positions are also past markers and aborted records.
        for tp, position in consumer.positions().items():
            self._mark_written(tp, position.offset)

    def _mark_written(self, tp: TopicPartition, offset: int) -> None:
        """Note that everything below `offset` is written, or never will be."""
        if self._noted.get(tp) != offset:
            self._done[tp] = self._noted[tp] = offset

    def _is_at_end(self, consumer: Consumer) -> bool:
        """Whether the records that the partitions had when they were assigned are all read."""
        if not self._exit_at_end or not self._assigned:
            return False
        return all(consumer.position(tp) >= end for tp, end in self._ends.items())

    def _add_partitions(self, consumer: Consumer, added: list[TopicPartition]) -> None:
        self._assigned = True
        if self._exit_at_end and added:
            self._ends |= consumer.end_offsets(added)

    def _on_revoked(self, consumer: Consumer, gone: list[TopicPartition]) -> None:
        """Commit before partitions are revoked, so that their next owner continues after what was written."""
        self._commit_written(consumer)
        self._drop_partitions(gone)

    def _drop_partitions(self, gone: list[TopicPartition]) -> None:
        for tp in gone:
            self._done.pop(tp, None)
            self._noted.pop(tp, None)
            self._ends.pop(tp, None)

    def _commit_written(self, consumer: Consumer) -> None:
        if self._done:
            consumer.commit(self._done)
            self._done = {}
