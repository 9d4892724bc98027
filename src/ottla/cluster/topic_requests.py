"""Creates, grows and deletes topics: on this broker's controller, or by a request to the controller.

Zone: deterministic. Clients have to send their requests about topics to the controller itself. A broker forwards only
creations on first use: those of auto.create.topics.enable, and internal topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ottla.broker_client import BrokerClient
from ottla.cluster.cluster import Cluster
from ottla.cluster.controller.controller import Controller
from ottla.cluster.controller.controller_election import ControllerElector
from ottla.cluster.image import (
    CONSUMER_OFFSETS,
    INTERNAL_TOPICS,
    NO_LEADER,
    SHARE_GROUP_STATE,
    ClusterImage,
    TopicImage,
)
from ottla.cluster.store.error_mapping import ErrorAnswer
from ottla.cluster.topics import TopicSpec
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure
from ottla.wire.messages import CreateTopicsRequest, CreateTopicsResponse

logger = logging.getLogger(__name__)

MAX_TOPICS_BEING_CREATED: Final = 1000
"""Limit of topics that callers wait for; more are refused with a retriable error."""
MAX_BEGUN: Final = 100
"""Limit of topics created in bulk at a time. The creation of others begins when a client repeats its request."""
IMAGE_MS: Final = 5000
"""How long a response waits until this broker's image shows what the controller has confirmed."""
CREATE_MS: Final = 10_000
"""Time-out of creations whose request has none."""
_CREATE_VERSION: Final = 5
_BULK_LANE: Final = "topics"
"""A connection of its own, so that other requests to the controller do not wait for a hundred topics."""
_PASSING: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
"""Errors of a creation that are not about the topic."""


class TopicRequests:
    """Requests about topics to the controller."""

    def __init__(self, cluster: Cluster, seat: ControllerElector, peers: BrokerClient, is_alone: bool) -> None:
        """is_alone: no other broker can exist, because the metadata store belongs to this one alone."""
        self._cluster = cluster
        self._elector = seat
        self._peers = peers
        self._is_alone = is_alone
        self._waiting_callers: dict[str, list[ErrorAnswer[TopicImage]]] = {}
        self._bulk_creations: dict[str, None] = {}
        """Topics that are being created in bulk, for which no caller waits."""
        self._warned_about_replicas = False

    @property
    def controller(self) -> Controller:
        """The controller, if it is this broker; else raises ApiError NOT_CONTROLLER.

        A broker that is alone is always the controller, unless its metadata store has failed: KAFKA_STORAGE_ERROR.
        """
        controller = self._elector.controller
        if controller is None and self._is_alone:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata store is out of service; see the broker's log")
        if controller is None:
            raise not_controller_error(self._elector.controller_id)
        return controller

    # -- requests of clients ---------------------------------------------------------------------------------------

    def create_topic(
        self, spec: TopicSpec, validate_only: bool, timeout_ms: int, done: ErrorAnswer[TopicImage]
    ) -> None:
        """Create a topic. `done` receives it; with `validate_only` the topic that would be created."""

        def created(outcome: TopicImage | ApiError) -> None:
            if isinstance(outcome, ApiError) or validate_only:
                done(outcome)
            else:
                self._answer_when_shown(outcome, done)

        self._on_controller(done, lambda office: office.create_topic(spec, validate_only, timeout_ms, created))

    def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        validate_only: bool,
        timeout_ms: int,
        done: ErrorAnswer[TopicImage],
    ) -> None:
        """Bring a topic to `count` partitions."""

        def grown(outcome: TopicImage | ApiError) -> None:
            if isinstance(outcome, ApiError) or validate_only:
                done(outcome)
            else:
                self._answer_when_shown(outcome, done)

        self._on_controller(
            done, lambda office: office.add_partitions(name, count, assignments, validate_only, timeout_ms, grown)
        )

    def delete_topic(self, name: str, timeout_ms: int, done: ErrorAnswer[None]) -> None:
        """Delete a topic."""
        present = self._cluster.image.topics.get(name)

        def deleted(outcome: ApiError | None) -> None:
            if isinstance(outcome, ApiError) or present is None:
                done(outcome)
            else:
                # By its id: another client may create a topic of that name again at once.
                gone = present.topic_id
                self._cluster.wait_for_image(lambda image: gone not in image.names_by_id, IMAGE_MS, lambda: done(None))

        self._on_controller(done, lambda office: office.delete_topic(name, timeout_ms, deleted))

    def _on_controller(self, done: Callable[[ApiError], None], ask: Callable[[Controller], None]) -> None:
        try:
            office = self.controller
        except ApiError as error:
            done(error.as_value())
        else:
            ask(office)

    def _answer_when_shown(self, topic: TopicImage, done: ErrorAnswer[TopicImage]) -> None:
        """Answer once this broker's image has the topic, because its client is going to request that next."""

        def shown(image: ClusterImage) -> bool:
            # A leader in every partition as well: a client that produces next would otherwise get LEADER_NOT_AVAILABLE
            # once more.
            found = image.topics.get(topic.name)
            return (
                found is not None
                and found.topic_id == topic.topic_id
                and len(found.partitions) >= len(topic.partitions)
                and all(partition.leader != NO_LEADER for partition in found.partitions[: len(topic.partitions)])
            )

        self._cluster.wait_for_image(shown, IMAGE_MS, lambda: done(topic))

    # -- topics on first use ---------------------------------------------------------------------------------------

    def find_or_create(self, spec: TopicSpec, done: ErrorAnswer[TopicImage]) -> None:
        """Pass the topic to `done`; creates it if it is missing. Concurrent callers share one creation."""
        present = self._cluster.image.topics.get(spec.name)
        if present is not None:
            done(present)
        elif spec.name in self._waiting_callers:
            self._waiting_callers[spec.name].append(done)
        elif len(self._waiting_callers) >= MAX_TOPICS_BEING_CREATED:
            done(ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many topics are being created; try again"))
        else:
            self._waiting_callers[spec.name] = [done]
            self._request_topic(spec)

    def create_topics(self, names: Sequence[str]) -> Collection[str]:
        """Begin to create missing topics by one CreateTopics request; no caller waits for the outcome.

        Returns the names that are being created, by this or an earlier request; at most MAX_BEGUN at a time.
        """
        node = self._cluster.image.controller_id
        if node not in self._cluster.image.brokers:
            return ()
        # Names beyond the limit are created when a client repeats its request.
        new = [name for name in names if name not in self._bulk_creations and name not in self._waiting_callers]
        new = new[: MAX_BEGUN - len(self._bulk_creations)]
        if new:
            self._bulk_creations.update(dict.fromkeys(new))
            request = _create_request(*map(self._spec_of, new))
            self._peers.send_request(
                node, request, _CREATE_VERSION, CREATE_MS, lambda answer: self._on_bulk_created(new, answer), _BULK_LANE
            )
        return [name for name in names if name in self._bulk_creations or name in self._waiting_callers]

    def _spec_of(self, name: str) -> TopicSpec:
        return self._internal_spec(name) if name in INTERNAL_TOPICS[:2] else TopicSpec(name)

    def _on_bulk_created(self, names: Sequence[str], answer: CreateTopicsResponse | Failure) -> None:
        for name in names:
            del self._bulk_creations[name]
        if isinstance(answer, Failure):
            logger.warning("creating %d topics for Metadata failed: %s; clients will retry", len(names), answer)

    def _request_topic(self, spec: TopicSpec) -> None:
        # 1. This broker is the controller. 2. Another broker is. 3. No controller is known: clients retry.
        office = self._elector.controller
        if office is not None:
            office.create_topic(spec, False, CREATE_MS, lambda outcome: self._on_created(spec.name, _error_of(outcome)))
            return
        node = self._cluster.image.controller_id
        if node not in self._cluster.image.brokers:
            self._answer_waiters(spec.name, not_controller_error(NO_LEADER))
            return
        self._peers.send_request(
            node,
            _create_request(spec),
            _CREATE_VERSION,
            CREATE_MS,
            lambda answer: self._on_created(spec.name, _topic_error(answer)),
        )

    def _on_created(self, name: str, error: ApiError | None) -> None:
        # A topic that exists already is a success: another broker created it for another client.
        if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            self._answer_waiters(name, error)
        else:
            self._cluster.wait_for_image(
                lambda image: name in image.topics,
                IMAGE_MS,
                lambda: self._answer_waiters(
                    name, ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{name!r} is being created")
                ),
            )

    def _answer_waiters(self, name: str, error: ApiError) -> None:
        """Answer all callers that wait: with the topic if it exists by now, else with the error."""
        if error.code in _PASSING:
            error = ApiError(ErrorCode.LEADER_NOT_AVAILABLE, error.message)  # clients retry Metadata after this one
        outcome = self._cluster.image.topics.get(name, error)
        for done in self._waiting_callers.pop(name):
            done(outcome)

    # -- internal topics -------------------------------------------------------------------------------------------

    def find_internal_topic(self, name: str, done: ErrorAnswer[TopicImage]) -> None:
        """Pass an internal topic to `done`; creates it if it is missing."""
        self.find_or_create(self._internal_spec(name), done)

    def _internal_spec(self, name: str) -> TopicSpec:
        config = self._cluster.config
        if name == CONSUMER_OFFSETS:
            factor = self._replication_factor(
                "offsets.topic.replication.factor", config.offsets_topic_replication_factor
            )
            return TopicSpec(
                name,
                config.offsets_topic_num_partitions,
                factor,
                configs={
                    "compression.type": "producer",
                    "cleanup.policy": "compact",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                },
            )
        assert name != SHARE_GROUP_STATE, "share groups are not served"
        factor = self._replication_factor(
            "transaction.state.log.replication.factor", config.transaction_state_log_replication_factor
        )
        return TopicSpec(
            name, config.transaction_state_log_num_partitions, factor, configs=self._transaction_settings(factor)
        )

    def _transaction_settings(self, factor: int) -> Mapping[str, str]:
        config = self._cluster.config
        return {
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(min(config.transaction_state_log_min_isr, factor)),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }

    def _replication_factor(self, key: str, factor: int) -> int:
        """The configured replication factor; 1, with a warning, if this broker is the only possible one.

        If other brokers may join, too few brokers are an error that ends when they do. A factor computed from the
        brokers that happen to run at the first use would stay too small for ever.
        """
        if factor > 1 and self._is_alone:
            if not self._warned_about_replicas:
                self._warned_about_replicas = True
                logger.warning("%s is %d, but there is one broker: internal topics get one replica", key, factor)
            return 1
        return factor


def not_controller_error(controller_id: int) -> ApiError:
    """The error of a broker that is not the controller; names the controller."""
    where = f"broker {controller_id} is" if controller_id != NO_LEADER else "at the moment no broker is"
    return ApiError(ErrorCode.NOT_CONTROLLER, f"this broker is not the controller, {where}")


def _create_request(*specs: TopicSpec) -> CreateTopicsRequest:
    setting = CreateTopicsRequest.CreatableTopicConfig
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=spec.name,
            num_partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            configs=[setting(name=name, value=value) for name, value in spec.configs.items()],
        )
        for spec in specs
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=CREATE_MS)


def _topic_error(answer: CreateTopicsResponse | Failure) -> ApiError | None:
    """The error of a request for one topic, None if the topic was created."""
    if isinstance(answer, Failure):
        return ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"the controller does not answer: {answer}")
    topic = answer.topics[0] if answer.topics else None
    if topic is None or topic.error_code == ErrorCode.NONE:
        return None
    return ApiError(ErrorCode(topic.error_code), topic.error_message or "")


def _error_of(outcome: TopicImage | ApiError) -> ApiError | None:
    return outcome if isinstance(outcome, ApiError) else None
