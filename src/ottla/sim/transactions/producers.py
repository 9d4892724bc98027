"""A transactional producer: one identity, one transaction at a time.

Zone: deterministic. With transaction version 1 the producer takes a new epoch after each transaction in which a request
got no answer, because that request may still arrive, and must not become part of the next transaction. Version 2 takes
a new epoch after every transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.networks.wire_client import Route
from ottla.sim.transactions.finding import GROUP, LATER, TRANSACTION, CoordinatorFinder
from ottla.sim.transactions.history import Committed, Fate, TransactionHistory, Txn
from ottla.sim.transactions.steps import RETRY_NS, Steps, pause_client, request_broker, send_later
from ottla.sim.world import MS, WALL_START_MS
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from ottla.wire.schema import Message

M = TypeVar("M", bound=Message)

LATE: Final = 0.02
"""Chance that a duplicate of a request arrives much later."""
ATTEMPTS: Final = 25
"""Attempts of a Produce request before the transaction is aborted."""
TIMEOUT_MS: Final = 2000
FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
ABORTABLE: Final = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
EVICTED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
NOT_YET: Final = LATER | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}


REFUSED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Answers after which nothing of the request is pending: it was not done, or a successor found it done."""


class Fenced(Exception):
    """Another producer has the transactional id, or the transaction has timed out."""


class Abortable(Exception):
    """This transaction can only be aborted."""


class Evicted(Exception):
    """The member is not in the present generation of the group."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Membership:
    """The member that commits offsets; by default none."""

    generation = -1
    member_id = ""
    instance_id: str | None = None


class TransactionalProducer:
    """One producer instance. Methods are steps of its client."""

    def __init__(
        self,
        client: ClusterClient,
        coordinators: CoordinatorFinder,
        random: Stream,
        history: TransactionHistory,
        transactional_id: str,
        version: int,
    ) -> None:
        """`version`: 1, or 2 (KIP-890)."""
        self.client = client
        self.transactional_id = transactional_id
        self.version = version
        self.timeout_ms = random.choice((2500, 4000, 8000))
        self.txn: Txn | None = None
        self.identity: tuple[int, int] | None = None
        self.doubtful = False
        """A request of the present epoch may still be in flight."""
        self._coordinators = coordinators
        self._random = random
        self._history = history
        self._sequences: dict[Route, int] = {}
        self._added: dict[Route, None] = {}
        self._groups: dict[str, None] = {}

    # ---- identity ----

    def init_producer_id(self) -> Steps[None]:
        """Take the transactional id, or raise its epoch if this producer has it. Raises Fenced if another one has it.

        The coordinator aborts an open transaction of the id.
        """
        self.abandon_transaction()
        while True:
            code = yield from self._init_once()
            if code is ErrorCode.NONE:
                return
            if code in FENCED:
                self.identity = None
                raise Fenced
            yield from self._coordinators.wait_to_retry(TRANSACTION, self.transactional_id, code)

    def _init_once(self) -> Steps[ErrorCode]:
        version = self._random.choice((3, 4, 5) if self.identity else (0, 1, 2, 4, 5))
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        if self.identity is not None:
            request.producer_id, request.producer_epoch = self.identity
        answer = yield from self._coordinators.send_to_coordinator(
            TRANSACTION, self.transactional_id, request, version, InitProducerIdResponse
        )
        if answer is None:
            return ErrorCode.NETWORK_EXCEPTION
        if not answer.error_code:
            self._set_identity(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def _set_identity(self, producer_id: int, epoch: int) -> None:
        if self.identity != (producer_id, epoch):
            self._sequences.clear()
        self.identity = (producer_id, epoch)
        self.doubtful = False

    def renew_epoch(self) -> Steps[None]:
        """After a transaction: take a new epoch if a late request of the present one may still arrive."""
        if self.doubtful:
            yield from self.init_producer_id()

    # ---- a transaction ----

    def begin_transaction(self) -> Txn:
        """Begin a transaction; the cluster learns of it with its first partition."""
        assert self.identity is not None, "init() comes before a transaction"
        number = len(self._history.txns)
        txn = Txn(
            f"{self.client.name} {number}",
            self.client.name,
            self.transactional_id,
            *self.identity,
            self.client.timeline.now_ns,
            number,
        )
        self._history.txns.append(txn)
        self.txn = txn
        self._added.clear()
        self._groups.clear()
        return txn

    def abandon_transaction(self) -> None:
        """Give the transaction up. Without a request for a commit it counts as aborted."""
        txn, self.txn = self.txn, None
        if txn is not None and txn.fate is Fate.OPEN and txn.commit_sent_ns < 0:
            txn.fate, txn.ended_ns = Fate.ABORTED, self.client.timeline.now_ns

    def send_values(self, route: Route, values: Sequence[bytes], wait: bool = True) -> Steps[None]:
        """Write values to a partition; with `wait`, until they are acknowledged. Raises Fenced, Abortable."""
        txn = self._open_transaction()
        for value in values:
            txn.values[value] = self._history.log_of_route(route)
        if self.version == 1:
            yield from self._add_route(route)
        request = self._produce_request(route, values)
        if wait:
            yield from self._produce_route(route, request, values)
        else:
            self.doubtful = True
            seen = self.client.view.get(route)
            if seen is not None and seen.leader >= 0:
                yield from send_later(
                    seen.leader, request, self._produce_version(), ProduceResponse, self._draw_delay()
                )

    def _draw_delay(self) -> int:
        """Draw the delay of a request whose answer is not awaited."""
        return self._random.random_below(2000 * MS) if self._random.chance(0.7) else 0

    def _send_to_coordinator(
        self, kind: int, key: str, message: Message, version: int, response: type[M]
    ) -> Steps[M | None]:
        """Send a request to a coordinator; sometimes a duplicate of it arrives much later."""
        if self._random.chance(LATE):
            self.doubtful = True
            node = yield from self._coordinators.find_coordinator(kind, key)
            yield from send_later(node, message, version, response, self._random.random_below(3000 * MS))
        return (yield from self._coordinators.send_to_coordinator(kind, key, message, version, response))

    def _open_transaction(self) -> Txn:
        assert self.txn is not None, "no transaction"
        return self.txn

    def _current_identity(self) -> tuple[int, int]:
        assert self.identity is not None, "no identity"
        return self.identity

    def _add_route(self, route: Route) -> Steps[None]:
        if route in self._added:
            return
        producer_id, epoch = self._current_identity()
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=route[0], partitions=[route[1]])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic],
        )
        while True:
            version = self._random.random_below(4)
            answer = yield from self._send_to_coordinator(
                TRANSACTION, self.transactional_id, request, version, AddPartitionsToTxnResponse
            )
            number = (
                ErrorCode.NETWORK_EXCEPTION
                if answer is None
                else answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            )
            if (yield from self._is_accepted(ErrorCode(number))):
                self._added[route] = None
                return

    def _is_accepted(self, code: ErrorCode) -> Steps[bool]:
        """Whether the coordinator accepted; False: retry. Raises Fenced, Abortable."""
        if code is ErrorCode.NONE:
            return True
        if code in FENCED:
            raise Fenced
        if code in ABORTABLE:
            self.doubtful = True
            raise Abortable
        # Without a definite answer the request may still be carried out later.
        self.doubtful = self.doubtful or code not in REFUSED
        yield from self._coordinators.wait_to_retry(TRANSACTION, self.transactional_id, code)
        return False

    # ---- Produce ----

    def _produce_version(self) -> int:
        return 12 if self.version == 2 else self._random.choice((3, 7, 8, 9, 10, 11))

    def _produce_request(self, route: Route, values: Sequence[bytes]) -> ProduceRequest:
        producer_id, epoch = self._current_identity()
        sequence = self._sequences.get(route, 0)
        self._sequences[route] = sequence + len(values)
        stamp = WALL_START_MS + self.client.timeline.now_ns // MS
        batch = encode_batch(
            [Record(at, stamp, None, value) for at, value in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        partition = ProduceRequest.PartitionProduceData(index=route[1], records=bytes(batch))
        topic = ProduceRequest.TopicProduceData(name=route[0], partition_data=[partition])
        return ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[topic]
        )

    def _produce_route(self, route: Route, request: ProduceRequest, values: Sequence[bytes]) -> Steps[None]:
        for _ in range(ATTEMPTS):
            seen = self.client.view.get(route)
            answer = None
            if seen is not None and seen.leader >= 0:
                version = self._produce_version()
                if self._random.chance(LATE):
                    self.doubtful = True
                    yield from send_later(
                        seen.leader, request, version, ProduceResponse, self._random.random_below(3000 * MS)
                    )
                answer = yield from request_broker(seen.leader, request, version, ProduceResponse)
                self.doubtful = self.doubtful or answer is None
            if answer is not None:
                row = answer.responses[0].partition_responses[0]
                if self._note_sent(ErrorCode(row.error_code), values, row.base_offset):
                    return
            self.client.mark_metadata_stale()
            yield from pause_client(RETRY_NS)
        self.doubtful = True
        raise Abortable

    def _note_sent(self, code: ErrorCode, values: Sequence[bytes], offset: int) -> bool:
        # 1. Written, now or by an earlier attempt whose answer was lost; the offset may then be unknown.
        # 2. Fenced: the producer is over.
        # 3. Abortable: only this transaction is over.
        # 4. Anything else is retried; the batch may be written, so the epoch is doubtful.
        txn = self._open_transaction()
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            for at, value in enumerate(values):
                txn.written[value] = -1 if code or offset < 0 else offset + at
            return True
        if code in FENCED:
            raise Fenced
        self.doubtful = True
        if code in ABORTABLE:
            raise Abortable
        return False

    # ---- offsets ----

    def commit_offsets(self, group: str, member: Membership, positions: Mapping[Route, int]) -> Steps[None]:
        """Make positions of a group part of the transaction. Raises Fenced, Abortable, Evicted."""
        if self.version == 1:
            yield from self._add_group(group)
        producer_id, epoch = self._current_identity()
        row, topics = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition, dict[str, list[object]]()
        for (topic, partition), offset in positions.items():
            topics.setdefault(topic, []).append(
                row(
                    partition_index=partition, committed_offset=offset, committed_metadata=self._open_transaction().name
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=rows)  # type: ignore[arg-type]
                for name, rows in topics.items()
            ],
        )
        asked_ns = self.client.timeline.now_ns
        while not (yield from self._send_offsets(group, request)):
            asked_ns = self.client.timeline.now_ns
        self._note_offsets(group, member, positions, asked_ns)

    def _note_offsets(self, group: str, member: Membership, positions: Mapping[Route, int], asked_ns: int) -> None:
        txn, now_ns, promises = self._open_transaction(), self.client.timeline.now_ns, self._history.promises
        for route, offset in positions.items():
            txn.positions[group, route] = offset
            promises.append(Committed(group, route, offset, txn.name, member.generation, asked_ns, now_ns))

    def _send_offsets(self, group: str, request: TxnOffsetCommitRequest) -> Steps[bool]:
        version = 5 if self.version == 2 else self._random.choice((3, 4))
        answer = yield from self._send_to_coordinator(GROUP, group, request, version, TxnOffsetCommitResponse)
        if answer is None:
            self.doubtful = True
            yield from pause_client(RETRY_NS)
            return False
        codes = [ErrorCode(row.error_code) for topic in answer.topics for row in topic.partitions if row.error_code]
        if not codes:
            return True
        if codes[0] in FENCED:
            raise Fenced
        self.doubtful = True
        if codes[0] in ABORTABLE:
            raise Abortable
        if codes[0] in EVICTED:
            raise Evicted(codes[0])
        yield from self._coordinators.wait_to_retry(GROUP, group, codes[0])
        return False

    def _add_group(self, group: str) -> Steps[None]:
        producer_id, epoch = self._current_identity()
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, group_id=group
        )
        while group not in self._groups:
            version = self._random.random_below(5)
            answer = yield from self._send_to_coordinator(
                TRANSACTION, self.transactional_id, request, version, AddOffsetsToTxnResponse
            )
            number = ErrorCode.NETWORK_EXCEPTION if answer is None else answer.error_code
            if (yield from self._is_accepted(ErrorCode(number))):
                self._groups[group] = None

    # ---- the end ----

    def end_transaction(self, commit: bool) -> Steps[None]:
        """Commit or abort. Raises Fenced; it may then be unknown whether the transaction committed."""
        txn = self._open_transaction()
        if commit:
            txn.commit_sent_ns = self.client.timeline.now_ns
        unsure = False  # an earlier attempt without a definite answer may have committed
        while True:
            code = yield from self._end_once(commit)
            if code is ErrorCode.NONE:
                txn.fate = Fate.COMMITTED if commit else Fate.ABORTED
                txn.ended_ns = self.client.timeline.now_ns
                self.txn = None
                return
            # A fenced EndTxn means an abort, unless an earlier attempt may have committed.
            if code in FENCED or code in ABORTABLE:
                if not (commit and unsure):
                    txn.fate, txn.ended_ns = Fate.ABORTED, self.client.timeline.now_ns
                self.txn = None
                self.doubtful = True
                raise Fenced
            if code not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                unsure = self.doubtful = True
            yield from self._coordinators.wait_to_retry(TRANSACTION, self.transactional_id, code)

    def end_request(self, commit: bool) -> EndTxnRequest:
        """EndTxn of the present transaction."""
        producer_id, epoch = self._current_identity()
        return EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )

    def _end_once(self, commit: bool) -> Steps[ErrorCode]:
        version = 5 if self.version == 2 else self._random.random_below(5)
        request = self.end_request(commit)
        answer = yield from self._send_to_coordinator(
            TRANSACTION, self.transactional_id, request, version, EndTxnResponse
        )
        if answer is None:
            return ErrorCode.NETWORK_EXCEPTION
        if not answer.error_code and version == 5:
            self._set_identity(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def end_without_waiting(self, commit: bool) -> Steps[None]:
        """Send EndTxn without waiting for the answer; the caller dies next."""
        if commit:
            self._open_transaction().commit_sent_ns = self.client.timeline.now_ns
        node = yield from self._coordinators.find_coordinator(TRANSACTION, self.transactional_id)
        version = 5 if self.version == 2 else 3
        yield from send_later(node, self.end_request(commit), version, EndTxnResponse, self._draw_delay())

    def abort_transaction(self) -> Steps[None]:
        """Abort, whatever state the transaction is in. Raises Fenced."""
        if self.txn is not None and self.txn.commit_sent_ns < 0 and (self._added or self._groups or self.version == 2):
            yield from self.end_transaction(commit=False)
        else:
            self.abandon_transaction()
