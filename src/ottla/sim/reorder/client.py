"""A transactional producer, of transaction version 1 or 2, and its book of outcomes.

Zone: deterministic. It knows only requests and answers. Version 1 is a producer of KIP-98: it adds partitions and
groups itself, and keeps its epoch when a transaction ends. Version 2 (KIP-890) leaves the adding to the brokers, and
continues with the epoch in the answer to EndTxn.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from ottla.wire.schema import Message

NAME: Final = "x"
"""The transactional id."""
GROUP: Final = "g"
TIMEOUT_MS: Final = 60_000
BACKOFF_MS: Final = 20
ASLEEP_MS: Final = 75_000
"""Longer than the transaction timeout and the interval in which the coordinator checks it."""
TRIES: Final = 60
_WALL_MS: Final = 1_700_000_000_000

PASSING: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
)
"""Errors after which a producer tries again."""


class Reaction(Enum):
    """The reaction of a producer to a missing answer."""

    AGAIN = "retries"
    ABORT = "aborts"
    REBORN = "restarts"
    ASLEEP = "sleeps past the transaction timeout, then retries"


class Say(NamedTuple):
    """A request to send."""

    name: str
    request: Message
    version: int
    code: Callable[[Any], int]
    """Returns the error code of the answer."""
    reactions: Sequence[Reaction] = ()
    """Possible reactions to a missing answer; empty: the answer always comes."""


class Sleep(NamedTuple):
    """Wait for a while."""

    ms: int


class Aborts(Exception):
    """The producer aborts the transaction."""


class Dies(Exception):
    """The producer's process ends; another one starts with the same transactional id."""


class Entry:
    """A transaction, from the view of its producer."""

    __slots__ = ("confirmed", "number", "offset", "record", "requested")

    def __init__(self, number: int) -> None:
        self.number = number
        self.record = False
        """Whether its record was acknowledged; `offset`: the same for its group offset."""
        self.offset = False
        self.requested: bool | None = None
        """Whether the producer requested a commit; None: it has not sent EndTxn."""
        self.confirmed: bool | None = None
        """Whether the coordinator confirmed a commit (True) or an abort (False); None: no answer."""

    @property
    def value(self) -> bytes:
        """The value of its record."""
        return b"%d" % self.number

    @property
    def position(self) -> int:
        """The offset that it commits for the group."""
        return 10 + self.number


Life = Generator["Say | Sleep", Any, None]


class Producer:
    """All transactions of one transactional id, over several lives of its process."""

    def __init__(self, version: int, plan: Sequence[bool]) -> None:
        """`plan`: for each transaction, whether it is to be committed."""
        self.book: list[Entry] = []
        self.complaints: list[str] = []
        """Errors without an excuse."""
        self._version = version
        self._plan = plan
        self._id, self._epoch, self._sequence = -1, -1, 0
        self._began = False
        """Whether the coordinator may know of the transaction."""
        self._saying = ""
        """The name of the request that it sends, or is about to retry."""
        self._excused = False
        """Whether this process has slept past the transaction timeout, so that it may be fenced."""

    def state_facts(self) -> object:
        """All state that its next steps depend on."""
        book = [(entry.record, entry.offset, entry.requested, entry.confirmed) for entry in self.book]
        return book, self._identity_fields, self._sequence, self._began, self._excused, self._saying, self.complaints

    def run_life(self) -> Life:
        """The steps of its whole life."""
        yield from self._init_producer_id()
        for number, commit in enumerate(self._plan):
            entry = Entry(number)
            self.book.append(entry)
            try:
                yield from self._run_transaction(entry, commit)
            except Dies:
                yield from self._init_producer_id()

    def _init_producer_id(self) -> Life:
        request = InitProducerIdRequest(transactional_id=NAME, transaction_timeout_ms=TIMEOUT_MS)
        say = Say("InitProducerId", request, 5, lambda answer: answer.error_code)
        answer = yield from self._send_checked(say)
        self._adopt_epoch(answer.producer_id, answer.producer_epoch)
        self._excused = False

    def _run_transaction(self, entry: Entry, commit: bool) -> Life:
        self._began = False
        try:
            yield from self._write_entry(entry)
        except Aborts:
            commit = False
        if self._began:
            yield from self._end_transaction(entry, commit)

    def _write_entry(self, entry: Entry) -> Life:
        if self._version < 2:
            yield from self._send_checked(self._add_partitions())
        self._began = True
        yield from self._send_checked(self._produce_entry(entry))
        entry.record = True
        self._sequence += 1
        if self._version < 2:
            yield from self._send_checked(self._add_offsets())
        yield from self._send_checked(self._commit_offset(entry))
        entry.offset = True

    def _end_transaction(self, entry: Entry, commit: bool) -> Life:
        entry.requested = commit
        answer = yield from self._send_checked(self._end_txn(commit))
        entry.confirmed = commit
        if self._version >= 2:
            self._adopt_epoch(answer.producer_id, answer.producer_epoch)

    def _adopt_epoch(self, producer_id: int, epoch: int) -> None:
        """Continue with this epoch; a new one begins with sequence 0."""
        if (producer_id, epoch) != (self._id, self._epoch):
            self._id, self._epoch, self._sequence = producer_id, epoch, 0

    # -- sending -------------------------------------------------------------------------------------------------------

    def _send_checked(self, say: Say) -> Generator[Say | Sleep, Any, Any]:
        """Send a request until its answer has no error, and return that. Raises Aborts, Dies."""
        code = ErrorCode.REQUEST_TIMED_OUT
        self._saying = say.name
        for _ in range(TRIES):
            # 1. A reaction instead of an answer: none came. Retry, abort, restart or sleep.
            # 2. No error: done.
            # 3. A fatal error ends the transaction or the process; a retriable one is retried after a pause.
            heard = yield say
            if isinstance(heard, Reaction):
                yield from self._react_to_silence(heard)
                continue
            code = ErrorCode(say.code(heard))
            if code is ErrorCode.NONE:
                return heard
            if code not in PASSING:
                self._on_refused(say, code)
            yield Sleep(BACKOFF_MS)
        self.complaints.append(f"{say.name} gets {code.name} in every attempt")
        raise Dies

    def _react_to_silence(self, reaction: Reaction) -> Generator[Sleep, Any, None]:
        if reaction is Reaction.ABORT:
            raise Aborts
        if reaction is Reaction.REBORN:
            raise Dies
        if reaction is Reaction.ASLEEP:
            self._excused = True
            yield Sleep(ASLEEP_MS)

    def _on_refused(self, say: Say, code: ErrorCode) -> None:
        """A fatal error ends the transaction, or the process."""
        if not self._excused:
            self.complaints.append(f"{say.name} gets {code.name} although the producer is alone and in time")
        if code is ErrorCode.PRODUCER_FENCED or say.name in ("EndTxn", "InitProducerId"):
            raise Dies
        raise Aborts

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def _identity_fields(self) -> dict[str, Any]:
        return {"transactional_id": NAME, "producer_id": self._id, "producer_epoch": self._epoch}

    def _add_partitions(self) -> Say:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0])
        who = {f"v3_and_below_{key}": value for key, value in self._identity_fields.items()}
        request = AddPartitionsToTxnRequest(**who, v3_and_below_topics=[topic])
        return Say("AddPartitionsToTxn", request, 3, _code_of_added, tuple(Reaction))

    def _produce_entry(self, entry: Entry) -> Say:
        batch = encode_batch(
            [Record(0, _WALL_MS, None, entry.value, ())],
            producer_id=self._id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            transactional=True,
        )
        part = ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytes(batch)))
        topic = ProduceRequest.TopicProduceData(name="t", partition_data=[part])
        request = ProduceRequest(transactional_id=NAME, acks=-1, timeout_ms=30_000, topic_data=[topic])
        return Say("Produce", request, 12 if self._version >= 2 else 11, _code_of_produced, tuple(Reaction))

    def _add_offsets(self) -> Say:
        request = AddOffsetsToTxnRequest(**self._identity_fields, group_id=GROUP)
        return Say("AddOffsetsToTxn", request, 3, lambda answer: answer.error_code, tuple(Reaction))

    def _commit_offset(self, entry: Entry) -> Say:
        row = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
        part = row(partition_index=0, committed_offset=entry.position, committed_metadata="")
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="t", partitions=[part])
        request = TxnOffsetCommitRequest(**self._identity_fields, group_id=GROUP, topics=[topic])
        return Say("TxnOffsetCommit", request, 5 if self._version >= 2 else 4, _code_of_offsets, tuple(Reaction))

    def _end_txn(self, commit: bool) -> Say:
        request = EndTxnRequest(**self._identity_fields, committed=commit)
        undecided = (Reaction.AGAIN, Reaction.REBORN, Reaction.ASLEEP)
        return Say("EndTxn", request, 5 if self._version >= 2 else 4, lambda answer: answer.error_code, undecided)


def _code_of_added(answer: Any) -> int:
    code: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    return code


def _code_of_produced(answer: Any) -> int:
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def _code_of_offsets(answer: Any) -> int:
    code: int = answer.topics[0].partitions[0].error_code
    return code
