"""A client's view of the cluster: its brokers, the leaders of partitions, and how to send them requests.

Zone: real. Has the bootstrap, the metadata cache and the retry loop of single requests; `admin`, `fetch` and `produce`
build on it and give the requests their meaning. A Cluster belongs to one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Final, TypeVar

from ottla.client.connections.address import parse_addresses
from ottla.client.connections.connection import Connection
from ottla.client.connections.pool import Pool
from ottla.client.errors import ClientError, DeadlineError, RefusedError, UnreachableError, UsageError
from ottla.client.metadata import EMPTY, ClusterView, PartitionView, TopicView, cluster_view
from ottla.client.retry import Deadline, Retries
from ottla.client.settings import ClientConfig
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.messages import MetadataRequest, MetadataResponse
from ottla.wire.schema import Message

R = TypeVar("R", bound=Message)

ANY_NODE: Final = -1
"""Any broker."""
CONTROLLER: Final = -2
"""The broker that the metadata names as controller."""
NEW_TOPIC_MS: Final = 5_000
"""How long to wait for a topic that is being created; if it does not appear by then, its creation failed."""


class Cluster:
    """The connections and the metadata of one client. Close it, or use it in a `with` statement.

    An unreachable broker is retried until the deadline of a call, except before the first contact with the cluster:
    then the addresses are probably wrong, and UnreachableError is raised at once.
    """

    __slots__ = ("_asked_at", "_bootstrap", "_closed", "_coordinator_pool", "_new_topic_ms", "_pool", "config", "view")

    def __init__(self, config: ClientConfig, new_topic_ms: float = NEW_TOPIC_MS) -> None:
        """Does not connect yet. Raises ConfigError for invalid addresses.

        new_topic_ms: how long `topic` waits for one that it creates.
        """
        self.config = config
        self._new_topic_ms = new_topic_ms
        self.view: ClusterView = EMPTY
        """The last known metadata; it contains the topics that were requested so far."""
        self._bootstrap = parse_addresses(config.bootstrap_servers)
        self._pool = Pool(config)
        self._coordinator_pool = Pool(config)
        self._asked_at: dict[str, float] = {}
        self._closed = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether `close_connections` was not called yet."""
        return not self._closed

    def close(self) -> None:
        """Close all connections. Idempotent; later calls raise UsageError."""
        self._closed = True
        self._pool.close_connections()
        self._coordinator_pool.close_connections()

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        """The end of a call that takes `timeout_s`; None: `default.api.timeout.ms`."""
        return Deadline.after_ms(self.config.default_api_timeout_ms if timeout_s is None else timeout_s * 1000)

    def retries(self, what: str, deadline: Deadline) -> Retries:
        """Attempts at `what`, a phrase for the error message, with the configured backoff."""
        return Retries(what, deadline, self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)

    def connection(self, node: int, deadline: Deadline, *, for_coordinator: bool = False) -> Connection:
        """An open connection to a node: its id, ANY_NODE or CONTROLLER. Does not retry.

        for_coordinator: one that no fetch uses. A broker answers a connection's requests in order, and a fetch may wait
        there for `fetch.max.wait.ms`.
        Raises UnreachableError; MalformedReplyError and others if the first answer is not Kafka's.
        """
        if self._closed:
            raise UsageError("this client is closed", "Make a new one")
        pool = self._coordinator_pool if for_coordinator else self._pool
        if node == CONTROLLER:
            if self.view.controller_id not in self.view.nodes:
                self.refresh((), deadline)
            node = self.view.controller_id if self.view.controller_id in self.view.nodes else ANY_NODE
        if node == ANY_NODE:
            # If all known brokers are gone, the bootstrap addresses may lead to new ones.
            known = [view.address for view in self.view.nodes.values()]
            return pool.get_any_connection([*known, *self._bootstrap], deadline)
        if not self.view.nodes:  # the first request of this client
            self.refresh((), deadline)
        if node not in self.view.nodes:
            raise UnreachableError(
                f"broker {node} is not in the cluster any more", "Wait until it has registered again"
            )
        return pool.get_connection(self.view.nodes[node].address, deadline)

    def send_request(
        self,
        key: ApiKey,
        build: Callable[[int], Message],
        response: type[R],
        *,
        node: int = ANY_NODE,
        deadline: Deadline | None = None,
        refused: Callable[[R], RefusedError | None] | None = None,
        at_most: int = 32_767,
        for_coordinator: bool = False,
    ) -> R:
        """Send one request and return its answer; retries errors that may pass.

        build: makes the request in the negotiated version, which is at most `at_most`.
        for_coordinator: as in `connection`.
        refused: finds the error in an answer; a retriable one is retried after a metadata refresh.
        Raises DeadlineError, and any ClientError that is not retriable.
        """
        deadline = deadline or self.deadline()
        retries = self.retries(f"{API_TABLE[key].name} request", deadline)
        while True:
            try:
                connection = self.connection(node, deadline, for_coordinator=for_coordinator)
                version = connection.choose_version(key, at_most)
                answer = connection.wait_for_response(
                    connection.send_request(build(version), version, response), deadline
                )
                if refused is not None and (error := refused(answer)) is not None:
                    raise error
                return answer
            except ClientError as error:
                # 1. Not retriable: the caller decides. 2. Retriable: wait. 3. If the request was for one node, it may
                # have moved or lost its role: refresh the metadata before the next attempt.
                if not self._may_retry(error):
                    raise
                retries.wait_backoff(error)
                if node != ANY_NODE:
                    self.refresh((), deadline)

    def _may_retry(self, error: ClientError) -> bool:
        # Before the first contact a wrong address is more likely than a dead cluster: report it at once.
        return error.retriable and not (isinstance(error, UnreachableError) and not self.view.nodes)

    def refresh(
        self, topics: Collection[str] | None = (), deadline: Deadline | None = None, *, create: bool = False
    ) -> ClusterView:
        """Request metadata of the brokers and of `topics` (None: all of them). Returns the merged view.

        create: let the broker create missing topics, where its `auto.create.topics.enable` allows that.
        For a refused topic, `view.topics` has its RefusedError.
        """

        def build(version: int) -> MetadataRequest:
            # In version 0 an empty list means all topics, and no request can ask for none.
            everything: list[MetadataRequest.MetadataRequestTopic] | None = [] if version == 0 else None
            named = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics or ()]
            asked = everything if topics is None else named
            # Before version 4 the field does not exist, and the broker creates missing topics by its own setting.
            return MetadataRequest(topics=asked, allow_auto_topic_creation=create or version < 4)

        answer = self.send_request(ApiKey.METADATA, build, MetadataResponse, deadline=deadline)
        newer = cluster_view(answer, "the metadata answer")
        # An answer about all topics also shows which ones are gone; one about some topics must not remove the others.
        self.view = newer if topics is None else self.view.merge(newer)
        now = time.monotonic()
        self._asked_at.update(dict.fromkeys(newer.topics, now))
        for pool in (self._pool, self._coordinator_pool):
            pool.keep_only([*(node.address for node in self.view.nodes.values()), *self._bootstrap])
        return self.view

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Mark the metadata of `topics` as out of date: the next use requests it again."""
        for topic in topics:
            self._asked_at.pop(topic, None)

    def topic(self, name: str, deadline: Deadline | None = None, *, create: bool = False) -> TopicView:
        """The topic's metadata, at most `metadata.max.age.ms` old.

        create: as in `refresh`; waits up to `new_topic_ms` for a missing topic.
        Raises RefusedError (UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED …).
        """
        if (known := self._fresh_topic(name)) is not None:
            return known
        deadline = deadline or self.deadline()
        patience = deadline.within_ms(self._new_topic_ms)
        retries = self.retries(f"metadata of topic {name}", patience if create else deadline)
        while True:
            found = self.refresh((name,), deadline, create=create).topics.get(name)
            if isinstance(found, TopicView):
                return found
            error = found or RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
            # 1. Not retriable (no permission, invalid name): raise. 2. Unknown topic: raise, unless it is being
            # created. 3. Else wait; when the time is over, raise the broker's error, not DeadlineError.
            if not error.retriable or (error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not create):
                raise error
            try:
                retries.wait_backoff(error)
            except DeadlineError:
                raise error from None

    def partition(self, tp: TopicPartition, deadline: Deadline | None = None) -> PartitionView:
        """The partition's metadata. Raises RefusedError UNKNOWN_TOPIC_OR_PARTITION when the topic lacks it."""
        found = self.topic(tp.topic, deadline).partitions.get(tp.partition)
        if found is None:
            self.forget_topics([tp.topic])
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp.partition} of {tp.topic}")
        return found

    def leader(self, tp: TopicPartition, deadline: Deadline | None = None) -> int:
        """Node id of the leader. Raises RefusedError: LEADER_NOT_AVAILABLE (retriable), or as `partition`."""
        self.partition(tp, deadline)
        found = self._leader_now(tp)
        if isinstance(found, RefusedError):
            raise found
        return found

    def leaders(
        self, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, RefusedError]]:
        """(partitions by leader, errors of partitions without one). Sends at most one metadata request."""
        wanted = list(partitions)
        missing = sorted({tp.topic for tp in wanted if self._fresh_topic(tp.topic) is None})
        if missing:
            self.refresh(missing, deadline)
        by_leader: dict[int, list[TopicPartition]] = {}
        without: dict[TopicPartition, RefusedError] = {}
        for tp in wanted:
            found = self._leader_now(tp)
            if isinstance(found, RefusedError):
                without[tp] = found
            else:
                by_leader.setdefault(found, []).append(tp)
        return by_leader, without

    def _leader_now(self, tp: TopicPartition) -> int | RefusedError:
        """The leader in the cached metadata. If it is unknown, forgets the topic, so that the next use refreshes it."""
        subject = f"partition {tp.partition} of topic {tp.topic}"
        topic = self.view.topics.get(tp.topic)
        if isinstance(topic, TopicView):
            found = topic.partitions.get(tp.partition)
            if found is not None and found.leader in self.view.nodes:
                return found.leader
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else ErrorCode.LEADER_NOT_AVAILABLE
            error = RefusedError(code, subject)
        else:
            error = topic or RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {tp.topic}")
        self.forget_topics([tp.topic])
        return error

    def _fresh_topic(self, name: str) -> TopicView | None:
        found = self.view.topics.get(name)
        asked = self._asked_at.get(name)
        if not isinstance(found, TopicView) or asked is None:
            return None
        return found if (time.monotonic() - asked) * 1000 <= self.config.metadata_max_age_ms else None
