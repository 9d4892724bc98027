"""Asks transaction coordinators to verify or to add partitions of a transaction (KIP-890).

Zone: deterministic. Gathers the questions for each coordinator into one request at a time; `verification` interprets
the answers.

AddPartitionsToTxn, version 5. Producers that add their partitions themselves need a verification only; for producers
of transaction version 2, which leave that to the partition's leader, the request adds the partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from ottla.broker_client import BrokerClient
from ottla.changes import changes_state
from ottla.errors import ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Clock, Failure
from ottla.types import TopicPartition
from ottla.wire.messages.add_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

VERSION: Final = 5
LANE: Final = "transaction verification"
TRANSACTIONS_PER_REQUEST: Final = 1000
_NS_PER_MS: Final = 1_000_000

VerificationCodes = Mapping[TopicPartition, ErrorCode]
CoordinatorOf = Callable[[str], "int | None"]
"""The broker that coordinates a transactional id; None while there is no coordinator."""
LocalCoordinator = Callable[["VerificationRequest", Callable[[VerificationCodes], None]], bool]
"""Asks the coordinator on this broker; it calls back within the call or later. False: this broker does not coordinate
the transactional id, and does not call back."""


class VerificationRequest:
    """A question: do the partitions belong to the transaction of a producer?"""

    __slots__ = ("add", "done", "epoch", "partitions", "producer_id", "since_ns", "transactional_id")

    def __init__(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
        done: Callable[[VerificationCodes], None],
    ) -> None:
        """`add`: add them to the transaction. `done` receives a code for each of them, exactly once."""
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch
        self.partitions = partitions
        self.add = add
        self.done = done
        self.since_ns = 0

    def complete_all(self, code: ErrorCode) -> None:
        """Answer the same code for all partitions."""
        self.done(dict.fromkeys(self.partitions, code))


class _AnswerHere:
    """Receives the answer of a coordinator on this broker, within the call or later."""

    __slots__ = ("_deliver", "_question", "codes", "is_late")

    def __init__(
        self, tell: Callable[[VerificationRequest, VerificationCodes], None], question: VerificationRequest
    ) -> None:
        """`tell` receives an answer that comes after the call."""
        self._deliver = tell
        self._question = question
        self.codes: VerificationCodes | None = None
        self.is_late = False

    def __call__(self, codes: VerificationCodes) -> None:
        """Receive the answer."""
        if self.is_late:
            self._deliver(self._question, codes)
        else:
            self.codes = codes


class Verifier:
    """Verifies transactions for all partitions of this broker."""

    def __init__(
        self,
        peers: BrokerClient,
        clock: Clock,
        purgatory: Purgatory,
        later: Callable[[Callable[[], None]], None],
        coordinator_of: CoordinatorOf,
        ask_local: LocalCoordinator | None,
        timeout_ms: int = 30_000,
        backoff_ms: int = 20,
        backoff_max_ms: int = 100,
    ) -> None:
        """`ask_local` asks coordinators on this broker without a request; None: they get requests like all others.

        `timeout_ms`: request.timeout.ms; the two others: add.partitions.to.txn.retry.backoff.ms and ….max.ms.
        """
        self.coordinator_of = coordinator_of
        self.ask_local = ask_local
        self._peers = peers
        self._clock = clock
        self._purgatory = purgatory
        self._later = later
        self._timeout_ms = timeout_ms
        self._backoff_ms = backoff_ms
        self._patience_ns = backoff_max_ms * _NS_PER_MS
        self._waiting: list[VerificationRequest] = []
        self._planned = False
        self._queued: dict[int, list[VerificationRequest]] = {}
        """Per coordinator with a request in flight: the questions that wait for its answer before they are sent."""

    @changes_state
    def ask_at_once(self, question: VerificationRequest) -> VerificationCodes | None:
        """The answer, if the coordinator is on this broker and answers within the call.

        None: the question's `done` receives the answer in a later turn.
        """
        question.since_ns = self._clock.now().mono_ns
        answer = _AnswerHere(self._on_local_answer, question)
        # 1. Another broker coordinates: the question travels with the next request.
        if self.ask_local is None or not self.ask_local(question, answer):
            self._queue_requests((question,))
            return None
        codes = answer.codes
        if codes is None:  # 2. the coordinator here has to write first
            answer.is_late = True
        elif question.add and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values():
            # 3. The producer's last transaction is about to complete: ask again after a moment.
            self._on_local_answer(question, codes)
            return None
        return codes

    @changes_state
    def _queue_requests(self, questions: Sequence[VerificationRequest]) -> None:
        self._waiting += questions
        if self._waiting and not self._planned:
            self._planned = True
            self._later(self._send_pending)

    @changes_state
    def _send_pending(self) -> None:
        """Send one request to each coordinator that has none in flight; other questions wait for its answer."""
        self._planned = False
        waiting, self._waiting = self._waiting, []
        by_node: dict[int, list[VerificationRequest]] = {}
        for question in waiting:
            # The coordinator may have moved to this broker while the question was queued.
            if self.ask_local is not None and self.ask_local(question, partial(self._on_local_answer, question)):
                continue
            # Looked up at the sending, not when the question came: it may have waited for the answer of a former
            # coordinator.
            node = self.coordinator_of(question.transactional_id)
            if node is None:
                question.complete_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                by_node.setdefault(node, []).append(question)
        for node, questions in by_node.items():
            if node in self._queued:
                self._queued[node] += questions
            else:
                self._send_requests(node, questions)

    def _on_local_answer(self, question: VerificationRequest, codes: VerificationCodes) -> None:
        """Settle at the end of the turn, not within the coordinator's own step: it may ask the coordinator again."""
        self._later(partial(self._settle_request, question, codes))

    def _send_requests(self, node: int, questions: Sequence[VerificationRequest]) -> None:
        """Send questions to a coordinator, each transactional id once: the response is keyed by it."""
        asked: dict[str, VerificationRequest] = {}
        behind = self._queued[node] = []
        for question in questions:
            if question.transactional_id in asked or len(asked) >= TRANSACTIONS_PER_REQUEST:
                behind.append(question)
            else:
                asked[question.transactional_id] = question
        self._call_coordinator(node, asked)

    def _call_coordinator(self, node: int, asked: Mapping[str, VerificationRequest]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[_build_transaction(question) for question in asked.values()])
        self._peers.send_request(
            node, request, VERSION, self._timeout_ms, partial(self._on_response, node, asked), LANE
        )

    @changes_state
    def _on_response(
        self, node: int, asked: Mapping[str, VerificationRequest], answer: AddPartitionsToTxnResponse | Failure
    ) -> None:
        behind = self._queued.pop(node)
        if isinstance(answer, Failure) or answer.error_code:
            code = ErrorCode.NETWORK_EXCEPTION if isinstance(answer, Failure) else _known_code(answer.error_code)
            for question in asked.values():
                question.complete_all(code)
        else:
            found = {result.transactional_id: _codes_by_partition(result) for result in answer.results_by_transaction}
            for name, question in asked.items():
                self._deliver_codes(question, found.get(name, {}))
        self._queue_requests(behind)

    def _deliver_codes(self, question: VerificationRequest, codes: VerificationCodes) -> None:
        """Settle a question with the codes of a response, which may lack some of the partitions."""
        self._settle_request(
            question, {tp: codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in question.partitions}
        )

    def _settle_request(self, question: VerificationRequest, codes: VerificationCodes) -> None:
        """Report the codes, or ask again after a backoff while the transaction before is about to complete."""
        if (
            question.add
            and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            and self._clock.now().mono_ns - question.since_ns < self._patience_ns
        ):
            self._purgatory.look_after(self._backoff_ms, lambda: self._queue_requests((question,)))
        else:
            question.done(codes)


def _known_code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _build_transaction(question: VerificationRequest) -> AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for tp in question.partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.epoch,
        verify_only=not question.add,
        topics=[topic(name=name, partitions=indexes) for name, indexes in topics.items()],
    )


def _codes_by_partition(result: AddPartitionsToTxnResponse.AddPartitionsToTxnResult) -> VerificationCodes:
    return {
        TopicPartition(topic.name, one.partition_index): _known_code(one.partition_error_code)
        for topic in result.topic_results
        for one in topic.results_by_partition
    }
