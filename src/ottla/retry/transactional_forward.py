"""A transaction of the mover: the forwarded records, and the group's new positions.

Zone: real. The producer is an ordinary transactional one; records and positions are committed together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import (
    ClientError,
    DeadlineError,
    ProducerFencedError,
    RefusedError,
    TransactionFailedError,
    UsageError,
)
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.client.producer import Producer, SendFuture
from ottla.errors import ErrorCode
from ottla.retry.destinations import Destinations
from ottla.retry.errors import RetryError
from ottla.retry.headers import read_trail, with_trail
from ottla.retry.offset_metadata import position_of
from ottla.retry.record_cache import RecordCache
from ottla.retry.routing import Route, Router
from ottla.retry.scheduler import Ref
from ottla.retry.window import Window
from ottla.types import TopicPartition

# Ten minutes with the max.block.ms of 15 s below.
_COMMITS: Final = 40
"""How often ending a transaction is tried, each time for max.block.ms."""
_TAKE_OVERS: Final = 6
_CLOSE_S: Final = 5.0
_FINAL: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.POLICY_VIOLATION,
)
"""Errors that a retry cannot solve: the record becomes a dead letter."""


class DueRecord(NamedTuple):
    """A due record; they sort by due time."""

    due_ms: int
    tp: TopicPartition
    offset: int
    record: ConsumerRecord


class ForwardOutcome(NamedTuple):
    """The result of a transaction."""

    dead: int = 0
    rewritten: Sequence[Ref] = ()
    error: ClientError | None = None
    """Why it was aborted: no record was forwarded."""


class _RecordRefusedError(Exception):
    """The producer or the broker refused a record."""

    def __init__(self, item: DueRecord, route: Route, error: ClientError) -> None:
        self.item, self.route, self.error = item, route, error


ForwardedRecord = tuple[DueRecord, Route, SendFuture]


class TransactionalForward:
    """The producer, and the records that were refused."""

    def __init__(
        self,
        settings: Mapping[str, str | int | bool],
        transactional_id: str,
        router: Router,
        payloads: RecordCache,
        destinations: Destinations,
        step: Callable[[str], object],
    ) -> None:
        """Raises ConfigError, and ClientError when the transactional id cannot be taken over."""
        self._begun = False
        self._step = step
        self._id = transactional_id
        self._router = router
        self._payloads = payloads
        self._destinations = destinations
        self._refused: dict[tuple[TopicPartition, int], str] = {}
        # Records fail (20 s) before the coordinator aborts the transaction (30 s): an error then names its record.
        self._producer = Producer(
            {"linger.ms": 0, "max.block.ms": 15_000, "transaction.timeout.ms": 30_000, "request.timeout.ms": 10_000,
             "delivery.timeout.ms": 20_000, **settings, "transactional.id": transactional_id}
        )  # fmt: skip
        try:
            self._take_over()
        except BaseException:
            self._producer.close(0)
            raise

    def _take_over(self) -> None:
        """Take the transactional id; a new cluster that has to create its internal topics may need several tries."""
        for attempt in range(_TAKE_OVERS):
            try:
                self._producer.init_transactions()
            except DeadlineError:
                if attempt == _TAKE_OVERS - 1:
                    raise
            else:
                return

    def close_producer(self) -> None:
        """Abort an open transaction, because it hides later records from readers. If the cluster does not answer soon,
        the coordinator aborts it later."""
        self._producer.close(_CLOSE_S)

    def forward_records(
        self,
        items: Sequence[DueRecord],
        windows: Mapping[TopicPartition, Window],
        generations: Mapping[TopicPartition, str],
        group: GroupMetadata,
    ) -> ForwardOutcome:
        """Write the records and the positions, and commit. Raises RetryError when it cannot continue."""
        by_place: dict[TopicPartition, list[int]] = {}
        for each in items:
            by_place.setdefault(each.tp, []).append(each.offset)
        for tp, offsets in by_place.items():
            windows[tp].mark_forwarded(offsets)
        # Only now it is known how many runs the position will have: rewrite waiting records if they are too many.
        crowded = {tp: windows[tp].offsets_to_rewrite() for tp in by_place}
        for tp, offsets in crowded.items():
            windows[tp].mark_forwarded(offsets)
        places = {tp: position_of(windows[tp], generations[tp]) for tp in by_place}
        self._begun = False
        try:
            outcome = self._run_transaction(items, crowded, places, group)
        except ClientError as error:
            for tp, offsets in by_place.items():
                # Before the abort, which may raise: no window may count a record as forwarded that was not.
                windows[tp].mark_waiting([*offsets, *crowded[tp]])
            self._abort_transaction(error)
            return ForwardOutcome(error=error)
        for tp in by_place:
            windows[tp].on_committed()
        for each in items:
            self._refused.pop((each.tp, each.offset), None)
        return outcome

    def _run_transaction(
        self,
        items: Sequence[DueRecord],
        crowded: Mapping[TopicPartition, Sequence[int]],
        positions: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
    ) -> ForwardOutcome:
        # Read before the transaction begins: slow reads would use up its transaction.timeout.ms.
        again = self._payloads.take_records([(tp, offset) for tp, offsets in crowded.items() for offset in offsets])
        try:
            routes = self._route_records(items)
            self._producer.begin_transaction()
            self._begun = True
            self._step("begun")
            sent: list[ForwardedRecord] = []
            with _blame_record(sent):
                for item, route in routes:
                    sent.append(self._send_record(item, route))
                rewritten = [self._rewrite_record(tp, record) for (tp, _), record in again.items()]
                self._step("sent")
                self._producer.send_offsets_to_transaction(positions, group)
                self._step("offsets")
                self._commit_transaction()
        except _RecordRefusedError as refused:
            self._note_refused(refused)
            raise refused.error from refused
        self._step("committed")
        return ForwardOutcome(sum(route.is_dead for _, route, _ in sent), rewritten)

    def _route_records(self, items: Sequence[DueRecord]) -> list[tuple[DueRecord, Route]]:
        routes = [(item, self._route_record(item)) for item in items]
        # Look for missing topics before the transaction begins: nothing has to be aborted then.
        self._destinations.refresh_topics(route.topic for _, route in routes)
        for item, route in routes:
            missing = self._destinations.missing_topic_error(route.topic)
            if missing is not None:
                raise _RecordRefusedError(item, route, missing)
        return routes

    def _route_record(self, item: DueRecord) -> Route:
        why = self._refused.get((item.tp, item.offset))
        return self._router.route_due(item.record) if why is None else self._router.route_refused(item.record, why)

    def _send_record(self, item: DueRecord, route: Route) -> ForwardedRecord:
        record = item.record
        try:
            future = self._producer.send(route.topic, record.value, key=record.key, headers=route.headers)
        except (TransactionFailedError, ProducerFencedError):
            raise  # not because of this record
        except (RefusedError, UsageError, DeadlineError) as error:
            raise _RecordRefusedError(item, route, error) from error
        return item, route, future

    def _rewrite_record(self, tp: TopicPartition, record: ConsumerRecord) -> Ref:
        """Write a record again to the end of its own partition, with the same due time."""
        due = self._router.due_ms(record)
        trail = read_trail(record.headers, self._router.names)
        first = record.timestamp if trail.first_ms is None else trail.first_ms
        kept = {name for name, _ in record.headers}
        added = with_trail(
            (), type(trail)(attempts=trail.attempts, due_ms=due, first_ms=max(0, first)), self._router.names
        )
        headers = (*record.headers, *(each for each in added if each[0] not in kept))
        self._producer.send(record.topic, record.value, key=record.key, headers=headers, partition=tp.partition)
        return Ref(due, tp, record.offset)

    def _commit_transaction(self) -> None:
        for attempt in range(_COMMITS):
            try:
                self._producer.commit_transaction()
            except DeadlineError as error:
                if attempt == _COMMITS - 1:
                    raise RetryError(
                        f"it is unknown whether the transaction of {self._id} was committed: {error.cause}",
                        "Start the service again when the cluster answers: it continues from the committed positions",
                    ) from error
            else:
                return

    def _note_refused(self, refused: _RecordRefusedError) -> None:
        """Send the record to the dead letters next time. Raises RetryError if these refused it."""
        error = refused.error
        refused_for_good = isinstance(error, RefusedError) and error.code in _FINAL and not _may_turn_up(error)
        final = isinstance(error, UsageError) or refused_for_good
        if not final:
            return
        if refused.route.is_dead:
            raise RetryError(
                f"the dead-letter topic {refused.route.topic} refused a record: {error.cause}",
                "Create or repair the topic; until then no record is forwarded, and none is lost",
            ) from error
        place = refused.item.tp, refused.item.offset
        self._refused[place] = f"{refused.route.topic} refused it: {error.cause}"

    def _abort_transaction(self, error: ClientError) -> None:
        # 1. Not begun: there is nothing to abort. A fenced or broken producer, and errors for the operator, end the
        #    service; others are tried again. 2. Begun: abort until the coordinator answers.
        if not self._begun and isinstance(error, UsageError | ProducerFencedError):
            raise self._fatal_error(error) from error
        if not self._begun and isinstance(error, RetryError):
            raise error
        if not self._begun:
            return
        for attempt in range(_COMMITS):
            try:
                self._producer.abort_transaction()
            except DeadlineError:
                if attempt == _COMMITS - 1:
                    raise
            except ClientError as failure:
                raise self._fatal_error(error) from failure
            else:
                self._begun = False
                break
        if isinstance(error, RetryError):
            raise error

    def _fatal_error(self, error: ClientError) -> RetryError:
        return RetryError(
            f"the retry service {self._id} cannot continue: {error.cause}",
            "If another service has the same group and instance, give this one another instance; else start it again",
        )


@contextmanager
def _blame_record(sent: Iterable[ForwardedRecord]) -> Iterator[None]:
    """Replace the error of a transaction by the refusal of one of its records, if that was the cause."""
    try:
        yield
    except (_RecordRefusedError, RetryError):
        raise
    except ClientError as error:
        for item, route, future in sent:
            # A future that is not done has no error of its own: it fails with the transaction, and is not the cause.
            failure = _send_error(future) if future.done() else None
            if isinstance(failure, RefusedError) and failure.code in _FINAL:
                raise _RecordRefusedError(item, route, failure) from error
        raise


def _send_error(future: SendFuture) -> ClientError | None:
    try:
        future.result(0)
    except ClientError as error:
        return error
    return None


def _may_turn_up(error: RefusedError) -> bool:
    return error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and error.retriable
