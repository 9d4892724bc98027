"""Reads settings from the metadata store: all of them at the start, then each change that a notification names.

Zone: deterministic. A broker that changes settings creates a notification node under /config/changes, which every
broker watches. The node names the resource, whose settings are then read again. Notifications older than a quarter of
an hour are removed, as in Kafka.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ottla.cluster.cluster import Cluster
from ottla.cluster.configs import KEEP_ALL, retention_guards, usable_overrides
from ottla.cluster.entities.entity_reader import EntityReader
from ottla.cluster.image import ClusterImage
from ottla.cluster.store.layout import (
    DEFAULT_ENTITY,
    DELETE_TOPICS,
    TOPIC_CONFIGS,
    TOPICS,
    BrokenNode,
    broker_config_path,
    decode_config,
    topic_config_path,
)
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import Workflow, read_children, read_node, read_nodes, run_workflow, submit_multi
from ottla.errors import ApiError
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Clock, Failure, Node, Op

logger = logging.getLogger(__name__)

CONFIG_CHANGES: Final = "/config/changes"
KEPT_NS: Final = 15 * 60 * 1_000_000_000
"""How long a notification stays: longer than any broker needs to read it."""
AGAIN_MS: Final = 500
"""Delay before a request is repeated that the store did not answer."""
_LANE: Final = "config changes"
_PREFIX: Final = f"{CONFIG_CHANGES}/config_change_"


def notification_op(entity: str) -> Op:
    """The operation that creates the notification of a change of `topics/<name>`, `brokers/<id>`, `users/<name>` …"""
    content = json.dumps({"version": 2, "entity_path": entity}, separators=(",", ":"), ensure_ascii=False)
    return Op("sequential", _PREFIX, content.encode(errors="replace"))


class ConfigChanges:
    """Reads settings and keeps the cluster's view of them current."""

    def __init__(
        self,
        store: WatchedStore,
        cluster: Cluster,
        clock: Clock,
        purgatory: Purgatory,
        later: Callable[[Callable[[], None]], None],
        entities: EntityReader,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._purgatory = purgatory
        self._later = later
        self._entities = entities
        self._seen: dict[str, int] = {}
        """Notifications that exist and were read, with the monotonic time of that."""
        self._reading = False
        self._read_again = False

    # -- all of them -------------------------------------------------------------------------------------------

    def read_all(self) -> Workflow[None]:
        """Read all settings and begin to watch. Raises Failure; invalid settings are logged and left out."""
        # 1. The watch first: a change after this read causes a notification. 2. Then the settings themselves.
        for name in (yield from read_children(CONFIG_CHANGES, self._on_notification)):
            # In a later session, what was seen before keeps its age.
            self._seen.setdefault(name, self._clock.now().mono_ns)
        yield from self._read_brokers()
        yield from self._entities.read_all()
        names = yield from read_children(TOPIC_CONFIGS)
        nodes = yield from read_nodes([topic_config_path(name) for name in names])
        for name, node in zip(names, nodes, strict=True):
            self._cluster.set_topic_settings(name, self._readable_settings(name, node))

    def _read_brokers(self) -> Workflow[None]:
        own = self._cluster.node_id
        paths = [broker_config_path(None), broker_config_path(own)]
        shared, mine = yield from read_nodes(paths)
        self._cluster.set_broker_settings(_broker_settings(paths[0], shared), _broker_settings(paths[1], mine))

    def prepare_topics(self, topics: Iterable[str], then: Callable[[], None]) -> None:
        """Call `then`, in a later turn, when the settings of these topics have been read."""
        missing = [name for name in dict.fromkeys(topics) if not self._cluster.has_settings(name)]
        if missing:
            run_workflow(
                self._store, self._read_topics(missing), lambda outcome: self._on_prepared(missing, outcome, then)
            )
        else:
            self._later(then)

    def _on_prepared(self, topics: list[str], outcome: Failure | ApiError | None, then: Callable[[], None]) -> None:
        if outcome is None:
            then()
        else:
            self._purgatory.look_after(AGAIN_MS, lambda: self.prepare_topics(topics, then))

    def _read_topics(self, names: Sequence[str]) -> Workflow[None]:
        # A write first: this session's server may lag, and has caught up with the controller's after a write.
        yield from submit_multi(_LANE, [Op("check", TOPIC_CONFIGS)])
        nodes = yield from read_nodes([topic_config_path(name) for name in names])
        for name, node in zip(names, nodes, strict=True):
            # Another request may have read them meanwhile, and a notification may have brought newer ones.
            if not self._cluster.has_settings(name):
                self._cluster.set_topic_settings(name, self._readable_settings(name, node))

    @staticmethod
    def _readable_settings(name: str, node: Node | None) -> Mapping[str, str]:
        try:
            return _topic_settings(name, node)
        except BrokenNode as broken:
            logger.error(
                "ignoring the settings of topic %s: %s; all its records are kept until the settings are written again",
                name, broken,
            )  # fmt: skip
            return KEEP_ALL

    def refresh_topics(self) -> None:
        """Forget topics that were deleted while this broker was not registered: no UpdateMetadata reports those."""
        before = self._cluster.image
        run_workflow(self._store, self._read_topic_names(), lambda outcome: self._on_topic_names(before, outcome))

    def _read_topic_names(self) -> Workflow[dict[str, None]]:
        yield from submit_multi(_LANE, [Op("check", TOPICS)])  # as in `_read_topics`
        names = yield from read_children(TOPICS)
        going = set((yield from read_children(DELETE_TOPICS)))
        return {name: None for name in names if name not in going}

    def _on_topic_names(self, before: ClusterImage, outcome: dict[str, None] | Failure | ApiError) -> None:
        if isinstance(outcome, dict):
            self._cluster.retain_topics(outcome, before)
        else:
            self._purgatory.look_after(AGAIN_MS, self.refresh_topics)

    # -- changes -----------------------------------------------------------------------------------------------

    def _on_notification(self) -> None:
        if self._reading:
            self._read_again = True
            return
        self._reading = True
        self._read_again = False
        run_workflow(self._store, self._read_notifications(), self._on_notes_read)

    def _on_notes_read(self, outcome: Failure | ApiError | None) -> None:
        self._reading = False
        if outcome is not None:
            self._purgatory.continue_after(AGAIN_MS, self._on_notification)
        elif self._read_again:
            self._on_notification()

    def _read_notifications(self) -> Workflow[None]:
        names = yield from read_children(CONFIG_CHANGES, self._on_notification)
        fresh = [name for name in names if name not in self._seen]
        nodes = yield from read_nodes([f"{CONFIG_CHANGES}/{name}" for name in fresh])
        entities = [_entity_of(name, node) for name, node in zip(fresh, nodes, strict=True)]
        for entity in dict.fromkeys(entities):
            yield from self._reload_entity(entity)
        # The time of the first read counts, not the time of creation, whose clock is another broker's.
        now_ns = self._clock.now().mono_ns
        self._seen = {name: self._seen.get(name, now_ns) for name in names}
        yield from self._remove_old(now_ns)

    def _reload_entity(self, entity: str) -> Workflow[None]:
        kind, _, name = entity.partition("/")
        try:
            if kind == "topics" and name:
                node = yield from read_node(topic_config_path(name))
                self._cluster.set_topic_settings(name, _topic_settings(name, node))
            elif kind == "brokers" and name in (DEFAULT_ENTITY, str(self._cluster.node_id)):
                yield from self._read_brokers()
            else:
                yield from self._entities.reload_entity(entity)
        except BrokenNode as broken:
            logger.error("ignoring changed settings: %s; repair or delete the node", broken)

    def _remove_old(self, now_ns: int) -> Workflow[None]:
        """Remove old notifications. Another broker may have been faster."""
        for name in [name for name, seen_ns in self._seen.items() if now_ns - seen_ns > KEPT_NS]:
            try:
                yield from submit_multi(_LANE, [Op("delete", f"{CONFIG_CHANGES}/{name}")])
            except Failure as failure:
                logger.debug("could not remove the notification %s: %s", name, failure)
            self._seen.pop(name, None)


def _entity_of(name: str, node: Node | None) -> str:
    """The resource that a notification names, as `topics/<name>`; empty if the node is gone or invalid."""
    if node is None:
        return ""
    try:
        content = json.loads(node.data)
        # Version 2 has a path. Version 1, of older Kafka tools, has type and name.
        if "entity_path" in content:
            return str(content["entity_path"])
        return f"{content['entity_type']}/{content['entity_name']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        logger.error("ignoring an invalid notification of changed settings: %s/%s", CONFIG_CHANGES, name)
        return ""


def _decode_settings(path: str, node: Node | None) -> dict[str, str]:
    return {} if node is None or not node.data else decode_config(path, node.data)


def _broker_settings(path: str, node: Node | None) -> dict[str, str]:
    try:
        return _decode_settings(path, node)
    except BrokenNode as broken:
        logger.error("ignoring the dynamic settings of brokers: %s; records are kept until they are set again", broken)
        return retention_guards(["log.retention.ms"])


def _topic_settings(name: str, node: Node | None) -> dict[str, str]:
    good, words = usable_overrides(_decode_settings(topic_config_path(name), node))
    for word in words:
        logger.warning("topic %s: %s", name, word)
    return good
