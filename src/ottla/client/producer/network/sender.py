"""The producer's thread: gets work from the core, sends and receives bytes, and calls back.

Zone: real. One thread per producer, with all of its sockets; the core decides. The core is used only under the shared
lock; users' callbacks run without it.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from ottla.client.connections.connection import Connection
from ottla.client.errors import (
    LOST_NEXT_STEP,
    AuthenticationError,
    ClientError,
    ConfigError,
    ConnectionLostError,
    UsageError,
)
from ottla.client.metadata import cluster_view
from ottla.client.producer.accumulator import NEVER
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.core import BatchResponse, ProduceCall, ProducerCore, Work
from ottla.client.producer.futures import ProducerLock, metadata_of
from ottla.client.producer.network.connection_states import ConnectionStates
from ottla.client.producer.network.nonblocking_connection import Channel, Received, open_in_background
from ottla.client.producer.network.requests import (
    metadata_request,
    produce_answers,
    producer_id_of,
    producer_id_request,
)
from ottla.client.producer.network.sending import send_produce
from ottla.client.producer.partition_queue import ProducerId
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import InitProducerIdResponse, MetadataResponse, ProduceResponse
from ottla.wire.schema import Message
from ottla.wire.single_batch_produce import LoneAnswer

_log = logging.getLogger("ottla.client.producer")
_METADATA = "metadata"
_PRODUCER_ID = "producer id"
_LONGEST_SLEEP_S = 3_600.0


class Sender:
    """Runs until the producer is closed and all batches are done."""

    def __init__(
        self, core: ProducerCore, shared: ProducerLock, on_failed: Callable[[ProducerBatch], None] | None = None
    ) -> None:
        """on_failed: called for every failed batch, which still has its records."""
        self._core = core
        self._shared = shared
        self._config = core.config.client
        self._on_failed = on_failed
        self._states = ConnectionStates(self._config)
        self._links: dict[int, Channel] = {}
        self._unreached: set[int] = set()
        """Nodes with due batches and without a connection."""
        self._inbox: list[tuple[int, Connection | ClientError]] = []
        self._events: list[Callable[[float], None]] = []
        """Calls to the core that are made at the next opportunity under the lock."""
        self._topics: list[str] | None = None
        self._id_wanted = False
        self._late_at = NEVER
        """When the first unanswered request times out."""
        self._ends_at = NEVER
        """When the first SASL session expires (KIP-368)."""
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self.asleep = False
        """Whether the thread waits, or is about to, and needs `wake_sender` to see news."""
        self.closing_at: float | None = None
        """When to fail undelivered batches; None while the producer is open, 0.0 after the thread has ended."""
        self.failed_at_end = 0
        """Number of batches that were not done when the thread ended, and failed."""
        self.running_callbacks: list[ProducerBatch] = []
        """Finished batches whose callbacks are being called."""
        self.self_adding = True
        """Whether transactional batches add their partitions themselves (transaction version 2)."""
        self.latency_sum = 0.0
        self.latency_max = 0.0
        self.answers = 0
        self.thread = threading.Thread(target=self._run_thread, name="ottla-producer", daemon=True)

    # -- from other threads ----------------------------------------------------------------------------------------

    def finish_by(self, until: float) -> None:
        """Deliver all accepted records until a time of the monotonic clock, then end. Takes no lock."""
        self.closing_at = until if self.closing_at is None else min(self.closing_at, until)
        self._core.accumulator.hurried = True
        self.request_work()

    @property
    def patience_s(self) -> float:
        """How many seconds the program waits for deliveries when it ends."""
        return self._config.request_timeout_ms / 1000

    def request_work(self) -> None:
        """Make the thread look for work in its next round, also if it is not asleep."""
        self._core.accumulator.news = True
        self.wake_sender()

    def wake_sender(self) -> None:
        """Wake the thread. Set the news before this call."""
        if self.asleep:
            self.asleep = False
            try:
                self._wake_out.send(b"x")
            except OSError:
                return  # the socket is full of wake-ups, or the thread has ended

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._links)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        self._shared.owner = threading.get_ident()
        error = closed_early_error()
        try:
            while (pause := self.run_round()) is not None:
                self.wait_for_events(pause)
        except Exception as failure:  # noqa: BLE001  a defect of ours: fail all batches, so that no caller waits for ever
            error = defect_error(failure)
        finally:
            self.end_sending(error)

    def end_sending(self, error: ClientError) -> None:
        """Close all connections, and fail unfinished batches with `error`."""
        for link in list(self._links.values()):
            self._selector.unregister(link.sock)
            link.close_channel()
        now = time.monotonic()
        with self._shared.lock:
            # From here on no other thread adds records or connections: what is there now is all that must end.
            self.closing_at = 0.0
            for event in self._events:
                event(now)
            self.failed_at_end = len(self._core.accumulator.incomplete)
            self._core.fail_all(error)
            done = self.running_callbacks = self._core.take_done()
            self._shared.notify_waiters()
        self._run_callbacks(done)
        for _, outcome in self._inbox:
            if isinstance(outcome, Connection):
                outcome.close_connection()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def run_round(self) -> float | None:
        """One round, without waiting. Returns seconds for `wait_for_events`; None: it was the last round."""
        if self._events:
            self.digest_events()  # first, so that callers get their answers before new requests are prepared
        now = time.monotonic()
        with self._shared.lock:
            # Before the core looks: news that other threads set from here on lead to one more round.
            self._core.accumulator.news = False
            work = self._core.next_work(now, self._links if now < self._ends_at else self._usable_nodes(now))
            done = self._core.take_done() if self._core.done else []
            if done:
                self.running_callbacks = done
                self._shared.notify_waiters()
            over = self.closing_at is not None and (not self._core.accumulator.incomplete or now >= self.closing_at)
        if done:
            self._run_callbacks(done)
        # Only after the callbacks: `close` waits for this thread, and so for them.
        if over:
            return None
        self._perform_work(work, now)
        return self._seconds_to_wait(now, work.wake_at)

    def digest_events(self) -> bool:
        """Pass events to the core, and call the callbacks of finished batches; False if there was no event."""
        if not self._events:
            return False
        now = time.monotonic()
        with self._shared.lock:
            events, self._events = self._events, []
            for event in events:
                event(now)
            done = self.running_callbacks = self._core.take_done()
            self._shared.notify_waiters()
        self._run_callbacks(done)
        return True

    def _perform_work(self, work: Work, now: float) -> None:
        for call in work.calls:
            self._send_produce(call)
        self._unreached = work.connect
        for node in work.connect:
            self._open_connection(node, now)
        if work.topics is not None:
            self._topics = work.topics
        self._id_wanted = self._id_wanted or work.producer_id
        if self._topics is not None or self._id_wanted:
            self._ask_any(now)

    def _seconds_to_wait(self, now: float, wake_at: float) -> float:
        """Seconds to wait at most. From here on `wake_sender` ends the wait."""
        if self._topics is not None or self._id_wanted or self._unreached:
            wake_at = min([wake_at, *self._states.next_attempts(now)])
        self._late_at = NEVER
        for link in self._links.values():
            if link.awaited:
                self._late_at = min(self._late_at, link.awaited[0].until)
        closing = self.closing_at if self.closing_at is not None else wake_at
        pause = min(wake_at, self._late_at, closing) - time.monotonic()
        # First announce the sleep, then look for news; others set news first, then look at `asleep`. None is missed.
        self.asleep = True
        ready = self._core.accumulator.news or self._events or self._inbox
        return 0.0 if ready else min(max(0.0, pause), _LONGEST_SLEEP_S)

    def wait_for_events(self, timeout: float) -> None:
        """Wait for sockets, `wake_sender` or `timeout` seconds; read, write, close connections that timed out."""
        events = self._selector.select(timeout)
        self.asleep = False
        for key, mask in events:
            link: Channel | None = key.data
            if link is None:
                self._read_wakeups()
            elif self._links.get(link.node) is link:
                self._move_channel(link, mask)
        now = time.monotonic()
        if now >= self._late_at:
            self._drop_late(now)
        if now >= self._ends_at:
            self._drop_ended(now)
        while self._inbox:
            self._on_opened(*self._inbox.pop(0))

    def _read_wakeups(self) -> None:
        try:
            self._wake_in.recv(4_096)
        except BlockingIOError:
            return  # an earlier call has read it

    def _drop_late(self, now: float) -> None:
        for link in [link for link in self._links.values() if link.response_deadline <= now]:
            self._close_channel(link, link.timeout_error())

    def _usable_nodes(self, now: float) -> Collection[int]:
        """The nodes whose connection may take requests: its SASL session has not expired (KIP-368)."""
        return [node for node, link in self._links.items() if link.connection.session_ends > now]

    def _drop_ended(self, now: float) -> None:
        """Close connections whose session is over, when all their requests are answered."""
        ended = [link for link in self._links.values() if link.connection.session_ends <= now]
        for link in [link for link in ended if not link.awaited and not link.wants_write]:
            self._selector.unregister(link.sock)
            del self._links[link.node]
            link.close_channel()
            self._events.append(lambda _now: None)  # causes a round, which connects again if batches wait
        self._ends_at = min((link.connection.session_ends for link in self._links.values()), default=NEVER)

    # -- connections -----------------------------------------------------------------------------------------------

    def _open_connection(self, node: int, now: float) -> bool:
        """Start to connect, unless that is in progress or in backoff."""
        address = self._states.address_of(node, self._core.metadata.view)
        if address is None or node in self._links or not self._states.may_open(node, now):
            return False
        self._states.opening.add(node)

        def then(outcome: Connection | ClientError) -> None:
            with self._shared.lock:
                # `end_sending` sets closing_at under the same lock before it empties the inbox: a connection that opens
                # late is closed by one of the two threads, never by none.
                over = self.closing_at == 0.0
                if not over:
                    self._inbox.append((node, outcome))
            if not over:
                self.wake_sender()
            elif isinstance(outcome, Connection):
                outcome.close_connection()

        open_in_background(address, self._config, then)
        return True

    def _on_opened(self, node: int, outcome: Connection | ClientError) -> None:
        self._states.opening.discard(node)
        if isinstance(outcome, ClientError):
            self._core.last_error = outcome
            self._states.note_failure(node)
            # If the node is gone, only newer metadata has the new leaders.
            self._events.append(lambda _now: self._core.metadata.mark_stale())
            # With another connection open the login works, and one broker's refusal must not fail the callers.
            if isinstance(outcome, AuthenticationError | ConfigError) and not self._links:
                self._events.append(partial(_set_denial, self._core, outcome))
            return
        self._states.note_opened(node)
        link = self._links[node] = Channel(node, outcome)
        self._ends_at = min(self._ends_at, outcome.session_ends)
        self._selector.register(link.sock, selectors.EVENT_READ, link)
        self._events.append(lambda _now: None)  # causes a round, which sends what waits for this node

    def _close_channel(self, link: Channel, error: ClientError) -> None:
        """Close a connection after an error: its unanswered requests are lost."""
        self._core.last_error = error
        self._selector.unregister(link.sock)
        del self._links[link.node]
        self._states.note_failure(link.node)
        for tag, sent in link.close_channel():
            self._on_lost_request(tag, error, sent=sent)
        self._events.append(lambda _now: self._core.metadata.mark_stale())

    def _on_lost_request(self, tag: Any, error: ClientError, *, sent: bool) -> None:
        if tag == _METADATA:
            self._events.append(self._core.metadata.on_metadata_failure)
        elif tag == _PRODUCER_ID:
            self._events.append(lambda now: self._core.on_no_producer_id(now, error))
        else:
            call: ProduceCall = tag[0]
            self._events.append(lambda now: self._core.on_lost(now, call, error, sent=sent))

    def _move_channel(self, link: Channel, mask: int) -> None:
        failure: ClientError | None = None
        try:
            if mask & selectors.EVENT_WRITE:
                self._flush_channel(link)
            answers, failure = link.receive_responses() if mask & selectors.EVENT_READ else ([], None)
        except ClientError as error:
            answers, failure = [], error
        for answer in answers:  # all of them, also after a faulty one: the connection has given them up
            try:
                self._on_response(link, answer)
            except ClientError as error:
                failure = error
        if failure is not None and self._links.get(link.node) is link:
            self._close_channel(link, failure)

    def _flush_channel(self, link: Channel) -> None:
        for left in link.flush_requests():
            self._events.append(partial(_on_written, self._core, left.tag[0]))
        if link.wants_write != link.write_awaited:
            link.write_awaited = link.wants_write
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.write_awaited else 0)
            self._selector.modify(link.sock, wanted, link)

    # -- requests --------------------------------------------------------------------------------------------------

    def _send_produce(self, call: ProduceCall) -> None:
        link = self._links.get(call.node)
        if link is None:  # closed after the core had chosen the node
            lost = ConnectionLostError(f"the connection to broker {call.node} was closed", LOST_NEXT_STEP)
            self._events.append(lambda now: self._core.on_lost(now, call, lost, sent=False))
            return
        try:
            send_produce(link, call, self._core, self_adding=self.self_adding)
        except ClientError as error:
            failed = error
            self._events.append(lambda now: self._core.on_lost(now, call, failed, sent=False))
            return
        try:
            self._flush_channel(link)
        except ClientError as error:
            self._close_channel(link, error)

    def _ask_any(self, now: float) -> None:
        """Send metadata and producer id requests to any broker; connect to one if no connection is open."""
        lasting = [self._links[node] for node in self._usable_nodes(now)]
        known = [link for link in lasting if link.node >= 0] or lasting
        if not known:
            self._open_any(now)
            return
        # Brokers answer in order: the one with the fewest unanswered requests answers first (Java's leastLoadedNode).
        link = min(known, key=lambda link: len(link.awaited))
        if self._topics is not None:
            topics, self._topics = self._topics, None
            create = self._config.allow_auto_create_topics
            self._send_request(
                link, ApiKey.METADATA, lambda version: metadata_request(topics, version, create=create), _METADATA
            )
        if self._id_wanted:
            self._id_wanted = False
            self._send_request(link, ApiKey.INIT_PRODUCER_ID, lambda _: producer_id_request(), _PRODUCER_ID)
        try:
            self._flush_channel(link)
        except ClientError as error:
            self._close_channel(link, error)

    def _send_request(self, link: Channel, key: ApiKey, build: Callable[[int], Message], tag: str) -> None:
        try:
            version = link.connection.choose_version(key)
            link.send_request(key, build(version), version, tag)
        except ClientError as error:
            self._on_lost_request(tag, error, sent=False)

    def _open_any(self, now: float) -> None:
        """Connect to one more broker: known brokers first, then the bootstrap addresses (KIP-899)."""
        if self._states.opening:
            return
        for node in self._states.order_of_attempts(self._core.metadata.view):
            if self._open_connection(node, now):
                return

    def _on_response(self, link: Channel, answer: Received) -> None:
        """Convert an answer to an event for the core. Raises MalformedReplyError."""
        if isinstance(answer.message, LoneAnswer | ProduceResponse):
            self._take_produced(answer, answer.message)
        elif isinstance(answer.message, MetadataResponse):
            self._take_metadata(link, answer.message)
        elif isinstance(answer.message, InitProducerIdResponse):
            found = producer_id_of(answer.message)
            if isinstance(found, ProducerId):
                self._events.append(lambda _now: self._core.on_producer_id(found))
            else:
                self._events.append(lambda now: self._core.on_no_producer_id(now, found))

    def _take_metadata(self, link: Channel, message: MetadataResponse) -> None:
        try:
            view = cluster_view(message, f"the metadata response of {link.address}")
        except ClientError:
            self._events.append(self._core.metadata.on_metadata_failure)
            raise
        self._events.append(lambda now: self._core.on_metadata(now, view))
        for node in [node for node in self._links if node >= 0]:
            moved = self._links[node]
            if node not in view.nodes or view.nodes[node].address[:2] != moved.address[:2]:
                self._close_channel(moved, ConnectionLostError(f"broker {node} is not at {moved.address} any more"))
        self._states.forget_absent(view)

    def _take_produced(self, answer: Received, message: LoneAnswer | ProduceResponse) -> None:
        call, names = answer.tag
        self.answers += 1
        self.latency_sum += answer.seconds
        self.latency_max = max(self.latency_max, answer.seconds)
        if isinstance(message, LoneAnswer):
            written = [BatchResponse(ErrorCode.NONE, message.base_offset, message.append_time_ms)]
            self._events.append(lambda now: self._core.on_produced(now, call, written, message.throttle_ms))
            return
        try:
            found = produce_answers(call, names, message)
        except ClientError as error:
            failed = error
            self._events.append(lambda now: self._core.on_lost(now, call, failed))
            raise
        self._events.append(lambda now: self._core.on_produced(now, call, found, message.throttle_time_ms))

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def _run_callbacks(self, done: list[ProducerBatch]) -> None:
        """Call the callbacks of finished batches, in order, then free their records."""
        for batch in done:
            if batch.error is not None and self._on_failed is not None:
                _call_user_code(self._on_failed, batch)
            for index, stamp, whom in batch.callbacks or ():
                metadata = metadata_of(batch, index, stamp) if batch.error is None else None
                _call_user_code(whom, metadata, batch.error)
            # Applications may keep futures, and with them batches, for long: only the outcome is kept for them.
            batch.callbacks = None
            batch.buffer = bytearray()
            batch.callbacks_done = True
        if self._core.accumulator.flushes:
            with self._shared.lock:
                self._shared.notify_waiters()


def closed_early_error() -> ClientError:
    """The error of records that were not delivered when the producer was closed."""
    return UsageError("the producer was closed before this record was delivered", "Give close more time")


def defect_error(failure: Exception) -> ClientError:
    """The error of all records after a defect of the sender; logs the defect."""
    _log.error("producer: the sender failed, and all its records with it; please report it", exc_info=failure)
    return UsageError(f"the sender of this producer failed: {failure!r}", "Please report it, and make a new producer")


def _set_denial(core: ProducerCore, error: ClientError, _now: float) -> None:
    core.denial = error


def _on_written(core: ProducerCore, call: ProduceCall, _now: float) -> None:
    core.on_unanswered(call)


def _call_user_code(call: Callable[..., object], *arguments: object) -> None:
    """Call a user's callback: an error of it is logged, and does not stop the producer."""
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001  users' code
        _log.exception("producer: a callback of the application raised; ignoring that")
