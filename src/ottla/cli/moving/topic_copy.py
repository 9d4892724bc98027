"""Copies the records of a topic to another topic, also of another cluster: partitions, keys, headers, timestamps.

Zone: real. With transactions each record is copied exactly once: a transaction at the target holds records and the
positions after them. An interrupted transaction is aborted, by the next run at the latest, and copied again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Final

from ottla.cli.moving.copy_positions import CopyPlan, target_offsets
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.views.progress import Progress
    from ottla.client import ClientError, Consumer, ConsumerRecord, Producer, RecordMetadata

_POLL_S: Final = 0.5
_TRANSACTION_S: Final = 1.0
"""A transaction is committed after this time: readers at the target wait no longer for its first record."""
_TRANSACTION_BYTES: Final = 64 << 20


class TopicCopy:
    """One run of a copy."""

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        plan: CopyPlan,
        progress: Progress,
        positions: Mapping[int, int],
        *,
        per_transaction: int,
    ) -> None:
        """consumer: at `positions`. producer: with transactions, which are initialized, or without."""
        self._consumer = consumer
        self._producer = producer
        self._plan = plan
        self._progress = progress
        self._per_transaction = per_transaction
        self._transactional = bool(producer.config.transactional_id)
        self.positions = dict(positions)
        """Of each partition, the offset after the last record that is copied for good."""
        self._failure: ClientError | None = None

    def copy_records(self, ends: Mapping[int, int] | None) -> None:
        """Copy up to the offsets `ends`; None: until Ctrl-C. Raises ClientError."""
        while ends is None or any(self.positions[number] < end for number, end in ends.items()):
            records = self._consumer.poll(_POLL_S)
            # Markers and aborted records move the position without a record. These positions are committed as well, or
            # the copy would never reach the end of the log.
            if records or self._read_positions() != self.positions:
                self._copy_unit(records, ends)

    def _copy_unit(self, records: Sequence[ConsumerRecord], ends: Mapping[int, int] | None) -> None:
        """Copy these records and those that follow at once, as one transaction."""
        until = time.monotonic() + _TRANSACTION_S
        count = size = 0
        unit: AbstractContextManager[object] = self._producer.transaction() if self._transactional else nullcontext()
        with unit:
            while True:
                for record in records:
                    size += self._send_record(record)
                count += len(records)
                reached = self._read_positions()
                # One of three comes first: many small records, few large ones, or readers at the target that wait.
                is_full = count >= self._per_transaction or size >= _TRANSACTION_BYTES or time.monotonic() > until
                if is_full or not records or _is_past(reached, ends):
                    break
                records = self._consumer.poll(0)
            changed = {number: offset for number, offset in reached.items() if self.positions[number] != offset}
            self._end_unit(changed)
        self.positions = reached
        self._report_positions(changed)
        self._progress.add_progress(count, size)

    def _send_record(self, record: ConsumerRecord) -> int:
        """Give a record to the producer. Returns its bytes."""
        self._raise_failure()
        self._producer.send(
            self._plan.target,
            record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp=record.timestamp if record.timestamp >= 0 else None,
            on_delivery=self._on_delivery,
        )
        return len(record.value or b"") + len(record.key or b"")

    def _end_unit(self, changed: Mapping[int, int]) -> None:
        """Add the positions to the transaction; without one wait until the records are written. Raises ClientError."""
        # Positions only after all records are written: a record that failed aborts the transaction, with its position.
        self._producer.flush()
        self._raise_failure()
        if self._transactional:
            self._producer.send_offsets_to_transaction(target_offsets(self._plan, changed), self._plan.group)

    def _raise_failure(self) -> None:
        """Raise the error of the first record that was not written: later errors only say that there was one."""
        if self._failure is not None:
            raise self._failure

    def _report_positions(self, changed: Mapping[int, int]) -> None:
        """Commit the positions to the source's group. With transactions they only show the lag there, so that a
        source that permits only reading is enough.
        """
        from ottla.client import RefusedError

        # After the commit at the target: a crash in between leaves an older position here, which decides nothing.
        offsets = {TopicPartition(self._plan.source, number): offset for number, offset in changed.items()}
        # With transactions this is only for the eye; without, it is the position itself.
        with suppress(RefusedError) if self._transactional else nullcontext():
            self._consumer.commit(offsets)

    def _read_positions(self) -> dict[int, int]:
        """Where the consumer is, past markers and aborted records as well."""
        known = self._consumer.positions()
        places = ((number, TopicPartition(self._plan.source, number)) for number in self._plan.partitions)
        return {number: known[tp].offset if tp in known else self.positions[number] for number, tp in places}

    def _on_delivery(self, _metadata: RecordMetadata | None, error: ClientError | None) -> None:
        # Called in the sender's thread: it only notes, and the copying thread raises.
        if error is not None and self._failure is None:
            self._failure = error


def _is_past(reached: Mapping[int, int], ends: Mapping[int, int] | None) -> bool:
    return ends is not None and all(reached[number] >= end for number, end in ends.items())
