"""What is asked of the transaction machine, and what those who ask are told.

Zone: pure. Values only. Every ticket gets the answer or an ApiError, exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ottla.coordinator.shard import Completion, Refusal
from ottla.errors import ErrorCode
from ottla.transactions.state import ProducerIdentity, Transaction
from ottla.types import NO_PRODUCER_ID, TopicPartition


class TransactionCommand(Protocol):
    """Something that is asked about one transactional id, or all."""

    @property
    def ticket(self) -> Refusal:
        """Who is answered."""
        ...


class InitProducerId(NamedTuple):
    """A producer starts (KIP-98), or goes on after an error (`expected`, KIP-360)."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None
    """Who it was so far."""
    ticket: Completion[ProducerIdentity]
    fresh_id: int = NO_PRODUCER_ID
    """A producer id that nobody has; used if one is needed."""


class AddPartitions(NamedTuple):
    """A transaction widens, or begins. `version`: the transaction version of the producer."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: Sequence[TopicPartition]
    version: int
    ticket: Completion[None]


class VerifyPartitions(NamedTuple):
    """The leader of partitions asks whether they belong to the producer's transaction (KIP-890)."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: Sequence[TopicPartition]
    ticket: Completion[Mapping[TopicPartition, ErrorCode]]


class EndTransaction(NamedTuple):
    """A producer commits or aborts; it is told who it is from then on."""

    transactional_id: str
    identity: ProducerIdentity
    commit: bool
    version: int
    ticket: Completion[ProducerIdentity]
    fresh_id: int = NO_PRODUCER_ID
    """A producer id that nobody has; used if one is needed."""


class MarkersWritten(NamedTuple):
    """Partitions have the marker that `identity` was to write. An error says that it has to be said again."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: Sequence[TopicPartition]
    ticket: Completion[None]


class ResumeMarkers(NamedTuple):
    """The markers of a transaction could not be sent when it was decided, because that took long to be committed."""

    transactional_id: str
    ticket: Completion[None]


class DescribeTransaction(NamedTuple):
    """An administrator asks for one."""

    transactional_id: str
    ticket: Completion[Transaction]


class ListTransactions(NamedTuple):
    """An administrator asks for all of them."""

    ticket: Completion[Mapping[str, Transaction]]


class Markers(NamedTuple):
    """The markers that a decided transaction still needs."""

    transactional_id: str
    identity: ProducerIdentity
    commit: bool
    coordinator_epoch: int
    version: int
    partitions: Sequence[TopicPartition]
