"""Transactions over encoded record batches: for tasks that write many records at once and keep no producer.

Zone: real. `producer.txn_calls` and `produce` send the requests; this module decides their order and what is kept
between tasks. Both versions of the protocol (KIP-98; KIP-890, where a produce request adds its partition). One thread
per object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError, UsageError, values_of
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.client.produce import Batch, Identity, Sender
from ottla.client.producer.partition_queue import ProducerId
from ottla.client.producer.txn_calls import CoordinatorConnections, TxnCalls
from ottla.client.retry import Deadline
from ottla.client.settings import ClientConfig
from ottla.client.stable_positions import stable_positions
from ottla.errors import ErrorCode
from ottla.types import TopicPartition

FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
"""A newer producer has the transactional id; the code depends on the request and its version."""
_FIRST_BACKOFF_MS: Final = 1
"""Markers are written within milliseconds after a commit; until then requests get CONCURRENT_TRANSACTIONS."""


class ConnectionCache:
    """Connections, metadata and coordinators, reused by one transaction after the other."""

    def __init__(self, config: ClientConfig) -> None:
        """Connects to nothing yet. Raises ConfigError."""
        self.cluster = Cluster(replace(config, retry_backoff_ms=_FIRST_BACKOFF_MS))
        self.coordinators = CoordinatorConnections(self.cluster, remember=True)

    @property
    def is_open(self) -> bool:
        """Whether it was not closed; connections are opened when they are needed."""
        return self.cluster.is_open

    def close_connections(self) -> None:
        """Close all connections. Idempotent."""
        self.cluster.close()


class Prepared(NamedTuple):
    """A complete transaction that has to be committed or aborted; any process may do so (`end_transaction`)."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int


class BatchTransaction:
    """At most one transaction of one transactional id: `fence_producer`, then batches and positions, then
    `end_transaction`."""

    def __init__(self, links: ConnectionCache, transactional_id: str, timeout_ms: int) -> None:
        """timeout_ms: the coordinator aborts an open transaction after this time."""
        self._id = transactional_id
        self._links = links
        self._calls = TxnCalls(links.coordinators, transactional_id, timeout_ms)
        self._version = 1
        self._sender: Sender | None = None
        self._identity: Identity | None = None
        self._partitions: set[TopicPartition] = set()
        self.is_open = False
        """Whether anything was sent, so that the transaction must be ended."""

    @classmethod
    def resumed(cls, links: ConnectionCache, what: Prepared) -> BatchTransaction:
        """A transaction that another process has prepared, to add positions to it."""
        found = cls(links, what.transactional_id, 0)
        found._identity = Identity(what.producer_id, what.epoch)
        found._version = what.version
        return found

    @property
    def identity(self) -> Identity:
        """Producer id and epoch, for the headers of batches. Raises UsageError before `fence_producer`."""
        if self._identity is None:
            raise UsageError("this transaction has no producer id yet", "Call fence first")
        return self._identity

    def fence_producer(self) -> None:
        """Take the transactional id: fences its earlier producer and aborts its open transaction. A commit in progress
        is completed when this returns. Raises ClientError.
        """
        deadline = self._links.cluster.deadline()
        # None, not a known id: with an id the coordinator serves only the present producer (KIP-360), without one it
        # hands the transactional id over from any other.
        who = self._calls.init_producer_id(None, deadline)
        self._version = self._calls.protocol_version(deadline)
        self._identity = Identity(who.producer_id, who.epoch)
        self._sender = Sender(self._links.cluster, self._id, self._version)
        self._partitions.clear()
        self.is_open = False

    def committed_position(self, group: str, tp: TopicPartition) -> OffsetAndMetadata | None:
        """The position that the group has committed for a partition; waits for open transactions that change it.

        Raises ClientError.
        """
        return stable_positions(self._links.coordinators.groups, group, [tp]).get(tp)

    def send_batches(self, batches: Mapping[TopicPartition, Batch]) -> None:
        """Write one batch per partition into the transaction, and wait until all are acknowledged.

        Raises the first error; the transaction cannot be committed then.
        """
        sender, who = self._sender, self._producer_id()
        assert sender is not None
        self.is_open = True
        # Version 1 adds partitions with AddPartitionsToTxn before the first batch; in version 2 the produce request
        # does it.
        if self._version == 1 and (new := batches.keys() - self._partitions):
            self._calls.add_partitions(who, sorted(new), self._links.cluster.deadline())
            self._partitions |= new
        values_of(sender.send(batches))

    def send_positions(
        self, group: str, positions: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline | None = None
    ) -> None:
        """Add positions of a group, which take effect if the transaction is committed. Raises ClientError."""
        deadline = deadline or self._links.cluster.deadline()
        who = self._producer_id()
        self.is_open = True
        if self._version == 1:
            self._calls.add_offsets(who, group, deadline)
        self._calls.commit_offsets(who, positions, GroupMetadata(group), self._version, deadline)

    def prepared_transaction(self) -> Prepared:
        """The arguments of `end_transaction`, for the process that decides about the transaction."""
        who = self._producer_id()
        return Prepared(self._id, who.producer_id, who.epoch, self._version)

    def _producer_id(self) -> ProducerId:
        return ProducerId(self.identity.producer_id, self.identity.producer_epoch)


def end_transaction(links: ConnectionCache, what: Prepared, *, commit: bool, deadline: Deadline | None = None) -> None:
    """Commit or abort the whole transaction. Raises ClientError.

    Retried if no response comes; after an error other than RefusedError the outcome is unknown.
    """
    calls = TxnCalls(links.coordinators, what.transactional_id, 0)
    who = ProducerId(what.producer_id, what.epoch)
    calls.end_transaction(who, commit=commit, version=what.version, deadline=deadline or links.cluster.deadline())


def is_fenced(error: BaseException) -> bool:
    """Whether the error means that a newer producer has the transactional id."""
    return isinstance(error, RefusedError) and error.code in FENCED


def abort_quietly(links: ConnectionCache, what: Prepared, within_ms: float = 2_000) -> None:
    """Try to abort once: readers of committed records wait shorter than until the timeout of the transaction."""
    try:
        end_transaction(links, what, commit=False, deadline=Deadline.after_ms(within_ms))
    except ClientError:
        return  # the next producer of this id aborts it, or the coordinator does after the transaction's timeout
