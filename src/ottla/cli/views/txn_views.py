"""What `ottla txn` shows, and how hanging transactions are found.

Zone: real. Asks a cluster through the client; prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.cli.views.output import Json
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.client import ClientError
    from ottla.client.admin.transactions import ProducerView, TransactionAdmin, TransactionView


class Hanging(NamedTuple):
    """An open transaction in a partition that no coordinator will end."""

    tp: TopicPartition
    producer: ProducerView

    def document(self, now_ms: int) -> Json:
        """The JSON form."""
        producer = self.producer
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "coordinator_epoch": producer.coordinator_epoch,
            "start_offset": producer.transaction_start,
            "last_timestamp_ms": producer.last_timestamp_ms,
            "duration_ms": now_ms - producer.last_timestamp_ms,
        }


def transaction_document(view: TransactionView, now_ms: int) -> dict[str, Json]:
    """The JSON form of one transactional id."""
    return {
        "transactional_id": view.transactional_id,
        "coordinator": view.coordinator,
        "producer_id": view.producer_id,
        "producer_epoch": view.producer_epoch,
        "state": view.state,
        "timeout_ms": view.timeout_ms,
        "start_ms": view.start_ms if view.start_ms >= 0 else None,
        "duration_ms": max(0, now_ms - view.start_ms) if view.start_ms >= 0 else None,
        "partitions": [str(tp) for tp in sorted(view.partitions)],
    }


def producer_document(producer: ProducerView) -> dict[str, Json]:
    """The JSON form of one producer of a partition."""
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp_ms": producer.last_timestamp_ms,
        "transaction_start": producer.transaction_start if producer.transaction_start >= 0 else None,
    }


def find_hanging(
    admin: TransactionAdmin,
    partitions: Iterable[TopicPartition],
    broker: int | None,
    silent_before_ms: int,
) -> tuple[list[Hanging], dict[str, ClientError]]:
    """Open transactions whose producer has written nothing since then, and that no coordinator has.

    The second value: errors of partitions that could not be read; more transactions may hang there.
    """
    # 1. Open, and silent for long enough. 2. Not among the partitions that a coordinator has for this producer id.
    # 3. Still open: one may have ended between the two requests, and must not be reported.
    old, failed = _open_since(admin, partitions, broker, silent_before_ms)
    known = _known_partitions(admin, sorted({each.producer.producer_id for each in old}))
    unknown = [each for each in old if each.tp not in known.get(each.producer.producer_id, ())]
    still = _open_since(admin, dict.fromkeys(each.tp for each in unknown), broker, silent_before_ms)[0]
    return [each for each in unknown if each in still], failed


def _open_since(
    admin: TransactionAdmin, partitions: Iterable[TopicPartition], broker: int | None, silent_before_ms: int
) -> tuple[list[Hanging], dict[str, ClientError]]:
    from ottla.client import ClientError

    wanted = list(partitions)
    failed: dict[str, ClientError] = {}
    old: list[Hanging] = []
    for tp, found in (admin.describe_producers(wanted, broker) if wanted else {}).items():
        if isinstance(found, ClientError):
            failed[str(tp)] = found
            continue
        old += [
            Hanging(tp, producer)
            for producer in found
            if producer.transaction_start >= 0 and producer.last_timestamp_ms < silent_before_ms
        ]
    return old, failed


def _known_partitions(admin: TransactionAdmin, producer_ids: list[int]) -> Mapping[int, Iterable[TopicPartition]]:
    """Partitions of transactions that coordinators have, by producer id.

    Raises ClientError when one of them did not answer: a transaction that it has must not count as hanging.
    """
    from ottla.client import RefusedError
    from ottla.errors import ErrorCode

    known: dict[int, tuple[TopicPartition, ...]] = {}
    if not producer_ids:
        return known
    listed, silent = admin.list_transactions(producer_ids=producer_ids)
    for error in silent.values():
        raise error
    for row in listed:
        try:
            known[row.producer_id] = admin.describe_transaction(row.transactional_id).partitions
        except RefusedError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
    return known
