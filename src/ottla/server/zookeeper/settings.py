"""The settings of the connection to ZooKeeper, taken from the broker's configuration.

Zone: real. The one place that imports kazoo, which only clusters need.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ottla.config.broker import BrokerConfig, parse_zookeeper
from ottla.seams import Failure, Kind
from ottla.server.loop.completion_queue import CompletionQueue

if TYPE_CHECKING:
    from ottla.server.zookeeper.store import ZooKeeperStore


class ZooKeeperSettings(NamedTuple):
    """Address, session and credentials of the ZooKeeper ensemble."""

    hosts: str
    """`host:port,…`, without the chroot."""
    chroot: str
    """The path that contains all nodes of the cluster; empty for the root."""
    timeout_ms: int
    """The session time-out to request."""
    digest: str | None = None
    """`user:password` to authenticate with, if any."""
    set_acl: bool = False
    """Whether only this user may change the nodes that it creates."""

    @property
    def where(self) -> str:
        """The ensemble's name in messages."""
        return f"ZooKeeper at {self.hosts}{self.chroot}"


def outside_store(
    config: BrokerConfig, loop: asyncio.AbstractEventLoop, turns: CompletionQueue
) -> ZooKeeperStore | None:
    """The store that `zookeeper.connect` names, not connected yet; None: the broker uses its embedded store.

    Raises Failure when the package of the client is not installed.
    """
    if config.zookeeper_connect is None:
        return None
    try:
        from ottla.server.zookeeper.store import ZooKeeperStore  # noqa: PLC0415 - a broker on its own does without kazoo
    except ModuleNotFoundError as missing:
        raise Failure(
            Kind.NOT_DONE, f"zookeeper.connect needs the package {missing.name}: pip install 'ottla[cluster]'"
        ) from None
    servers, chroot = parse_zookeeper(config.zookeeper_connect)
    settings = ZooKeeperSettings(
        ",".join(servers),
        chroot,
        config.zookeeper_session_timeout_ms,
        config.ottla_zookeeper_digest,
        config.zookeeper_set_acl,
    )
    return ZooKeeperStore(
        loop, turns, settings, config.zookeeper_max_in_flight_requests, config.zookeeper_connection_timeout_ms
    )
