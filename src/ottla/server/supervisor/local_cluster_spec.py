"""The brokers of one machine: their node ids, their configurations, and their state in the metadata store.

Zone: pure. Names, numbers and texts; `ottla.server.supervisor.supervisor` runs the processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ottla.config.rows import list_word
from ottla.znodes.tree import Tree

OWN, SHARED, BROKERS = "PLAINTEXT", "BOOTSTRAP", "BROKERS"
"""Listeners of a broker: its own port, the port that all brokers share, and one for other brokers, which clients do
not receive."""
SESSION_MS: Final = 6_000
"""For a broker that is stopped or hangs; the supervisor ends the session of a dead one at once. Kafka's default is
longer, for a network."""
_HTTP: Final = "ottla.http.listener"
_DIRECTORY: Final = "broker-"
_OURS: Final = frozenset(
    {
        "node.id", "broker.id", "log.dirs", "log.dir", "listeners", "advertised.listeners", "zookeeper.connect",
        "inter.broker.listener.name", "listener.security.protocol.map", "ottla.inter.broker.secret.file",
        "ottla.zookeeper.digest", "zookeeper.set.acl",
    }
)  # fmt: skip
"""Keys that the supervisor sets for each broker."""


class InvalidClusterSpec(Exception):
    """The cluster cannot be started as specified; the text names the reason and a remedy."""


class LocalClusterSpec(NamedTuple):
    """The cluster that the command line specifies."""

    data: str
    host: str
    port: int
    """The port of the shared listener; 0: a free one."""
    brokers: Sequence[int]
    settings: Mapping[str, str]
    """Broker keys for all of them."""
    log: tuple[str, str] = ("INFO", "text")
    """Level and style of the log lines."""
    protocol: str = "PLAINTEXT"
    """The security protocol of the listeners for clients. Brokers prove to each other that they know a secret."""
    advertised: str | None = None
    """The host that clients receive; None: that of the listener."""


class Layout(NamedTuple):
    """The content of a data directory."""

    brokers: Sequence[int]
    single: bool
    """Whether it is the log directory of a single broker."""


def layout_of(names: Sequence[str]) -> Layout:
    """Derive the layout from the names in a data directory."""
    numbers = [name[len(_DIRECTORY) :] for name in names if name.startswith(_DIRECTORY)]
    return Layout(sorted(int(text) for text in numbers if text.isdecimal()), "meta.properties" in names)


def brokers_of(count: int, layout: Layout, data: str) -> list[int]:
    """The node ids of `count` brokers: those that have a directory, then the lowest free ones from 1.

    Raises InvalidClusterSpec when there are more directories than brokers, or a single broker's data.
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

    `reached`: the host that clients receive, where the listener binds every interface.

    Raises InvalidClusterSpec for a key that cannot be the same for all.
    """
    for key in fleet.settings:
        if key in _OURS:
            raise InvalidClusterSpec(
                f"--set {key}: cannot be set with --brokers; use --data, --host, --advertise and --port"
            )
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
        **_http_listener(fleet.settings.get(_HTTP, ""), broker),
        "node.id": str(broker),
        "log.dirs": list_word(directory_of(fleet.data, broker)),
        "listeners": f"{OWN}://{host}:{port},{SHARED}://{host}:{shared},{BROKERS}://127.0.0.1:0",
        "advertised.listeners": f"{OWN}://{told}:{port},{SHARED}://{told}:{port},{BROKERS}://127.0.0.1:*",
        "listener.security.protocol.map": f"{OWN}:{fleet.protocol},{SHARED}:{fleet.protocol},{BROKERS}:PLAINTEXT",
        "inter.broker.listener.name": BROKERS,
        "zookeeper.connect": store.address,
        "ottla.zookeeper.digest": store.digest,
    }


def _http_listener(listener: str, broker: int) -> dict[str, str]:
    """The address of a broker's /metrics and /health: its id is added to the port, as for the brokers' own ports."""
    host, colon, port = listener.rpartition(":")
    if not colon or not port.isdecimal() or int(port) == 0:
        return {}
    if int(port) + broker > 65_535:
        raise InvalidClusterSpec(f"--set {_HTTP}: port {port} + {broker} (the broker's id) is too large")
    return {_HTTP: f"{host}:{int(port) + broker}"}


# -- reading the store -------------------------------------------------------------------------------------------------


def session_of(tree: Tree, broker: int) -> int | None:
    """The session that a broker registered with; None if it is not registered."""
    node = tree.nodes.get(f"/brokers/ids/{broker}")
    return node.owner or None if node is not None else None


def controller_of(tree: Tree) -> int | None:
    """The node id of the controller; None if there is none."""
    found = _read_json(tree, "/controller").get("brokerid")
    return found if isinstance(found, int) else None


def under_replicated(tree: Tree) -> list[str]:
    """Partitions with a replica that is not in sync, as `topic-partition`, sorted."""
    found: list[str] = []
    topics = tree.nodes.get("/brokers/topics")
    for topic in sorted(topics.children) if topics is not None else ():
        partitions = _read_json(tree, f"/brokers/topics/{topic}").get("partitions")
        for number, replicas in partitions.items() if isinstance(partitions, dict) else ():
            isr = _read_json(tree, f"/brokers/topics/{topic}/partitions/{number}/state").get("isr")
            if not isinstance(isr, list) or not isinstance(replicas, list) or not set(isr) >= set(replicas):
                found.append(f"{topic}-{number}")
    return sorted(found)


def _read_json(tree: Tree, path: str) -> dict[str, Any]:
    """The JSON object in a node; an empty one if the node is missing or holds something else."""
    node = tree.nodes.get(path)
    try:
        found = json.loads(node.data) if node is not None else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
