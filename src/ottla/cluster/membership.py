"""A broker's membership: its session with the metadata store, its registration, its part in controller elections.

Zone: deterministic. This module orders the steps at the start and after every loss of the session. While the session is
not OPEN nothing is written. The broker continues to lead its partitions until the controller elects other leaders.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.cluster.broker_registration import damaged_store_error, ensure_persistent, find_cluster_id, register_broker
from ottla.cluster.cluster import Cluster
from ottla.cluster.config_changes import ConfigChanges
from ottla.cluster.controller.controller_election import ControllerElector
from ottla.cluster.features.feature_levels import registered_features
from ottla.cluster.store.layout import (
    TOPICS,
    BrokenNode,
    BrokerNode,
    broker_path,
    decode_topic,
    encode_broker,
    topic_path,
)
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import Workflow, read_children, read_nodes, run_workflow, wait_for_answer
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import UNKNOWN_BROKER_EPOCH, ControlFence
from ottla.seams import Clock, Entropy, Failure, Kind, Node, Session
from ottla.types import ZERO_UUID, Endpoint, TopicPartition

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 1000
"""Delay before the next attempt, when the store did not answer or the broker's number is taken."""
GRACE_MS: Final = 2000
"""How much later than its time-out a session may end, because a store checks for dead sessions periodically."""
TOPICS_AT_ONCE: Final = 250
"""Topics whose ids are read together."""
INCOMPLETE_MAX: Final = 1000
"""Limit of incomplete partitions in a registration. With more, the broker registers as one with new directories."""
FORMER: Final = 16
"""Past sessions that are remembered. A store has removed the nodes of older ones."""
_FINAL: Final = (Kind.IO, Kind.FULL)
"""Failures of the store that a retry cannot repair."""


class MembershipSteps(NamedTuple):
    """The broker's part of joining: callbacks in the order of their calls."""

    remembered: Callable[[], str | None]
    """Returns the cluster's id in the log directories, None if they are new. Raises ApiError."""
    is_blank: Callable[[], bool]
    """Whether a log directory is new and the controller has not received that yet."""
    topics: Callable[[], Sequence[str]]
    """Returns the topics that have or had logs here."""
    incomplete: Callable[[Mapping[str, bytes]], Sequence[TopicPartition]]
    """Receives the ids of the topics that exist. Returns the partitions whose logs are missing, belong to another topic
    of that name, or have lost records, and that the controller has not received yet."""
    adopt: Callable[[Callable[[], bytes]], Workflow[None] | None]
    """Returns the workflow that imports the logs of another cluster, None if there is none. Raises ApiError."""
    found: Callable[[str], bool]
    """Called when the cluster's id and the settings are known: checks the log directories and recovers the logs.
    Returns False if the broker is to stop instead; then it leaves, and does not register. Raises ApiError."""
    failed: Callable[[Failure], None]
    """Called with the reason when the broker can never join."""
    read_acls: Callable[[], Workflow[None]] | None = None
    """Reads the ACLs, in every session; None without an authorizer."""
    read_tokens: Callable[[], Workflow[None]] | None = None
    """Reads the delegation tokens, in every session; None without them."""
    read_features: Callable[[], Workflow[None]] | None = None
    """Reads the finalized features, in every session. Raises ApiError for one that this release does not support."""


class Membership:
    """One broker as a member of its cluster."""

    def __init__(
        self,
        cluster: Cluster,
        changes: ConfigChanges,
        seat: ControllerElector,
        store: WatchedStore,
        fence: ControlFence,
        purgatory: Purgatory,
        clock: Clock,
        entropy: Entropy,
        steps: MembershipSteps,
    ) -> None:
        self._cluster = cluster
        self._changes = changes
        self._elector = seat
        self._store = store
        self._fence = fence
        self._purgatory = purgatory
        self._clock = clock
        self._entropy = entropy
        self._steps = steps
        self._endpoints: tuple[Endpoint, ...] = ()
        self._session = 0
        """The open session; 0: none."""
        self._former: deque[int] = deque(maxlen=FORMER)
        """Sessions that have ended."""
        self._generation = 0
        """Rises with every change of the session. Workflows that started under an older value stop."""
        self._waits_until_ns: int | None = None
        self._has_identity = False
        self._has_left = False

    @property
    def is_registered(self) -> bool:
        """Whether this broker is registered in the open session."""
        return bool(self._session) and self._cluster.me.epoch != UNKNOWN_BROKER_EPOCH

    def set_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Set the endpoints with which this broker will register."""
        self._endpoints = tuple(endpoints)

    def leave_cluster(self) -> None:
        """Stop competing to be the controller, and do not register again. The registration ends with the session."""
        self._has_left = True
        self._generation += 1
        self._elector.stop_competing()

    # -- the session -------------------------------------------------------------------------------------------

    def on_session(self, state: Session, session_id: int) -> None:
        """Handle a change of the session or of its state."""
        if state is Session.OPEN:
            self._on_opened(session_id)
        elif state is Session.SUSPENDED:
            logger.warning("the metadata store does not answer; this broker continues with the metadata that it has")
        else:
            self._on_expired(session_id)

    def _on_opened(self, session_id: int) -> None:
        # An OPEN of the same session only lost its watches; the registration still exists.
        if session_id != self._session:
            self._drop_registration()
        self._session = session_id
        self._waits_until_ns = None  # a store that was unavailable may have restarted all session time-outs
        self._store.forget_watches()
        self._generation += 1
        if not self._has_left:
            self._start_join(self._generation)

    def _on_expired(self, session_id: int) -> None:
        logger.error("the session %x with the metadata store has expired; this broker registers again", session_id)
        self._former.append(session_id)
        self._session = 0
        self._generation += 1
        self._store.forget_watches()
        self._drop_registration()
        self._elector.on_session_lost()

    def _drop_registration(self) -> None:
        self._cluster.on_registered(UNKNOWN_BROKER_EPOCH)
        self._fence.broker_epoch = UNKNOWN_BROKER_EPOCH

    # -- joining -----------------------------------------------------------------------------------------------

    def _start_join(self, life: int) -> None:
        run_workflow(self._store, self._join_steps(), lambda outcome: self._on_joined(life, outcome))

    def _join_steps(self) -> Workflow[int]:
        """All steps up to the registration. Returns the broker epoch."""
        # 1. The cluster's id first: a broker must not write anything to the store of another cluster.
        # 2. The persistent nodes and all settings, which the recovery of the logs needs.
        # 3. The logs are recovered once per process, before the registration lets the controller assign leaders.
        # 4. The registration, which is repeated in every new session.
        try:
            adopted = self._steps.adopt(self._new_uuid)
            found = yield from find_cluster_id(self._new_uuid, self._steps.remembered(), adopted)
            yield from ensure_persistent()
            yield from self._changes.read_all()
            for read in (self._steps.read_features, self._steps.read_acls, self._steps.read_tokens):
                if read is not None:
                    yield from read()
            topics = yield from read_children(TOPICS)
        except BrokenNode as broken:
            raise damaged_store_error(broken) from None
        if not self._has_identity:
            self._has_identity = True
            self._cluster.set_identity(found, self._endpoints, topics)
            if not self._steps.found(found):
                self.leave_cluster()
        if self._has_left:
            raise Failure(Kind.EXPIRED, "the broker stops before it has started")
        return (yield from self._register_broker())

    def _register_broker(self) -> Workflow[int]:
        config = self._cluster.config
        incomplete, is_blank = (yield from self._lost_partitions()), self._steps.is_blank()
        # Too many to list: the broker registers as one with new directories, and leaves all ISRs.
        if len(incomplete) > INCOMPLETE_MAX:
            incomplete, is_blank = (), True
        node = BrokerNode(
            self._endpoints, config.broker_rack, config.ottla_host, is_blank, incomplete, registered_features()
        )
        content = encode_broker(node, self._clock.now().wall_ms)
        while True:
            life, session = self._generation, self._session
            epoch = yield from register_broker(self._cluster.node_id, content, session, _do_nothing, self._former)
            if epoch is not None:
                return epoch
            # Registering again in another session is the next join's work.
            if life != self._generation:
                raise Failure(Kind.EXPIRED, "the session changed while the broker registered")
            self._check_patience()
            yield from self._pause_join()

    def _lost_partitions(self) -> Workflow[tuple[TopicPartition, ...]]:
        """Partitions that this broker has lost records of, while the controller may still count it as in sync."""
        names, ids = self._steps.topics(), {}
        for start in range(0, len(names), TOPICS_AT_ONCE):
            some = names[start : start + TOPICS_AT_ONCE]
            nodes = yield from read_nodes([topic_path(name) for name in some])
            found = ((name, _id_in(name, node)) for name, node in zip(some, nodes, strict=True))
            ids.update({name: topic_id for name, topic_id in found if topic_id != ZERO_UUID})
        return tuple(self._steps.incomplete(ids))

    def _check_patience(self) -> None:
        """Decide whether to wait longer for the broker's number, which another session has registered.

        1. The first time: it may be this broker's own last session, which ends after its time-out.
        2. After that time: another broker runs with this number. Raises ApiError if this broker has just started.
        3. After that time, in a process that has been a member before: keep trying.
        """
        now_ns = self._clock.now().mono_ns
        timeout_ms = self._cluster.config.zookeeper_session_timeout_ms + GRACE_MS
        path = broker_path(self._cluster.node_id)
        if self._waits_until_ns is None:
            self._waits_until_ns = now_ns + timeout_ms * 1_000_000
            logger.warning("%s is registered by another session; waiting up to %d ms for its end", path, timeout_ms)
        elif now_ns >= self._waits_until_ns and not self._former:
            raise ApiError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"another broker runs with node.id {self._cluster.node_id}: {path} still exists",
            )

    def _pause_join(self) -> Workflow[None]:
        yield from wait_for_answer(
            lambda answered: _discard_timer(self._purgatory.continue_after(AGAIN_MS, lambda: answered(None)))
        )

    def _on_joined(self, life: int, outcome: int | Failure | ApiError) -> None:
        if life != self._generation:
            return
        if isinstance(outcome, int):
            self._waits_until_ns = None
            self._cluster.on_registered(outcome)
            self._fence.broker_epoch = outcome
            self._elector.start_competing(outcome)
        elif isinstance(outcome, ApiError):
            self._steps.failed(Failure(Kind.NOT_DONE, f"the broker cannot join its cluster: {outcome}"))
        elif outcome.kind in _FINAL:
            self._steps.failed(outcome)
        else:
            logger.warning("this broker could not join its cluster: %s; trying again", outcome)
            self._purgatory.continue_after(AGAIN_MS, lambda: self._retry_join(life))

    def _retry_join(self, life: int) -> None:
        if life == self._generation:
            self._start_join(life)

    def _new_uuid(self) -> bytes:
        """16 random octets in the form of a version 4 UUID, which Kafka's own ids have."""
        octets = bytearray(self._entropy.random_bytes("uuids", 16))
        octets[6] = octets[6] & 0x0F | 0x40
        octets[8] = octets[8] & 0x3F | 0x80
        return bytes(octets)


def _id_in(name: str, node: Node | None) -> bytes:
    """The id of a topic; zero if it is gone, has none, or has an invalid node, which the controller will log."""
    try:
        return ZERO_UUID if node is None else decode_topic(topic_path(name), node.data).topic_id
    except BrokenNode:
        return ZERO_UUID


def _do_nothing() -> None:
    """Ignore the watch: the registration is polled."""


def _discard_timer(_: object) -> None:
    """Discard the timer, which is never cancelled."""
