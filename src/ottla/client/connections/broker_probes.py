"""One short visit to each broker: does its address answer, what does it serve, what does it know of the cluster.

Zone: real. A probe never raises for a broker: its error is its result. Addresses are visited at the same time, each
for a few seconds, so that dead ones do not add up; nothing is retried.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from ottla.client.connections.address import Address, parse_addresses
from ottla.client.connections.connection import Connection
from ottla.client.errors import ClientError, DeadlineError
from ottla.client.metadata import EMPTY, ClusterView, cluster_view
from ottla.client.retry import Deadline
from ottla.client.settings import ClientConfig
from ottla.wire.apis import ApiKey
from ottla.wire.messages import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from ottla.wire.schema import Message

R = TypeVar("R", bound=Message)

PROBE_MS: Final = 5_000
"""The longest that a connection may take, and a response."""
_AT_ONCE: Final = 16


class Feature(NamedTuple):
    """A feature that a broker reports (KIP-584)."""

    name: str
    min_level: int
    max_level: int
    finalized: int | None
    """The level of the cluster; None: not finalized."""


class BrokerProbe(NamedTuple):
    """The answers of one address."""

    address: Address
    node_id: int | None = None
    """The broker that advertises the address; None: it is a bootstrap address that no broker advertises."""
    error: ClientError | None = None
    """Why there is no answer: no name, no connection, no TLS, no login, not Kafka."""
    connected: bool = False
    """Whether versions were negotiated; with an error, it came after that."""
    took_ms: float = 0.0
    """Until all was answered."""
    versions: Mapping[int, tuple[int, int]] = {}
    """(lowest, highest) version per API key."""
    features: tuple[Feature, ...] = ()
    view: ClusterView = EMPTY
    """The brokers, controller and id of the cluster as this broker knows them."""


class ClusterProbe(NamedTuple):
    """The bootstrap addresses, and the addresses that brokers advertise."""

    bootstrap: tuple[BrokerProbe, ...]
    brokers: tuple[BrokerProbe, ...]
    """By node id."""

    @property
    def view(self) -> ClusterView:
        """The cluster as the first bootstrap address that answered describes it; EMPTY: none answered."""
        return next((probe.view for probe in self.bootstrap if probe.error is None), EMPTY)

    @property
    def answering(self) -> list[Address]:
        """The addresses that work, those of the user first."""
        found = [probe.address for probe in (*self.bootstrap, *self.brokers) if probe.error is None]
        return list({(address.host, address.port): address for address in found}.values())


def probe_brokers(config: ClientConfig, deadline: Deadline | None = None) -> ClusterProbe:
    """Visit the bootstrap addresses, then the brokers that they name. Raises ConfigError for addresses that are none.

    deadline: of all visits; those that have not begun by then have a DeadlineError.
    """
    deadline = deadline or Deadline.after_ms(config.default_api_timeout_ms)
    config = with_short_timeouts(config)
    bootstrap = _visit_all(parse_addresses(config.bootstrap_servers), config, deadline)
    # Reversed, so that the first address of the user decides where two know a broker differently.
    nodes = {node_id: node for probe in reversed(bootstrap) for node_id, node in probe.view.nodes.items()}
    # An address that was visited as a bootstrap address is not visited again.
    known = {_place(probe.address): probe for probe in bootstrap}
    rest = [node.address for node in nodes.values() if _place(node.address) not in known]
    known |= {_place(probe.address): probe for probe in _visit_all(rest, config, deadline)}
    brokers = tuple(
        known[_place(nodes[node_id].address)]._replace(node_id=node_id, address=nodes[node_id].address)
        for node_id in sorted(nodes)
    )
    ids = {_place(probe.address): probe.node_id for probe in brokers}
    return ClusterProbe(tuple(each._replace(node_id=ids.get(_place(each.address))) for each in bootstrap), brokers)


def reachable_config(config: ClientConfig, probe: ClusterProbe) -> ClientConfig:
    """The settings with the addresses that answered, so that a client's first request finds one of them at once."""
    answering = ",".join(str(address) for address in probe.answering)
    return replace(config, bootstrap_servers=answering) if answering else config


def with_short_timeouts(config: ClientConfig) -> ClientConfig:
    """The settings with the timeouts of a probe, unless they are shorter already."""
    return replace(
        config,
        socket_connection_setup_timeout_ms=min(config.socket_connection_setup_timeout_ms, PROBE_MS),
        request_timeout_ms=min(config.request_timeout_ms, PROBE_MS),
    )


def _visit_all(addresses: Sequence[Address], config: ClientConfig, deadline: Deadline) -> list[BrokerProbe]:
    pool = ThreadPoolExecutor(_AT_ONCE, "ottla-probe")
    try:
        # In the order of the addresses; each probe ends by itself, so that the slowest one bounds the whole.
        return list(pool.map(lambda address: probe_address(address, config, deadline), addresses))
    finally:
        # After Ctrl-C nothing waits for connections that are being opened.
        pool.shutdown(wait=False, cancel_futures=True)


def probe_address(address: Address, config: ClientConfig, deadline: Deadline) -> BrokerProbe:
    """Connect, log in, and ask for versions and metadata."""
    if deadline.expired:
        return BrokerProbe(address, error=DeadlineError(f"no time left to try {address}", "Raise the timeout"))
    began = time.monotonic()
    connection = Connection(address, config)
    probe = BrokerProbe(address)
    try:
        connection.open_connection(deadline)
        probe = probe._replace(connected=True, versions=connection.versions)
        # The negotiation keeps the finalized levels only, so the supported ones are asked for again.
        named = ApiVersionsRequest(client_software_name="ottla", client_software_version="probe")
        answer = _ask(connection, ApiKey.API_VERSIONS, named, ApiVersionsResponse, deadline)
        probe = probe._replace(features=_features_of(answer))
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        metadata = _ask(connection, ApiKey.METADATA, request, MetadataResponse, deadline, at_least=1)
        probe = probe._replace(view=cluster_view(metadata, f"the metadata of {address}"))
    except ClientError as error:
        probe = probe._replace(error=error)
    finally:
        connection.close_connection()
    return probe._replace(took_ms=(time.monotonic() - began) * 1000)


def _ask(
    connection: Connection, key: ApiKey, request: Message, response: type[R], deadline: Deadline, at_least: int = 0
) -> R:
    version = connection.choose_version(key, at_least=at_least)
    return connection.wait_for_response(connection.send_request(request, version, response), deadline)


def _features_of(answer: ApiVersionsResponse) -> tuple[Feature, ...]:
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    names = sorted({*levels, *supported})
    return tuple(Feature(name, *supported.get(name, (levels.get(name, 0),) * 2), levels.get(name)) for name in names)


def _place(address: Address) -> tuple[str, int]:
    return address.host, address.port
