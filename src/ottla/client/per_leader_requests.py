"""Requests to partition leaders: one per broker, in parallel, retried for partitions whose leader moved.

Zone: real. The retry loop per partition that produce, list offsets and delete records share. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.connections.connection import Call, Connection
from ottla.client.errors import ClientError, DeadlineError, MalformedReplyError, RefusedError
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.schema import Message

R = TypeVar("R", bound=Message)
V = TypeVar("V")

SentRequest = tuple[Call[R], Sequence[TopicPartition]]
"""An unanswered request, and the partitions in it."""


class LeaderRequest(NamedTuple, Generic[R, V]):
    """How to build the requests to leaders, and how to read the answers."""

    what: str
    """A phrase for the message of a DeadlineError."""
    send: Callable[[Connection, Sequence[TopicPartition]], Iterable[SentRequest[R]]]
    """Sends the requests for these partitions of one leader; each partition in exactly one of them."""
    read: Callable[[R], Iterable[tuple[TopicPartition, V | RefusedError]]]
    """The results in an answer."""


def ask_leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition], question: LeaderRequest[R, V], deadline: Deadline
) -> dict[TopicPartition, V | ClientError]:
    """The result of each partition. Retriable errors are retried until `deadline`; then the last error is the result.

    An unknown topic or partition is not retried. Raises errors that are not retriable (MalformedReplyError,
    UnsupportedVersionError), and UnreachableError or DeadlineError if no leader was asked before the deadline.
    """
    results: dict[TopicPartition, V | ClientError] = {}
    pending = list(dict.fromkeys(partitions))
    order = list(pending)
    retries = cluster.retries(question.what, deadline)
    failed: dict[TopicPartition, ClientError] = {}
    while pending:
        try:
            failed = _ask_once(cluster, pending, question, deadline, results)
            pending = [tp for tp in pending if tp in failed]
            if pending:
                cluster.forget_topics(tp.topic for tp in pending)
                retries.wait_backoff(failed[pending[0]])
        except DeadlineError:
            if not failed:
                raise  # no leader was asked yet
            results.update((tp, failed[tp]) for tp in pending)
            break
    return {tp: results[tp] for tp in order}


def _ask_once(
    cluster: Cluster,
    pending: Sequence[TopicPartition],
    question: LeaderRequest[R, V],
    deadline: Deadline,
    results: dict[TopicPartition, V | ClientError],
) -> dict[TopicPartition, ClientError]:
    """Add final results to `results`; returns the partitions to retry, with their errors."""
    by_leader, without = cluster.leaders(pending, deadline)
    failed: dict[TopicPartition, ClientError] = {}
    for tp, error in without.items():
        # UNKNOWN_TOPIC_OR_PARTITION is retriable for Kafka; here that would only delay the error for a wrong name.
        final = not error.retriable or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (results if final else failed)[tp] = error
    on_the_way = list(_send_all(cluster, by_leader, question, deadline, failed))
    # All requests are sent before the first answer is awaited, so that the brokers work in parallel.
    for connection, call, asked in on_the_way:
        try:
            answer = connection.wait_for_response(call, deadline)
        except ClientError as error:
            _mark_failed(error, asked, failed)
        else:
            _sort_results(question.read(answer), asked, results, failed, str(connection.address))
    return failed


def _send_all(
    cluster: Cluster,
    by_leader: dict[int, list[TopicPartition]],
    question: LeaderRequest[R, V],
    deadline: Deadline,
    failed: dict[TopicPartition, ClientError],
) -> Iterable[tuple[Connection, Call[R], Sequence[TopicPartition]]]:
    for node, asked in by_leader.items():
        left = list(asked)
        try:
            connection = cluster.connection(node, deadline)
            for call, partitions in question.send(connection, asked):
                # Partitions whose request is on its way get their result from the answer: an error here is only about
                # the rest.
                left = [tp for tp in left if tp not in partitions]
                yield connection, call, partitions
        except ClientError as error:
            _mark_failed(error, left, failed)


def _mark_failed(
    error: ClientError, asked: Iterable[TopicPartition], failed: dict[TopicPartition, ClientError]
) -> None:
    if not error.retriable:
        raise error
    failed.update(dict.fromkeys(asked, error))


def _sort_results(
    found: Iterable[tuple[TopicPartition, V | RefusedError]],
    asked: Sequence[TopicPartition],
    results: dict[TopicPartition, V | ClientError],
    failed: dict[TopicPartition, ClientError],
    source: str,
) -> None:
    missing = set(asked)
    for tp, value in found:
        if tp not in missing:
            raise MalformedReplyError(f"{source} answered for {tp}, which was not requested, or answered twice")
        missing.discard(tp)
        if isinstance(value, RefusedError) and value.retriable:
            failed[tp] = value
        else:
            results[tp] = value
    # A partition without a result would otherwise stay in no list, and its caller would get a KeyError.
    if missing:
        raise MalformedReplyError(f"the response of {source} has no result for {min(missing)}")
