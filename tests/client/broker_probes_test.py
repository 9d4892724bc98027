"""Probes of brokers: every address has a result, and no dead one costs another its time."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.client import ClientConfig, ConfigError
from ottla.client.connections.broker_probes import (
    PROBE_MS,
    Feature,
    probe_brokers,
    reachable_config,
    with_short_timeouts,
)
from ottla.client.errors import (
    ConnectionLostError,
    DeadlineError,
    MalformedReplyError,
    RequestTimeoutError,
    UnreachableError,
)
from ottla.client.retry import Deadline
from ottla.wire.apis import ApiKey
from ottla.wire.messages import ApiVersionsResponse, MetadataResponse


@pytest.fixture
def closed_port() -> int:
    """A port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def with_brokers(broker: ScriptedBroker, *ports: int) -> None:
    """Let the broker name further brokers, from node id 1 on."""

    def metadata(request: Request) -> bytes:
        answer = broker.metadata_of([])
        answer.brokers += [
            MetadataResponse.MetadataResponseBroker(node_id=number, host="127.0.0.1", port=port)
            for number, port in enumerate(ports, 1)
        ]
        return request.reply(answer)

    broker.on[ApiKey.METADATA] = metadata


def test_a_broker_that_is_bootstrap_address_and_node_is_visited_once(broker: ScriptedBroker, config) -> None:
    probe = probe_brokers(config())
    (bootstrap,), (node,) = probe.bootstrap, probe.brokers
    assert (bootstrap.node_id, node.node_id, node.error, node.connected) == (0, 0, None, True)
    assert (node.address.advertised, bootstrap.address.advertised) == (True, False)
    assert node.versions[ApiKey.METADATA] == broker.versions[ApiKey.METADATA]
    assert (probe.view.cluster_id, probe.view.controller_id, broker.connections) == ("scripted", 0, 1)


def test_dead_addresses_are_results(broker: ScriptedBroker, config, closed_port: int, silent_port: int) -> None:
    with_brokers(broker, closed_port, silent_port)
    settings = config(
        bootstrap_servers=f"127.0.0.1:{closed_port},{broker.bootstrap},nowhere.invalid:9092", request_timeout_ms=100
    )
    probe = probe_brokers(settings)
    assert [type(each.error) for each in probe.bootstrap] == [UnreachableError, type(None), UnreachableError]
    assert [each.node_id for each in probe.bootstrap] == [1, 0, None]
    assert [type(each.error) for each in probe.brokers] == [type(None), UnreachableError, RequestTimeoutError]
    assert [str(each) for each in probe.answering] == [broker.bootstrap]
    assert reachable_config(settings, probe).bootstrap_servers == broker.bootstrap


def test_an_error_after_the_negotiation_keeps_the_versions(broker: ScriptedBroker, config) -> None:
    broker.on[ApiKey.METADATA] = lambda _: None
    (found,) = probe_brokers(config()).bootstrap
    assert (type(found.error), found.connected) == (ConnectionLostError, True)
    assert found.versions
    assert probe_brokers(config()).view.nodes == {}


def test_something_else_than_a_broker(broker: ScriptedBroker, config) -> None:
    broker.on[ApiKey.API_VERSIONS] = lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    (found,) = probe_brokers(config()).bootstrap
    assert (type(found.error), found.connected) == (MalformedReplyError, False)


def test_features(broker: ScriptedBroker, config) -> None:
    def versions(request: Request) -> bytes:
        made = ApiVersionsResponse
        keys = [made.ApiVersion(api_key=key, min_version=a, max_version=b) for key, (a, b) in broker.versions.items()]
        supported = [made.SupportedFeatureKey(name="a.version", min_version=0, max_version=3)]
        finalized = [
            made.FinalizedFeatureKey(name=name, max_version_level=2, min_version_level=2)
            for name in ("a.version", "b.version")
        ]
        return request.reply(made(api_keys=keys, supported_features=supported, finalized_features=finalized))

    broker.on[ApiKey.API_VERSIONS] = versions
    (found,) = probe_brokers(config()).brokers
    assert found.features == (Feature("a.version", 0, 3, 2), Feature("b.version", 2, 2, 2))


def test_no_visit_begins_after_the_deadline(broker: ScriptedBroker, config) -> None:
    (found,) = probe_brokers(config(), Deadline(0)).bootstrap
    assert (type(found.error), broker.connections) == (DeadlineError, 0)


def test_a_probe_takes_a_few_seconds_at_most() -> None:
    short = with_short_timeouts(ClientConfig(request_timeout_ms=100))
    assert (short.request_timeout_ms, short.socket_connection_setup_timeout_ms) == (100, PROBE_MS)
    assert with_short_timeouts(ClientConfig()).request_timeout_ms == PROBE_MS


def test_addresses_that_are_none() -> None:
    with pytest.raises(ConfigError):
        probe_brokers(ClientConfig(bootstrap_servers="kafka:port"))
