"""Transactions over encoded record batches: for tasks that write a lot at once and hold no producer between them.

Zone: real. The requests are `producer.txn_calls` and `produce`; here are their order and what is kept between tasks.
Both versions of the protocol (KIP-98; KIP-890, where partitions add themselves). One thread per object.
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
"""Somebody newer has the transactional id; which of the two is said depends on request and version."""
_FIRST_BACKOFF_MS: Final = 1
"""Right after a commit its markers are still being written, for a millisecond or a few: CONCURRENT_TRANSACTIONS."""


class ConnectionCache:
    """Connections, metadata and coordinators, for one transaction after the other."""

    def __init__(self, config: ClientConfig) -> None:
        """Connects to nothing yet. Raises ConfigError."""
        self.cluster = Cluster(replace(config, retry_backoff_ms=_FIRST_BACKOFF_MS))
        self.coordinators = CoordinatorConnections(self.cluster, remember=True)

    @property
    def is_open(self) -> bool:
        """Whether they can be used: they are connected when they are needed."""
        return self.cluster.is_open

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self.cluster.close()


class Prepared(NamedTuple):
    """A transaction with everything in it, which only waits for its end; anybody may say that (`end`)."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int


class BatchTransaction:
    """At most one transaction of one transactional id: `fence`, then batches and positions, then `end`."""

    def __init__(self, links: ConnectionCache, transactional_id: str, timeout_ms: int) -> None:
        """timeout_ms: after so long the coordinator aborts an open transaction."""
        self._id = transactional_id
        self._links = links
        self._calls = TxnCalls(links.coordinators, transactional_id, timeout_ms)
        self._version = 1
        self._sender: Sender | None = None
        self._identity: Identity | None = None
        self._partitions: set[TopicPartition] = set()
        self.is_open = False
        """Whether anything was sent, so that the transaction has to be ended."""

    @property
    def identity(self) -> Identity:
        """Who writes, for the headers of batches. Raises UsageError before `fence`."""
        if self._identity is None:
            raise UsageError("the transactional id is not taken yet", "Call fence first")
        return self._identity

    def fence(self) -> None:
        """Take the transactional id: whoever had it can do nothing any more, its open transaction is aborted, one that
        is being committed is committed when this returns. Raises ClientError."""
        deadline = self._links.cluster.deadline()
        who = self._calls.init(None, deadline)
        self._version = self._calls.version(deadline)
        self._identity = Identity(who.producer_id, who.epoch)
        self._sender = Sender(self._links.cluster, self._id, self._version)
        self._partitions.clear()
        self.is_open = False

    def position(self, group: str, tp: TopicPartition) -> OffsetAndMetadata | None:
        """What the group has committed for a partition, transactions that are still open waited for. Raises
        ClientError."""
        return stable_positions(self._links.coordinators.groups, group, [tp]).get(tp)

    def send(self, batches: Mapping[TopicPartition, Batch]) -> None:
        """Write one batch per partition into the transaction, and wait until all are acknowledged.

        Raises the first error; the transaction cannot be committed then.
        """
        sender, who = self._sender, self._who()
        assert sender is not None
        self.is_open = True
        if self._version == 1 and (new := batches.keys() - self._partitions):
            self._calls.add_partitions(who, sorted(new), self._links.cluster.deadline())
            self._partitions |= new
        values_of(sender.send(batches))

    def send_positions(
        self, group: str, positions: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline | None = None
    ) -> None:
        """Positions of a group that count when the transaction is committed, and only then. Raises ClientError."""
        deadline = deadline or self._links.cluster.deadline()
        who = self._who()
        self.is_open = True
        if self._version == 1:
            self._calls.add_offsets(who, group, deadline)
        self._calls.commit_offsets(who, positions, GroupMetadata(group), self._version, deadline)

    def prepared(self) -> Prepared:
        """What `end` needs, for whoever decides."""
        who = self._who()
        return Prepared(self._id, who.producer_id, who.epoch, self._version)

    def _who(self) -> ProducerId:
        return ProducerId(self.identity.producer_id, self.identity.producer_epoch)


def end(links: ConnectionCache, what: Prepared, *, commit: bool, deadline: Deadline | None = None) -> None:
    """Commit or abort: the moment at which everything counts, or nothing does. Raises ClientError.

    Asked again when no answer comes; after an error other than a refusal it may have been done or not.
    """
    calls = TxnCalls(links.coordinators, what.transactional_id, 0)
    who = ProducerId(what.producer_id, what.epoch)
    calls.end(who, commit=commit, version=what.version, deadline=deadline or links.cluster.deadline())


def is_fenced(error: BaseException) -> bool:
    """Whether an error says that somebody newer has the transactional id."""
    return isinstance(error, RefusedError) and error.code in FENCED


def abort_quietly(links: ConnectionCache, what: Prepared, within_ms: float = 2_000) -> None:
    """Abort as far as that is possible at once: it frees readers of committed records sooner than the timeout does."""
    try:
        end(links, what, commit=False, deadline=Deadline.after_ms(within_ms))
    except ClientError:
        return  # whoever takes the id next aborts it, or the coordinator does when its time is over
