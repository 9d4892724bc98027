"""Changes settings of topics, brokers and other entities in the metadata store. Any broker may do that.

Zone: deterministic. Each change reads the node, and writes on the condition that its version is the same, together with
the notification for all brokers (`config_changes`). This broker applies the change before it answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from ottla.cluster.cluster import Cluster
from ottla.cluster.config_changes import notification_op
from ottla.cluster.configs import Layers, check_broker, check_topic
from ottla.cluster.entities.entity_reader import CONFIG, EntityReader, parents_of
from ottla.cluster.store.error_mapping import ErrorAnswer, error_of_failure
from ottla.cluster.store.layout import (
    DEFAULT_ENTITY,
    BrokenNode,
    broker_config_path,
    decode_config,
    encode_config,
    topic_config_path,
    topic_path,
)
from ottla.cluster.store.workflow import Workflow, contain_defects, read_nodes, run_workflow, submit_multi
from ottla.cluster.topics import MAX_NAME
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, MetadataStore, Node, Op

MAX_WAITING_ALTERATIONS: Final = 32
"""Limit of alterations of one resource that wait for each other."""
_TRIES: Final = 5
"""Attempts of a change before it fails because other brokers keep changing the same settings."""

T = TypeVar("T")
ConfigChange = Callable[[Mapping[str, str]], dict[str, str]]
"""Computes the new settings from the present ones. Raises ApiError."""


class ConfigWriter:
    """Carries out the alterations that clients request from this broker."""

    def __init__(self, store: MetadataStore, cluster: Cluster, entities: EntityReader) -> None:
        self._store = store
        self._cluster = cluster
        self._entities = entities
        self._running: dict[str, deque[Callable[[Callable[[], None]], None]]] = {}

    # -- one at a time -----------------------------------------------------------------------------------------

    def one_by_one(self, resource: str, action: Callable[[Callable[[], None]], None]) -> None:
        """Run `action(release)` when no other action of this resource runs, because they would only cause conflicts.

        Raises ApiError THROTTLING_QUOTA_EXCEEDED when too many wait.
        """
        waiting = self._running.get(resource)
        if waiting is None:
            self._running[resource] = deque()
            action(lambda: self._release_resource(resource))
        elif len(waiting) < MAX_WAITING_ALTERATIONS:
            waiting.append(action)
        else:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many changes of this resource wait; try again")

    def _release_resource(self, resource: str) -> None:
        waiting = self._running[resource]
        if waiting:
            waiting.popleft()(lambda: self._release_resource(resource))
        else:
            del self._running[resource]

    # -- topics ------------------------------------------------------------------------------------------------

    def alter_topic(self, name: str, change: ConfigChange, validate_only: bool, done: ErrorAnswer[None]) -> None:
        """Change a topic's own settings."""
        topic = self._cluster.image.topics.get(name)
        try:
            if topic is None:
                raise _unknown_topic(name)
            # Checked against the image first: most errors cost no request to the store.
            self._topic_after(change, topic.overrides)
        except ApiError as error:
            done(error.as_value())
            return
        if validate_only:
            done(None)
        else:
            script = contain_defects(f"the change of topic {name}", lambda: self._alter_topic(name, change))
            run_workflow(self._store, script, lambda outcome: done(_error_of(outcome)))

    def _topic_after(self, change: ConfigChange, present: Mapping[str, str]) -> dict[str, str]:
        after = change(present)
        check_topic(present, after, self._cluster.topic_defaults)
        return after

    def _alter_topic(self, name: str, change: ConfigChange) -> Workflow[None]:
        path = topic_config_path(name)
        for _ in range(_TRIES):
            topic, node = yield from read_nodes([topic_path(name), path])
            if topic is None:
                raise _unknown_topic(name)
            after = self._topic_after(change, _decode_settings(path, node))
            # The topic must still exist, so that no settings remain for a later topic of that name.
            exists = Op("check", topic_path(name))
            if (yield from _submit_change([exists, _config_op(path, node, after), notification_op(f"topics/{name}")])):
                # This broker does not wait for its own notification: the client may describe the topic next.
                self._cluster.set_topic_settings(name, after)
                return
        raise _conflict_error()

    # -- brokers -----------------------------------------------------------------------------------------------

    def alter_broker(self, own: bool, change: ConfigChange, validate_only: bool, done: ErrorAnswer[None]) -> None:
        """Change the dynamic settings of this broker (`own`), or of all brokers."""
        layers = self._cluster.layers
        try:
            self._broker_after(own, change, layers.own if own else layers.shared)
        except ApiError as error:
            done(error.as_value())
            return
        if validate_only:
            done(None)
        else:
            script = contain_defects("the change of broker settings", lambda: self._alter_broker(own, change))
            run_workflow(self._store, script, lambda outcome: done(_error_of(outcome)))

    def _broker_after(self, own: bool, change: ConfigChange, present: Mapping[str, str]) -> dict[str, str]:
        after = change(present)
        check_broker(self._with_settings(own, present), self._with_settings(own, after))
        return after

    def _with_settings(self, own: bool, settings: Mapping[str, str]) -> Layers:
        layers = self._cluster.layers
        return layers._replace(own=settings) if own else layers._replace(shared=settings)

    def _alter_broker(self, own: bool, change: ConfigChange) -> Workflow[None]:
        node_id = self._cluster.node_id
        path = broker_config_path(node_id if own else None)
        entity = f"brokers/{node_id if own else DEFAULT_ENTITY}"
        for _ in range(_TRIES):
            (node,) = yield from read_nodes([path])
            after = self._broker_after(own, change, _decode_settings(path, node))
            if (yield from _submit_change([_config_op(path, node, after), notification_op(entity)])):
                layers = self._cluster.layers
                shared, mine = (layers.shared, after) if own else (after, layers.own)
                self._cluster.set_broker_settings(shared, mine)
                return
        raise _conflict_error()

    # -- other entities ----------------------------------------------------------------------------------------

    def alter_entity(self, path: str, change: ConfigChange, done: ErrorAnswer[None]) -> None:
        """Change the settings of an entity, named by its path below /config, as `users/ann`.

        Changes of one entity run one after another, each on the result of the last. `change` may be called several
        times; it raises ApiError if it refuses.
        """

        def begin(release: Callable[[], None]) -> None:
            def finish(outcome: Failure | ApiError | None) -> None:
                release()
                done(_error_of(outcome))

            script = contain_defects(f"the change of {path}", lambda: self._alter_entity(path, change))
            run_workflow(self._store, script, finish)

        try:
            self.one_by_one(path, begin)
        except ApiError as error:
            done(error.as_value())

    def _alter_entity(self, path: str, change: ConfigChange) -> Workflow[None]:
        own, parents = f"{CONFIG}/{path}", list(parents_of(path))
        for _ in range(_TRIES):
            *above, node = yield from read_nodes([*parents, own])
            after = change(_decode_settings(own, node))
            if node is None and not after:
                return
            # In the same multi as the settings: if another broker creates a parent first, that is a conflict, and the
            # next attempt finds it.
            missing = [Op("create", parent) for parent, found in zip(parents, above, strict=True) if found is None]
            if (yield from _submit_change([*missing, _config_op(own, node, after), notification_op(path)])):
                self._entities.set_config(path, after)
                return
        raise _conflict_error()


def _config_op(path: str, node: Node | None, settings: Mapping[str, str]) -> Op:
    content = encode_config(settings)
    return Op("create", path, content) if node is None else Op("put", path, content, node.version)


def _decode_settings(path: str, node: Node | None) -> dict[str, str]:
    """The settings in a node. An invalid node has none, so that the change replaces it."""
    try:
        return {} if node is None or not node.data else decode_config(path, node.data)
    except BrokenNode:
        return {}


def _submit_change(ops: list[Op]) -> Workflow[bool]:
    """Submit a multi. Returns False when another writer changed the node, or may have. Raises other Failures."""
    try:
        # A lane for each node, which keeps the order of its changes: the node is the last but one, the notification is
        # the last.
        yield from submit_multi(f"config {ops[-2].path}", ops)
    except Failure as failure:
        if failure.kind in (Kind.CONFLICT, Kind.UNKNOWN):
            return False
        raise
    return True


def _unknown_topic(name: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:MAX_NAME]!r}")


def _conflict_error() -> ApiError:
    return ApiError(
        ErrorCode.REQUEST_TIMED_OUT, "the metadata store has not confirmed the change; check the settings and try again"
    )


def _error_of(outcome: T | Failure | ApiError) -> T | ApiError:
    return error_of_failure(outcome) if isinstance(outcome, (Failure, ApiError)) else outcome
