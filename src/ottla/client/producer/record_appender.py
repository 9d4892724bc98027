"""The steps between a record and its batch that both producers share: open check, topic, partition, memory.

Zone: real. Only `flush_records` waits; for the rest the producers (with threads, or asyncio) wait in their own way and
call again. All methods need the shared lock, except `flush_records` and `on_forked`.
"""

from __future__ import annotations

import time

from ottla.client.errors import BufferExhaustedError, ClientError, DeadlineError, RefusedError, UsageError
from ottla.client.partitioner import partition_of_key
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.core import ProducerCore
from ottla.client.producer.futures import ProducerLock
from ottla.client.producer.network.sender import Sender
from ottla.client.producer.partitioning import Partitioner
from ottla.client.producer.topic_metadata import ProducedTopic
from ottla.errors import ErrorCode

_NAME_MAX = 249
"""Kafka's limit: a topic's name is also the name of a directory."""


class RecordAppender:
    """Checks whether a record can be accepted now, and what is missing."""

    __slots__ = ("_askers", "_config", "_core", "_sender", "_shared", "partitioner", "refusal")

    def __init__(
        self,
        config: ProducerConfig,
        core: ProducerCore,
        shared: ProducerLock,
        sender: Sender,
        partitioner: Partitioner | None,
    ) -> None:
        self._config = config
        self._core = core
        self._shared = shared
        self._sender = sender
        self.partitioner = partitioner
        """The application's partitioner, or round robin; None: keys and load decide."""
        self._askers: dict[str, int] = {}
        """Number of callers that wait for a topic's metadata."""
        self.refusal: ClientError | None = None
        """The error of every later call; None while the producer is open."""

    # -- open or closed --------------------------------------------------------------------------------------------

    def refuse_records(self) -> None:
        """Accept no more records."""
        self.refusal = self.refusal or UsageError("this producer is closed", "Make a new one")
        self._shared.notify_waiters()

    def close_appender(self, until: float) -> None:
        """Accept no more records, and deliver those accepted until a time of the monotonic clock."""
        self.refuse_records()
        self._sender.finish_by(until)
        self._shared.notify_waiters()

    def check_open(self) -> None:
        """Raises the error if the producer is closed."""
        if self.refusal is not None or self._sender.closing_at == 0.0:
            error = self.refusal or UsageError("this producer's thread has ended", "Make a new one")
            # One error object is raised many times, and would collect the traceback of every raise.
            raise error.with_traceback(None)

    def on_forked(self) -> None:
        """Called after a fork in the child process: from now on every call raises UsageError."""
        self.refusal = UsageError("this producer belongs to the parent process", "Make a new producer after the fork")

    # -- the topic -------------------------------------------------------------------------------------------------

    def known_topic(self, name: str) -> ProducedTopic | None:
        """The topic; None if its metadata is not known: then call `request_topic`. Raises UsageError."""
        self._shared.check_process()
        self.check_open()
        known = self._core.metadata.known_topic(name)
        if known is None:
            _check_name(name)
        return known

    def request_topic(self, name: str) -> None:
        """Request a topic's metadata. Then wait until it is `is_decided`, take `topic_after_wait`, and call
        `stop_asking` in any case."""
        self._askers[name] = self._askers.get(name, 0) + 1
        self._core.denial = None  # a new attempt to log in
        self._core.metadata.request_topic(name, time.monotonic())
        self._sender.request_work()

    def stop_asking(self, name: str) -> None:
        """A caller stops waiting; after the last one the topic is not requested any more."""
        self._askers[name] -= 1
        if not self._askers[name]:
            del self._askers[name]
            self._core.metadata.wanted.pop(name, None)

    def is_decided(self, name: str) -> bool:
        """Whether the wait for a requested topic is over: metadata, an error, or the producer is closed."""
        book = self._core.metadata
        decided = book.known_topic(name) is not None or name not in book.wanted
        return decided or self.refusal is not None or self._core.denial is not None

    def topic_after_wait(self, name: str) -> ProducedTopic:
        """The topic, after the wait.

        Raises DeadlineError if it is not `is_decided`, RefusedError, UsageError; AuthenticationError or ConfigError if
        no connection passes the login.
        """
        self.check_open()
        book = self._core.metadata
        known = book.known_topic(name)
        if known is not None:
            return known
        refused = book.refused.get(name)
        if refused is not None and name not in book.wanted:
            raise refused.with_traceback(None)
        if self._core.denial is not None:
            raise self._core.denial.with_traceback(None)
        cause = refused or self._core.last_error
        raise DeadlineError(
            f"no metadata of topic {name} within max.block.ms{f': {cause.cause}' if cause else ''}",
            cause.next_step if cause else "",
            cause,
        )

    # -- the partition ---------------------------------------------------------------------------------------------

    def choose_partition(
        self, topic: ProducedTopic, partition: int | None, key: bytes | None, value: bytes | None
    ) -> int:
        """The partition of a record. Raises RefusedError for one that does not exist."""
        partitions = topic.view.partitions
        # 1. The given partition. 2. The partitioner of the application. 3. The key. 4. The sticky partition.
        if partition is None and self.partitioner is not None:
            partition = self.partitioner(topic.name, key, value, list(partitions), topic.led)
        elif partition is None and key is not None and not self._config.partitioner_ignore_keys:
            # All partitions count, also those without a leader: the partition of a key must not depend on the brokers'
            # state.
            return partition_of_key(_bytes_of_key(key), len(partitions))
        elif partition is None:
            return self._core.sticky_partition(topic)
        if partition not in partitions:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"partition {partition} of topic {topic.name}",
                f"it has partitions 0 to {len(partitions) - 1}",
            )
        return partition

    # -- room ------------------------------------------------------------------------------------------------------

    def no_room_error(self) -> BufferExhaustedError:
        """The error after waiting too long for `buffer.memory`."""
        return BufferExhaustedError(
            f"buffer.memory ({self._core.accumulator.limit} bytes) was full for max.block.ms",
            "Records are sent faster than the brokers accept them: send fewer, or raise buffer.memory",
            self._core.last_error,
        )

    def flush_records(self, timeout: float | None) -> None:
        """As `Producer.flush`; it waits in the caller's thread."""
        self._shared.check_caller("flush")
        accumulator = self._core.accumulator
        with self._shared.lock:
            # Also finished batches whose callbacks have not run yet: flush returns after the callbacks.
            waiting = [*accumulator.incomplete, *self._core.done, *self._sender.running_callbacks]
            # While it is above 0, batches do not linger, and the sender notifies after callbacks as well.
            accumulator.flushes += 1
            self._sender.request_work()
            try:
                done = self._shared.wait_until(lambda: all(batch.all_callbacks_done for batch in waiting), timeout)
            finally:
                accumulator.flushes -= 1
        if not done:
            raise not_flushed_error(timeout)


def not_flushed_error(timeout: float | None) -> DeadlineError:
    """The error of a flush after its timeout."""
    return DeadlineError(f"flush: records are not acknowledged after {timeout} s", "Wait longer")


def _check_name(name: object) -> None:
    try:
        usable = isinstance(name, str) and 0 < len(name.encode()) <= _NAME_MAX
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise UsageError(f"{name!r} is not the name of a topic", f"Use a string of 1 to {_NAME_MAX} bytes")


def _bytes_of_key(key: object) -> bytes:
    if not isinstance(key, bytes | bytearray | memoryview):
        raise UsageError(f"a key is {type(key).__name__}, not bytes", "Encode it, or give the producer a serializer")
    return bytes(key)
