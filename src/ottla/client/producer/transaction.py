"""The state machine of a transactional producer: which calls are allowed, and the effects of errors.

Zone: pure. Kafka's state rules (KIP-98), the abortable and the fatal error (KIP-588, KIP-691), and both versions of the
protocol (KIP-890: in version 2 produce requests add partitions, and every end begins a new epoch). `txn_calls` sends
the requests; the core handles the batches.

    UNINITIALIZED -> READY -> IN_TRANSACTION -> COMMITTING or ABORTING -> READY
    IN_TRANSACTION, COMMITTING -> ABORTABLE_ERROR -> ABORTING; any state -> FATAL_ERROR
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from ottla.client.errors import ClientError, ProducerFencedError, RefusedError, TransactionFailedError, UsageError
from ottla.client.producer.partition_queue import ProducerId
from ottla.errors import ErrorCode
from ottla.types import TopicPartition


class State(Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING = auto()
    """The commit was called; it may take several calls."""
    ABORTING = auto()
    ABORTABLE_ERROR = auto()
    """The transaction can only be aborted; then the producer is READY again."""
    FATAL_ERROR = auto()
    """Another producer has the transactional id, or it is forbidden: the producer must be closed."""


_FATAL: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)


class Transaction:
    """One transactional id's state in its producer."""

    __slots__ = ("error", "groups", "identity", "partitions", "state", "transactional_id", "version")

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.error: ClientError | None = None
        """The error of the two error states."""
        self.identity: ProducerId | None = None
        self.version = 1
        """The version of the protocol: 1, or 2 (KIP-890)."""
        self.partitions: set[TopicPartition] = set()
        """Partitions of this transaction that the coordinator knows or will know."""
        self.groups: set[str] = set()
        """Groups with positions in this transaction."""

    @property
    def is_empty(self) -> bool:
        """Whether the transaction has no partitions and groups, so that the coordinator does not know it."""
        return not self.partitions and not self.groups

    def check_init(self) -> None:
        """Check that `init_transactions` is allowed. Raises UsageError."""
        self._expect_state("init_transactions", State.UNINITIALIZED)

    def on_initialized(self, identity: ProducerId, version: int) -> None:
        """The coordinator has assigned a producer id and epoch."""
        self.identity = identity
        self.version = version
        self._become_ready()

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises UsageError."""
        self._expect_state("begin_transaction", State.READY)
        self.state = State.IN_TRANSACTION

    def check_write(self) -> None:
        """Check that records and positions may be added. Raises UsageError."""
        self._expect_state("send", State.IN_TRANSACTION)

    def begin_commit(self) -> None:
        """A commit begins, or is repeated after a timeout. Raises UsageError."""
        self._expect_state("commit_transaction", State.IN_TRANSACTION, State.COMMITTING)
        self.state = State.COMMITTING

    def begin_abort(self) -> None:
        """An abort begins, or is repeated; also allowed after an abortable error. Raises UsageError."""
        allowed = (State.IN_TRANSACTION, State.ABORTING, State.ABORTABLE_ERROR)
        if self.state is State.ABORTABLE_ERROR:
            self.error = None
        self._expect_state("abort_transaction", *allowed)
        self.state = State.ABORTING

    def on_ended(self, identity: ProducerId | None) -> None:
        """The coordinator has ended the transaction. identity: the next one; None: keep the present one."""
        assert self.state in (State.COMMITTING, State.ABORTING)
        self.identity = identity or self.identity
        self._become_ready()

    def on_failed(self, error: ClientError) -> None:
        """A batch or a request failed with an error that is not retried."""
        if self.state is State.FATAL_ERROR:
            return
        # 1. A fatal error stays. 2. Fenced or not allowed: fatal. 3. In a transaction: it can only be aborted. 4.
        # Outside of one the error has no effect.
        fatal = isinstance(error, RefusedError) and (isinstance(error, ProducerFencedError) or error.code in _FATAL)
        if fatal:
            self.state, self.error = State.FATAL_ERROR, error
        elif self.state in (State.IN_TRANSACTION, State.COMMITTING):
            self.state, self.error = State.ABORTABLE_ERROR, error

    def on_fenced(self, error: RefusedError) -> None:
        """The coordinator has a newer producer of this transactional id."""
        self.state, self.error = State.FATAL_ERROR, error

    def _become_ready(self) -> None:
        self.state = State.READY
        self.error = None
        self.partitions.clear()
        self.groups.clear()

    def _expect_state(self, call: str, *states: State) -> None:
        if self.state in states:
            return
        # A new object of the same class: the caller gets a fresh traceback, with the first error as its cause.
        if isinstance(self.error, ProducerFencedError):
            raise ProducerFencedError(self.error.code, self.error.subject, self.error.message) from self.error
        if self.state is State.FATAL_ERROR:
            raise UsageError(f"this producer cannot continue: {self.error}", "Close it") from self.error
        if self.state is State.ABORTABLE_ERROR:
            raise TransactionFailedError(f"the transaction has failed: {self.error}", "Abort it") from self.error
        raise UsageError(f"{call} is not possible while the producer is {self.state.name}", _NEXT[self.state])


_NEXT: Final = {
    State.UNINITIALIZED: "Call init_transactions first",
    State.READY: "Call begin_transaction first",
    State.IN_TRANSACTION: "Commit or abort the transaction first",
    State.COMMITTING: "Call commit_transaction again: the coordinator has not confirmed it",
    State.ABORTING: "Call abort_transaction again: the coordinator has not confirmed it",
}
