"""Transactions of a producer: connects the state machine, the batches and the coordinator.

Zone: real. One call at a time; `transaction` decides what is allowed, `txn_calls` sends the requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, DeadlineError, UsageError
from ottla.client.positions import GroupMetadata, OffsetAndMetadata, checked_position
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.core import ProducerCore
from ottla.client.producer.futures import ProducerLock, seconds_left
from ottla.client.producer.network.sender import Sender
from ottla.client.producer.partition_queue import ProducerId
from ottla.client.producer.transaction import State, Transaction
from ottla.client.producer.txn_calls import CoordinatorConnections, TxnCalls
from ottla.client.retry import Deadline, bounded_s
from ottla.types import TopicPartition

_log = logging.getLogger("ottla.client.producer")
_R = TypeVar("_R")


class TransactionalProducer:
    """The transactional part of a producer."""

    def __init__(
        self,
        config: ProducerConfig,
        core: ProducerCore,
        shared: ProducerLock,
        sender: Sender,
        flush: Callable[[float | None], None],
    ) -> None:
        self._block_s = bounded_s(config.max_block_ms / 1000)
        self._core = core
        self._shared = shared
        self._sender = sender
        self._flush = flush
        self._cluster = Cluster(config.client)
        self._calls = TxnCalls(
            CoordinatorConnections(self._cluster), config.transactional_id, config.transaction_timeout_ms
        )
        self._turn = threading.Lock()
        """Allows one call at a time. Acquired before the shared lock, and held while that is free."""
        self._state = Transaction(config.transactional_id)
        self.partitions = self._state.partitions
        """Partitions of the transaction; in version 2 the producer adds one here with its first record."""
        core.on_failure = self._state.on_failed

    @property
    def is_open(self) -> bool:
        """Whether a transaction has begun, and neither its commit nor its abort."""
        return self._state.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)

    def close_connections(self) -> None:
        """Close its connections."""
        with self._turn:
            self._cluster.close()

    def init_transactions(self) -> None:
        """As `Producer.init_transactions`."""
        with self._turn:
            self._state.check_init()
            deadline = self._block_deadline()
            # Without the shared lock: the sender and `send` of other threads need it while the coordinator is slow.
            identity = self._call_coordinator(lambda: self._calls.init_producer_id(None, deadline))
            version = self._calls.protocol_version(deadline)
            with self._shared.lock:
                self._sender.self_adding = version == 2
                self._state.on_initialized(identity, version)
                self._core.begin_epoch(identity)

    def begin_transaction(self) -> None:
        """As `Producer.begin_transaction`."""
        with self._turn, self._shared.lock:
            self._state.begin_transaction()

    def admits_partition(self, tp: TopicPartition) -> bool:
        """Whether a record for `tp` may be accepted now, with the shared lock held; if not, call `add_partition` first.

        Raises UsageError if no transaction is begun, or it has failed.
        """
        state = self._state
        state.check_write()
        return state.version == 2 or tp in state.partitions

    def add_partition(self, tp: TopicPartition, until: float) -> None:
        """Add a partition to the transaction; waits for the coordinator, without the shared lock.

        Raises UsageError, DeadlineError, RefusedError.
        """
        self._shared.check_caller("adding a partition to a transaction")
        with self._turn:
            state = self._state
            state.check_write()
            assert state.identity is not None
            if tp not in state.partitions:
                who = state.identity
                self._call_coordinator(lambda: self._calls.add_partitions(who, [tp], Deadline(until)))
                state.partitions.add(tp)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        whose = GroupMetadata(group) if isinstance(group, str) else group
        places = {tp: checked_position(tp, place) for tp, place in offsets.items()}
        with self._turn:
            state, deadline = self._state, self._block_deadline()
            state.check_write()
            assert state.identity is not None
            who = state.identity
            if not places:
                return
            # In version 2 (KIP-890) the group's coordinator adds its partition when it gets TxnOffsetCommit.
            if state.version == 1 and whose.group_id not in state.groups:
                self._call_coordinator(lambda: self._calls.add_offsets(who, whose.group_id, deadline))
            state.groups.add(whose.group_id)
            self._call_coordinator(lambda: self._calls.commit_offsets(who, places, whose, state.version, deadline))

    def commit_transaction(self) -> None:
        """As `Producer.commit_transaction`."""
        with self._turn:
            until = time.monotonic() + self._block_s
            with self._shared.lock:
                self._state.begin_commit()
            # The coordinator writes the markers as soon as it gets EndTxn: every record must be acknowledged before.
            self._flush(seconds_left(until))
            with self._shared.lock:
                self._state.begin_commit()  # raises if a record has failed during the flush
            self._end_transaction(commit=True, until=until)

    def abort_transaction(self) -> None:
        """As `Producer.abort_transaction`."""
        with self._turn:
            self._abort_until(time.monotonic() + self._block_s)

    def abort_at_close(self, until: float) -> None:
        """Abort an open transaction because the producer closes; takes at most `max.block.ms`, and until `until`.

        If that fails, the coordinator aborts it after `transaction.timeout.ms`.
        """
        until = min(until, time.monotonic() + self._block_s)
        left = seconds_left(until)
        # Another thread may be in a call about the transaction, and close must not wait longer for it than it was
        # given.
        if not left or not self._turn.acquire(timeout=left):
            return
        try:
            if self.is_open:
                self._abort_until(until)
        except ClientError as error:
            _log.warning("producer: close could not abort the transaction, transaction.timeout.ms will: %s", error)
        finally:
            self._turn.release()

    def _abort_until(self, until: float) -> None:
        with self._shared.lock:
            self._state.begin_abort()
            # Unanswered batches must be settled before the end marker is written, or they could be appended after it.
            self._core.give_up(UsageError("the transaction of this record was aborted"))
            self._sender.request_work()
            incomplete = self._core.accumulator.incomplete
            if not self._shared.wait_until(lambda: not incomplete, seconds_left(until)):
                raise DeadlineError("records of the transaction are not acknowledged yet", "Abort again")
        self._end_transaction(commit=False, until=until)

    def _end_transaction(self, *, commit: bool, until: float) -> None:
        state = self._state
        assert state.identity is not None
        who, deadline = state.identity, Deadline(until)
        identity: ProducerId | None = None
        # The coordinator does not know an empty transaction, and would refuse to end it.
        if not state.is_empty:
            identity = self._call_coordinator(
                lambda: self._calls.end_transaction(who, commit=commit, version=state.version, deadline=deadline)
            )
        if identity is None and self._core.has_gap:
            # Sequence numbers are missing: continue in a new epoch (KIP-360).
            identity = self._call_coordinator(lambda: self._calls.init_producer_id(who, deadline))
        with self._shared.lock:
            state.on_ended(identity)
            assert state.identity is not None
            self._core.begin_epoch(state.identity)

    def _call_coordinator(self, ask: Callable[[], _R]) -> _R:
        """Send a request; an error changes the state, except a timeout, after which the call can be repeated."""
        try:
            return ask()
        # The outcome is unknown, not failed: the same call is valid again, and the coordinator recognizes it.
        except DeadlineError:
            raise
        except ClientError as error:
            with self._shared.lock:
                self._state.on_failed(error)
            raise

    def _block_deadline(self) -> Deadline:
        return Deadline.after_ms(self._block_s * 1000)
