"""`retry_later` for consumers: writes a failed record to a retry topic, or to the dead letters.

Zone: real. One class for threads, one for asyncio; the policy decides. With a transactional producer the record is part
of the open transaction: commit the source's position in it, and no record is lost or duplicated. Without transactions
`retry_later` returns when the record is written; commit the position then.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from typing import Final, NamedTuple

from ottla.client import aio
from ottla.client.admin.admin import Admin
from ottla.client.admin.types import NewTopic, TopicCreated
from ottla.client.cluster import Cluster
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import ClientError, RefusedError, values_of
from ottla.client.producer import Producer
from ottla.errors import ErrorCode
from ottla.retry.headers import Headers, Names, Origin, failure_of, read_trail, with_trail
from ottla.retry.options import RetrierOptions
from ottla.retry.policy import Dead, Decision, Duration, Later, RetryPolicy

# The topics that a policy needs, created with as many partitions as the source.


def create_topics(admin: Admin, policy: RetryPolicy, topic: str) -> list[str]:
    """Create the missing retry topics and dead-letter topic of `topic`, with as many partitions.

    Returns the names of the new ones. Raises RefusedError, also for a topic that does not exist.
    """
    partitions = len(values_of(admin.describe_topics([topic]))[topic].partitions)
    wanted = policy.topics(topic)
    found = admin.describe_topics(wanted)
    missing = [name for name in wanted if _is_missing(found[name])]
    made = admin.create_topics([NewTopic(name, partitions) for name in missing])
    # Several consumers may create the topics at the same time: one succeeds, for the others they exist.
    for name, result in made.items():
        if isinstance(result, ClientError) and not _is_existing_topic(result):
            raise result.with_traceback(None) from None
        if isinstance(result, TopicCreated):
            continue
        missing.remove(name)
    return missing


def _is_missing(result: object) -> bool:
    if isinstance(result, RefusedError) and result.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return True
    if isinstance(result, ClientError):
        raise result
    return False


def _is_existing_topic(error: ClientError) -> bool:
    return isinstance(error, RefusedError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS


_KINDS: Final = ("CreateTime", "LogAppendTime")


class Draw(NamedTuple):
    """What a decision takes from the world."""

    now_ms: int
    jitter: float = 0.0
    """A random number in [0, 1)."""


class Failed(NamedTuple):
    """A failed record to write: its topic and headers, and the decision."""

    topic: str
    origin: str
    headers: Headers
    decision: Decision


def failed_record(
    record: ConsumerRecord,
    error: BaseException | str,
    policy: RetryPolicy,
    options: RetrierOptions,
    draw: Draw,
    delay: Duration | None = None,
) -> Failed:
    """The topic and headers of a record that failed now. Its key and value are not changed.

    delay: used instead of the policy's. Raises PolicyError if it is invalid.
    """
    names, now_ms = options.names, draw.now_ms
    trail = read_trail(record.headers, names)
    origin = trail.origin or Origin(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        _KINDS[record.timestamp_type == 1],
        options.group,
    )
    decision = policy.decide(origin.topic, trail.attempts, error, draw.jitter, delay)
    trail = replace(
        trail,
        attempts=trail.attempts + 1,
        due_ms=now_ms + decision.delay_ms if isinstance(decision, Later) else None,
        first_ms=max(0, record.timestamp) if trail.first_ms is None else trail.first_ms,
        origin=origin,
        failure=failure_of(error),
        back_to=options.back_to or trail.back_to,
    )
    return Failed(decision.topic, origin.topic, with_trail(record.headers, trail, names), decision)


class _Common:
    def __init__(self, policy: RetryPolicy, options: RetrierOptions) -> None:
        self._policy = policy
        self._options = options
        self._made: set[str] = set()

    def _prepare_record(self, record: ConsumerRecord, error: BaseException | str, delay: Duration | None) -> Failed:
        draw = Draw(time.time_ns() // 1_000_000, random.random())
        return failed_record(record, error, self._policy, self._options, draw, delay)

    def _needs_topics(self, failed: Failed) -> bool:
        return self._options.create and failed.origin not in self._made

    def _make_topics(self, producer: Producer | aio.Producer, topic: str) -> None:
        with Cluster(producer.config.client) as cluster:
            create_topics(Admin(cluster), self._policy, topic)
        self._made.add(topic)


class Retrier(_Common):
    """For threads; as thread-safe as its producer.

    retrier = Retrier(producer, RetryPolicy.fixed(["30s", "5m"]))
    for record in consumer:
        try:
            handle(record)
        except Exception as error:
            retrier.retry_later(record, error)
    """

    def __init__(
        self,
        producer: Producer,
        policy: RetryPolicy,
        *,
        group: str | None = RetrierOptions.group,
        back_to: str | None = RetrierOptions.back_to,
        names: Names = RetrierOptions.names,
        create: bool = RetrierOptions.create,
    ) -> None:
        """producer: must have no serializers. group: the consumer group in which records fail, for their headers.
        back_to: the topic that they are sent back to, if that is not the one in which they failed first. create: create
        missing retry and dead-letter topics, with as many partitions as the origin has."""
        super().__init__(policy, RetrierOptions(group, back_to, names, create))
        self._producer = producer

    def retry_later(
        self, record: ConsumerRecord, error: BaseException | str, *, delay: Duration | None = None
    ) -> Later | Dead:
        """Write a record to a retry topic or to the dead letters, as the policy decides. Returns the decision.

        error: the exception, or a reason in words ("TooOld: ordered in 2019"). delay: used instead of the policy's.
        Raises PolicyError for an invalid delay, ClientError when the record could not be written: its position must not
        be committed then.
        """
        failed = self._prepare_record(record, error, delay)
        if self._needs_topics(failed):
            self._make_topics(self._producer, failed.origin)
        sent = self._producer.send(failed.topic, record.value, key=record.key, headers=failed.headers)
        if not self._producer.config.transactional_id:
            # In a transaction the commit waits for the record: waiting here would cost a round trip for each one.
            sent.result()
        return failed.decision


class AsyncRetrier(_Common):
    """The same for asyncio, with `ottla.client.aio.Producer`."""

    def __init__(
        self,
        producer: aio.Producer,
        policy: RetryPolicy,
        *,
        group: str | None = RetrierOptions.group,
        back_to: str | None = RetrierOptions.back_to,
        names: Names = RetrierOptions.names,
        create: bool = RetrierOptions.create,
    ) -> None:
        """As `Retrier`."""
        super().__init__(policy, RetrierOptions(group, back_to, names, create))
        self._producer = producer

    async def retry_later(
        self, record: ConsumerRecord, error: BaseException | str, *, delay: Duration | None = None
    ) -> Later | Dead:
        """As that of `Retrier`."""
        failed = self._prepare_record(record, error, delay)
        if self._needs_topics(failed):
            await asyncio.to_thread(self._make_topics, self._producer, failed.origin)
        sent = await self._producer.send(failed.topic, record.value, key=record.key, headers=failed.headers)
        if not self._producer.config.transactional_id:
            await sent
        return failed.decision
