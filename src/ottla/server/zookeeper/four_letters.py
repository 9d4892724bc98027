"""ZooKeeper's four-letter commands for people and monitors: ruok, srvr, stat, mntr, conf.

Zone: pure. The commands and their answers, in ZooKeeper's format, so that its monitors can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import ottla
from ottla.server.zookeeper.znode_client import ZnodeClient, ZnodeLimits
from ottla.znodes.store import EmbeddedStore

CLOSED_WORD: Final = "{} is not executed because it is not in the whitelist.\n"
"""ZooKeeper's answer to a command that it does not serve."""


class Status(NamedTuple):
    """The state of the server from which the answers are made."""

    directory: str
    port: int
    limits: ZnodeLimits
    max_connections: int
    store: EmbeddedStore
    clients: Sequence[tuple[str, ZnodeClient]]

    @property
    def received(self) -> int:
        """Messages of the clients that are connected."""
        return sum(client.received for _, client in self.clients)

    @property
    def answered(self) -> int:
        """Answers to the clients that are connected."""
        return sum(client.answered for _, client in self.clients)

    @property
    def outstanding(self) -> int:
        """Requests without an answer."""
        return self.received - self.answered


def _version_text() -> str:
    return f"3.8.0-ottla-{ottla.__version__}"


def _ruok_text(status: Status) -> str:
    del status
    return "imok"


def _number_lines(status: Status) -> str:
    return (
        f"Latency min/avg/max: 0/0.0/0\nReceived: {status.received}\nSent: {status.answered}\n"
        f"Connections: {len(status.clients)}\nOutstanding: {status.outstanding}\n"
        f"Zxid: {status.store.last_zxid:#x}\nMode: standalone\nNode count: {len(status.store.tree.nodes)}\n"
    )


def _srvr_text(status: Status) -> str:
    return f"Zookeeper version: {_version_text()}\n{_number_lines(status)}"


def _stat_text(status: Status) -> str:
    clients = "".join(
        f" /{peer}[1](queued={client.received - client.answered},recved={client.received},sent={client.answered})\n"
        for peer, client in status.clients
    )
    return f"Zookeeper version: {_version_text()}\nClients:\n{clients}\n{_number_lines(status)}"


def _mntr_text(status: Status) -> str:
    tree = status.store.tree
    rows: dict[str, object] = {
        "zk_version": _version_text(),
        "zk_server_state": "standalone",
        "zk_packets_received": status.received,
        "zk_packets_sent": status.answered,
        "zk_num_alive_connections": len(status.clients),
        "zk_outstanding_requests": status.outstanding,
        "zk_znode_count": len(tree.nodes),
        "zk_watch_count": sum(client.watch_count for _, client in status.clients),
        "zk_ephemerals_count": sum(map(len, tree.ephemerals.values())),
        "zk_global_sessions": len(tree.ephemerals),
        "zk_approximate_data_size": sum(len(path) + len(node.data) for path, node in tree.nodes.items()),
    }
    return "".join(f"{name}\t{value}\n" for name, value in rows.items())


def _conf_text(status: Status) -> str:
    return (
        f"clientPort={status.port}\ndataDir={status.directory}\nmaxClientCnxns={status.max_connections}\n"
        f"minSessionTimeout={status.limits.least_timeout_ms}\nmaxSessionTimeout={status.limits.most_timeout_ms}\n"
        "serverId=0\n"
    )


WORDS: Final[Mapping[bytes, Callable[[Status], str]]] = {
    b"ruok": _ruok_text,
    b"srvr": _srvr_text,
    b"stat": _stat_text,
    b"mntr": _mntr_text,
    b"conf": _conf_text,
}
"""The commands that are served."""
OPEN_WORDS: Final = frozenset({b"ruok", b"srvr", b"mntr"})
"""Commands that are served even if the store requires credentials: their answers have numbers only, no paths and no
addresses."""
