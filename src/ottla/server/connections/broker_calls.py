"""Creates what calls the other brokers of the cluster.

Zone: real. Wiring only.
"""

from __future__ import annotations

import asyncio
from functools import partial

from ottla.config.broker import BrokerConfig
from ottla.config.rows import ConfigError
from ottla.seams import Failure, Kind
from ottla.server.connections.broker_connection import BrokerConnection, ConnectionContext
from ottla.server.connections.broker_handshake import BrokerCredential
from ottla.server.connections.connection_manager import ConnectionManager
from ottla.server.connections.inter_broker_client import InterBrokerClient
from ottla.server.connections.tls.outgoing import TlsBrokerConnection
from ottla.server.connections.tls.transport_security import TransportSecurity
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import Watch


def new_broker_client(
    loop: asyncio.AbstractEventLoop,
    watch: Watch,
    turns: CompletionQueue,
    traffic: ConnectionManager,
    security: TransportSecurity,
    config: BrokerConfig,
    broker_secret: bytes | None,
) -> InterBrokerClient:
    """Create the client of the other brokers, which speaks TLS if the listener between brokers does. Raises Failure."""
    tls = security.outgoing
    connect = BrokerConnection if tls is None else partial(TlsBrokerConnection, tls=tls)
    credential = broker_secret or _credential(config)
    context = ConnectionContext(loop, watch, turns, traffic.pool, traffic.view, credential)
    return InterBrokerClient(loop, turns, config.node_id, context, connect)


def _credential(config: BrokerConfig) -> BrokerCredential | None:
    """What this broker logs in to others with, if it has to; a broker that is alone calls no other. Raises Failure."""
    if config.zookeeper_connect is None:
        return None
    try:
        found = config.inter_broker_credential
    except ConfigError as error:
        raise Failure(Kind.NOT_DONE, str(error)) from None
    return None if found is None else BrokerCredential(*found)
