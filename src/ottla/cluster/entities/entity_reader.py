"""Reads the settings of entities: all of them at the start, in slices, then those that a notification names.

Zone: deterministic. The receiver of the settings knows their meaning. Settings that cannot be read are ignored with
a log line, and the former ones stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from ottla.cluster.store.layout import BrokenNode, decode_config
from ottla.cluster.store.workflow import Workflow, read_children, read_children_of, read_node, read_nodes
from ottla.seams import Node

logger = logging.getLogger(__name__)

CONFIG: Final = "/config"
GROUPS: Final = "groups"
CLIENT_METRICS: Final = "client-metrics"
USERS: Final = "users"
CLIENTS: Final = "clients"
KINDS: Final = (USERS, CLIENTS, "ips", CLIENT_METRICS, GROUPS)
SLICE: Final = 250
"""Nodes that are read together, so that their decoding takes one short turn."""
OnEntityConfig = Callable[[str, Mapping[str, str]], None]
"""Receives the path of an entity below /config, and its settings; without settings they were deleted."""


class EntityReader:
    """Reads the settings of entities and passes them on."""

    def __init__(self, on_config: OnEntityConfig) -> None:
        self._on_config = on_config
        self._known: dict[str, None] = {}
        """Entities that have settings."""

    def read_all(self) -> Workflow[None]:
        """Read everything. Raises Failure. Entities whose nodes are gone have no settings any more."""
        former, self._known = self._known, {}
        for kind in KINDS:
            names = yield from read_children(f"{CONFIG}/{kind}")
            yield from self._read_entities([f"{kind}/{name}" for name in names])
            if kind == USERS:
                yield from self._read_clients_of_users(names)
        for path in former:
            if path not in self._known:
                self._on_config(path, {})

    def _read_clients_of_users(self, users: Sequence[str]) -> Workflow[None]:
        for some in _slices(users):
            parents = [f"{USERS}/{user}/{CLIENTS}" for user in some]
            found = yield from read_children_of([f"{CONFIG}/{parent}" for parent in parents])
            paths = [f"{parent}/{name}" for parent, names in zip(parents, found, strict=True) for name in names]
            yield from self._read_entities(paths)

    def _read_entities(self, paths: Sequence[str]) -> Workflow[None]:
        for some in _slices(paths):
            nodes = yield from read_nodes([f"{CONFIG}/{path}" for path in some])
            for path, node in zip(some, nodes, strict=True):
                self._deliver(path, node)

    def reload_entity(self, path: str) -> Workflow[None]:
        """Read one entity again. A path that names none is ignored."""
        if is_entity_path(path):
            self._deliver(path, (yield from read_node(f"{CONFIG}/{path}")))

    def set_config(self, path: str, config: Mapping[str, str]) -> None:
        """Take settings that this broker has just written, before it reads its own notification."""
        if config:
            self._known[path] = None
        else:
            self._known.pop(path, None)
        self._on_config(path, config)

    def _deliver(self, path: str, node: Node | None) -> None:
        try:
            config = {} if node is None or not node.data else decode_config(f"{CONFIG}/{path}", node.data)
        except BrokenNode as broken:
            logger.error("ignoring the settings of an entity: %s; the former ones stay, repair or delete it", broken)
            self._known[path] = None
            return
        # Most nodes without settings are parents of others (users/ann of users/ann/clients/app).
        if config or path in self._known:
            self.set_config(path, config)


def _slices(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[begin : begin + SLICE] for begin in range(0, len(names), SLICE))


def is_entity_path(path: str) -> bool:
    """Whether a notification names an entity of this package."""
    parts = path.split("/")
    if not all(_names_node(part) for part in parts):
        return False
    if len(parts) == 4:
        return parts[0] == USERS and parts[2] == CLIENTS
    return len(parts) == 2 and parts[0] in KINDS


def _names_node(name: str) -> bool:
    # Anything else is refused by the client of ZooKeeper, and the notification would be read again and again.
    return name not in ("", ".", "..") and name.isprintable()


def parents_of(path: str) -> Iterator[str]:
    """The nodes above an entity's node, from the top."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        yield f"{CONFIG}/{'/'.join(parts[:count])}"
