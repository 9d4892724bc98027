"""Sends markers and the offsets of the source's groups with the rows of a transaction.

Zone: real.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ottla.client.batch_transaction import BatchTransaction
from ottla.client.errors import ClientError, DeadlineError, RefusedError
from ottla.client.positions import OffsetAndMetadata
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.spark.errors import MarkersGone
from ottla.spark.offset_metadata import mark_offsets
from ottla.spark.sink.exactly_once import MARKER, MARKERS, TaskBatch
from ottla.types import TopicPartition

_MARKER_PATIENCE_MS: Final = 10_000
"""All brokers know a new topic within this time."""
_OFFSETS_PATIENCE_MS: Final = 10_000
"""How long committing the offsets of the source's group is tried."""
_NOT_TAKEN: Final = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors with which a broker refuses the offsets of the source's group for good."""
_LOG = logging.getLogger(__name__)


def send_marker(transaction: BatchTransaction, name: str, position: OffsetAndMetadata) -> None:
    """Add a marker, or a claim, to a transaction. Raises MarkersGone and the client's errors."""
    try:
        transaction.send_positions(name, {MARKER: position}, Deadline.after_ms(_MARKER_PATIENCE_MS))
    except DeadlineError as error:
        if isinstance(error.last, RefusedError) and error.last.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise MarkersGone(
                f"the topic {MARKERS} was deleted, and with it the markers of written batches. The next start of the "
                "query creates it again; the batch that is being written now may be written twice"
            ) from error
        raise


def send_source_offsets(
    transaction: BatchTransaction, turn: TaskBatch, group: str, offsets: Mapping[TopicPartition, int], *, demanded: bool
) -> None:
    """Add the offsets of the source's group to a transaction. Raises the client's errors.

    demanded: whether the rows must not be written without them; otherwise a refusal is logged.
    """
    try:
        transaction.send_positions(group, mark_offsets(turn, offsets), Deadline.after_ms(_OFFSETS_PATIENCE_MS))
        _LOG.info("spark sink: %s: the offsets of group %s are in its transaction", turn, group)
    except ClientError as error:
        last = error.last if isinstance(error, DeadlineError) else error
        if demanded or not (isinstance(last, RefusedError) and last.code in _NOT_TAKEN):
            raise
        _LOG.warning("spark sink: %s: group %s is committed after the batch: %s", turn, group, last)
