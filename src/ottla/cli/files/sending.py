"""Gives the records of an input to a producer, one by one or in transactions.

Zone: real. `Deliveries` keeps the outcome of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.cli.deliveries import Deliveries

if TYPE_CHECKING:
    from ottla.cli.views.progress import Progress
    from ottla.cli.views.record_text import RecordLine
    from ottla.client import Producer

Records = Iterator[tuple[int, "RecordLine"]]
"""The number of each record in the input, and the record."""


def send_records(producer: Producer, records: Records, deliveries: Deliveries, progress: Progress) -> None:
    """Send all records, and wait until they are written. Raises ClientError, BadLine."""
    for number, line in records:
        deliveries.send_line(producer, number, line)
        progress.add_progress(1, len(line.value or b""))
    producer.flush()
    deliveries.settle_runs()


def send_in_transactions(
    producer: Producer, records: Records, deliveries: Deliveries, progress: Progress, per_transaction: int | None
) -> None:
    """Write in transactions; a bad record, or one that fails, aborts the open one. None: all in one."""
    producer.init_transactions()
    more = True
    # The last transaction may be empty: whether there is another record is known only after it was begun.
    while more:
        with producer.transaction():
            more = False
            for count, (number, line) in enumerate(records, 1):
                deliveries.send_line(producer, number, line)
                progress.add_progress(1, len(line.value or b""))
                if count == per_transaction:
                    more = True
                    break
            producer.flush()
            deliveries.raise_failure()
        deliveries.mark_committed()
        deliveries.settle_runs()
