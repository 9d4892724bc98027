"""A broker's membership: its session with the metadata store, its registration, its claim to the controller's seat.

Zone: deterministic. The order of things at the start and after every loss of the session is decided here. While the
session is not OPEN nothing is written; what the broker leads it goes on leading, until others are told otherwise.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.cluster.broker_registration import cluster_id, damaged, ensure_persistent, register
from ottla.cluster.cluster import Cluster
from ottla.cluster.config_changes import ConfigChanges
from ottla.cluster.controller.controller_election import ControllerElector
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
from ottla.cluster.store.workflow import Workflow, children, get_all, run, wait
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import UNKNOWN_BROKER_EPOCH, ControlFence
from ottla.seams import Clock, Entropy, Failure, Kind, Node, Session
from ottla.types import ZERO_UUID, Endpoint, TopicPartition

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 1000
"""Before the next try, when the store did not answer or the broker's number is taken."""
GRACE_MS: Final = 2000
"""A store looks for dead sessions in steps: how much later than its time-out one may end."""
TOPICS_AT_ONCE: Final = 250
"""Whose ids are read together."""
INCOMPLETE_MAX: Final = 1000
"""Partitions that a registration names; with more of them the broker counts as one whose directories are new."""
FORMER: Final = 16
"""So many sessions of the past are remembered; a store has forgotten those before them."""
_FINAL: Final = (Kind.IO, Kind.FULL)
"""Failures of the store that no second try will heal."""


class MembershipSteps(NamedTuple):
    """What the broker does when its membership has come so far."""

    remembered: Callable[[], str | None]
    """The cluster's id as the log directories have it, None when they are new. Raises ApiError."""
    is_blank: Callable[[], bool]
    """Whether a log directory is new, as far as the controller has been told."""
    topics: Callable[[], Sequence[str]]
    """Those that have logs here, or had."""
    incomplete: Callable[[Mapping[str, bytes]], Sequence[TopicPartition]]
    """With the ids of those that exist: partitions whose logs are gone, another topic's, or have lost something, as far
    as the controller has not been told."""
    adopt: Callable[[Callable[[], bytes]], Workflow[None] | None]
    """With a source of ids, what takes the logs of another cluster in; None: nothing does. Raises ApiError."""
    found: Callable[[str], None]
    """The cluster's id is known, and the settings are: claim the log directories, recover the logs. Raises ApiError.
    The membership may have been left when it returns: then there is nothing to register."""
    failed: Callable[[Failure], None]
    """This can never be: say why."""


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
        self._seat = seat
        self._store = store
        self._fence = fence
        self._purgatory = purgatory
        self._clock = clock
        self._entropy = entropy
        self._steps = steps
        self._endpoints: tuple[Endpoint, ...] = ()
        self._session = 0
        """The session that is open, 0: none is."""
        self._former: deque[int] = deque(maxlen=FORMER)
        """Sessions that are over, as far as this broker knows."""
        self._life = 0
        """Grows with every change of the session: who started under another one stops."""
        self._waits_until_ns: int | None = None
        self._found = False
        self._left = False

    @property
    def is_registered(self) -> bool:
        """Whether this broker is registered under the session that is open."""
        return bool(self._session) and self._cluster.me.epoch != UNKNOWN_BROKER_EPOCH

    def start(self, endpoints: Sequence[Endpoint]) -> None:
        """Under which addresses this broker registers."""
        self._endpoints = tuple(endpoints)

    def leave(self) -> None:
        """Give the seat up and register no more. The registration itself ends with the session."""
        self._left = True
        self._life += 1
        self._seat.stop()

    # -- the session -------------------------------------------------------------------------------------------

    def on_session(self, state: Session, session_id: int) -> None:
        """The session with the store is another one, or in another state."""
        if state is Session.OPEN:
            self._on_opened(session_id)
        elif state is Session.SUSPENDED:
            logger.warning("the metadata store does not answer; this broker goes on with what it knows")
        else:
            self._on_expired(session_id)

    def _on_opened(self, session_id: int) -> None:
        if session_id != self._session:
            self._drop_registration()
        self._session = session_id
        self._waits_until_ns = None  # a store that was away may have begun to count the time of every session anew
        self._store.forget_watches()
        self._life += 1
        if not self._left:
            self._join(self._life)

    def _on_expired(self, session_id: int) -> None:
        logger.error("the session %x with the metadata store is over; this broker registers anew", session_id)
        self._former.append(session_id)
        self._session = 0
        self._life += 1
        self._store.forget_watches()
        self._drop_registration()
        self._seat.on_session_lost()

    def _drop_registration(self) -> None:
        self._cluster.registered(UNKNOWN_BROKER_EPOCH)
        self._fence.broker_epoch = UNKNOWN_BROKER_EPOCH

    # -- joining -----------------------------------------------------------------------------------------------

    def _join(self, life: int) -> None:
        run(self._store, self._joining(), lambda outcome: self._on_joined(life, outcome))

    def _joining(self) -> Workflow[int]:
        """All steps up to the registration; the value is the broker epoch."""
        try:
            adopted = self._steps.adopt(self._new_uuid)
            found = yield from cluster_id(self._new_uuid, self._steps.remembered(), adopted)
            yield from ensure_persistent()
            yield from self._changes.read_all()
            topics = yield from children(TOPICS)
        except BrokenNode as broken:
            raise damaged(broken) from None
        if not self._found:
            self._found = True
            self._cluster.set_identity(found, self._endpoints, topics)
            self._steps.found(found)
        if self._left:
            raise Failure(Kind.EXPIRED, "the broker stops before it has started")
        return (yield from self._register())

    def _register(self) -> Workflow[int]:
        config = self._cluster.config
        incomplete, is_blank = (yield from self._incomplete()), self._steps.is_blank()
        if len(incomplete) > INCOMPLETE_MAX:
            incomplete, is_blank = (), True
        node = BrokerNode(self._endpoints, config.broker_rack, config.ottla_host, is_blank, incomplete)
        content = encode_broker(node, self._clock.now().wall_ms)
        while True:
            life, session = self._life, self._session
            epoch = yield from register(self._cluster.node_id, content, session, _do_nothing, self._former)
            if epoch is not None:
                return epoch
            if life != self._life:
                raise Failure(Kind.EXPIRED, "the session changed while the broker registered")
            self._check_patience()
            yield from self._pause()

    def _incomplete(self) -> Workflow[tuple[TopicPartition, ...]]:
        """What this broker has not any more, though the controller may count on it."""
        names, ids = self._steps.topics(), {}
        for start in range(0, len(names), TOPICS_AT_ONCE):
            some = names[start : start + TOPICS_AT_ONCE]
            nodes = yield from get_all([topic_path(name) for name in some])
            found = ((name, _id_in(name, node)) for name, node in zip(some, nodes, strict=True))
            ids.update({name: topic_id for name, topic_id in found if topic_id != ZERO_UUID})
        return tuple(self._steps.incomplete(ids))

    def _check_patience(self) -> None:
        """The number is taken: by this broker's own last session, which ends soon, or by another broker.

        Raises ApiError when this broker starts; one that has been a member goes on asking.
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
                f"another broker runs with node.id {self._cluster.node_id}: {path} stays",
            )

    def _pause(self) -> Workflow[None]:
        yield from wait(lambda answered: _drop(self._purgatory.after(AGAIN_MS, lambda: answered(None))))

    def _on_joined(self, life: int, outcome: int | Failure | ApiError) -> None:
        if life != self._life:
            return
        if isinstance(outcome, int):
            self._waits_until_ns = None
            self._cluster.registered(outcome)
            self._fence.broker_epoch = outcome
            self._seat.start(outcome)
        elif isinstance(outcome, ApiError):
            self._steps.failed(Failure(Kind.NOT_DONE, f"the broker cannot join its cluster: {outcome}"))
        elif outcome.kind in _FINAL:
            self._steps.failed(outcome)
        else:
            logger.warning("the metadata store does not let this broker in: %s; trying again", outcome)
            self._purgatory.after(AGAIN_MS, lambda: self._retry_join(life))

    def _retry_join(self, life: int) -> None:
        if life == self._life:
            self._join(life)

    def _new_uuid(self) -> bytes:
        """16 random octets in the form of a version 4 UUID, which Kafka's own ids have."""
        octets = bytearray(self._entropy.octets("uuids", 16))
        octets[6] = octets[6] & 0x0F | 0x40
        octets[8] = octets[8] & 0x3F | 0x80
        return bytes(octets)


def _id_in(name: str, node: Node | None) -> bytes:
    """The id of a topic; zero when it is gone, has none, or cannot be understood, which the controller will name."""
    try:
        return ZERO_UUID if node is None else decode_topic(topic_path(name), node.data).topic_id
    except BrokenNode:
        return ZERO_UUID


def _do_nothing() -> None:
    """The registration is looked at again and again; no word is needed."""


def _drop(_: object) -> None:
    """The timer is not taken back."""
