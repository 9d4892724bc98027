"""The settings of the connection to ZooKeeper.

Zone: real. `ottla.server.zookeeper.outside_store` takes them from the broker's configuration.
"""

from __future__ import annotations

from typing import NamedTuple


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
