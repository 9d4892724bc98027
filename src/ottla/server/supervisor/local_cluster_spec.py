"""The brokers of one machine: which there are, and what each is told; what their store says about them.

Zone: pure. Names, numbers and texts. Processes are `ottla.server.supervisor.supervisor`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ottla.config.rows import list_word
from ottla.znodes.tree import Tree

OWN, SHARED, BROKERS = "PLAINTEXT", "BOOTSTRAP", "BROKERS"
"""Listeners of a broker: its own port, the one that all share, and one for other brokers, which no client is told."""
SESSION_MS: Final = 6_000
"""A dead broker's session is ended at once; this is for one that stands still. Kafka's default suits a network."""
_HTTP: Final = "ottla.http.listener"
_DIRECTORY: Final = "broker-"
_OURS: Final = frozenset(
    {
        "node.id", "broker.id", "log.dirs", "log.dir", "listeners", "advertised.listeners", "zookeeper.connect",
        "inter.broker.listener.name", "listener.security.protocol.map", "ottla.inter.broker.secret.file",
        "ottla.zookeeper.digest", "zookeeper.set.acl",
    }
)  # fmt: skip
"""Keys that follow from where the brokers are."""


class InvalidClusterSpec(Exception):
    """What was asked for cannot be started; says why, and what can be done."""


class LocalClusterSpec(NamedTuple):
    """What the command line asked for."""

    data: str
    host: str
    port: int
    """Of the shared listener; 0 takes a free one."""
    brokers: Sequence[int]
    settings: Mapping[str, str]
    """Broker keys for all of them."""
    log: tuple[str, str] = ("INFO", "text")
    """Level and style of the log lines."""


class Layout(NamedTuple):
    """What a data directory holds."""

    brokers: Sequence[int]
    single: bool
    """The log directory of a broker that runs alone."""


def layout_of(names: Sequence[str]) -> Layout:
    """By the names in a data directory."""
    numbers = [name[len(_DIRECTORY) :] for name in names if name.startswith(_DIRECTORY)]
    return Layout(sorted(int(text) for text in numbers if text.isdecimal()), "meta.properties" in names)


def brokers_of(count: int, layout: Layout, data: str) -> list[int]:
    """The node ids of `count` brokers: those that have a directory, then the lowest free ones from 1.

    Raises WrongFleet when there are more directories than brokers, or a single broker's data.
    """
    if layout.single:
        raise InvalidClusterSpec(
            f"{data} holds the data of a single broker; start it without --brokers, or name another directory"
        )
    if len(layout.brokers) > count:
        there = ", ".join(f"{_DIRECTORY}{broker}" for broker in layout.brokers)
        count = len(layout.brokers)
        raise InvalidClusterSpec(
            f"{data} holds {there}: start all with --brokers {count}, or move away those not to run"
        )
    free = (number for number in range(1, count + len(layout.brokers) + 1) if number not in layout.brokers)
    return sorted([*layout.brokers, *(next(free) for _ in range(count - len(layout.brokers)))])


def directory_of(data: str, broker: int) -> str:
    """Where a broker keeps its logs and its `pid` file."""
    return f"{data}/{_DIRECTORY}{broker}"


class StoreSpec(NamedTuple):
    """How brokers reach the metadata store."""

    address: str
    """host:port"""
    digest: str
    """user:password"""


def properties_of(
    fleet: LocalClusterSpec, broker: int, port: int, shared: int, store: StoreSpec, reached: str
) -> dict[str, str]:
    """The configuration of one broker. `port` is its own, `shared` the bootstrap port.

    `reached`: the host that clients are told, where the listener's is every interface.

    Raises WrongFleet for a key that cannot be the same for all.
    """
    for key in fleet.settings:
        if key in _OURS:
            raise InvalidClusterSpec(f"--set {key}: with --brokers it follows from --data, --host and --port")
    host = f"[{fleet.host}]" if ":" in fleet.host else fleet.host
    told = f"[{reached}]" if ":" in reached else reached
    copies, least = min(3, len(fleet.brokers)), min(2, len(fleet.brokers))
    return {
        "default.replication.factor": str(copies),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(least),
        "min.insync.replicas": str(least if copies > 2 else 1),
        "zookeeper.session.timeout.ms": str(SESSION_MS),
        **fleet.settings,
        **_pages(fleet.settings.get(_HTTP, ""), broker),
        "node.id": str(broker),
        "log.dirs": list_word(directory_of(fleet.data, broker)),
        "listeners": f"{OWN}://{host}:{port},{SHARED}://{host}:{shared},{BROKERS}://127.0.0.1:0",
        "advertised.listeners": f"{OWN}://{told}:{port},{SHARED}://{told}:{port},{BROKERS}://127.0.0.1:*",
        "listener.security.protocol.map": f"{OWN}:PLAINTEXT,{SHARED}:PLAINTEXT,{BROKERS}:PLAINTEXT",
        "inter.broker.listener.name": BROKERS,
        "zookeeper.connect": store.address,
        "ottla.zookeeper.digest": store.digest,
    }


def _pages(listener: str, broker: int) -> dict[str, str]:
    """Where a broker shows /metrics and /health: as with the brokers' own ports, its id is added to the port."""
    host, colon, port = listener.rpartition(":")
    if not colon or not port.isdecimal() or int(port) == 0:
        return {}
    if int(port) + broker > 65_535:
        raise InvalidClusterSpec(f"--set {_HTTP}: there is no port {port} + {broker}")
    return {_HTTP: f"{host}:{int(port) + broker}"}


# -- what the store says -----------------------------------------------------------------------------------------------


def session_of(tree: Tree, broker: int) -> int | None:
    """The session that a broker registered with."""
    node = tree.nodes.get(f"/brokers/ids/{broker}")
    return node.owner or None if node is not None else None


def controller_of(tree: Tree) -> int | None:
    """The broker that is the controller."""
    found = _json(tree, "/controller").get("brokerid")
    return found if isinstance(found, int) else None


def under_replicated(tree: Tree) -> list[str]:
    """Partitions of which not every replica is in sync, as `topic-partition`, sorted."""
    found: list[str] = []
    topics = tree.nodes.get("/brokers/topics")
    for topic in sorted(topics.children) if topics is not None else ():
        partitions = _json(tree, f"/brokers/topics/{topic}").get("partitions")
        for number, replicas in partitions.items() if isinstance(partitions, dict) else ():
            isr = _json(tree, f"/brokers/topics/{topic}/partitions/{number}/state").get("isr")
            if not isinstance(isr, list) or not isinstance(replicas, list) or not set(isr) >= set(replicas):
                found.append(f"{topic}-{number}")
    return sorted(found)


def _json(tree: Tree, path: str) -> dict[str, Any]:
    """The object in a node; of one that is not there, or that somebody wrote nonsense to, nothing."""
    node = tree.nodes.get(path)
    try:
        found = json.loads(node.data) if node is not None else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
