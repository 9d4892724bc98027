"""The store in another process that the broker's configuration names.

Zone: real. The one place that imports kazoo, which only clusters need.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.config.broker import BrokerConfig, parse_zookeeper
from ottla.seams import Failure, Kind
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.zookeeper.settings import ZooKeeperSettings

if TYPE_CHECKING:
    from ottla.server.zookeeper.store import ZooKeeperStore


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
