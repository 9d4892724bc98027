"""A broker and a Redis server for all tests of the room.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.names import own_name
from tests.retry.redis_server import RedisServer

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, values_of
from ottla.server.embedded import EmbeddedBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    """The address of a broker that makes no topics by itself."""
    config = {"group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "false"}
    with EmbeddedBroker(config=config) as running:
        yield running.bootstrap


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests; a test that harms it starts it again."""
    server = RedisServer(tmp_path_factory.mktemp("redis") / "data")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def topic(broker: str, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions, with two retry topics and one for dead letters."""
    name = own_name(request)
    with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
        made = [name, f"{name}.retry.1", f"{name}.retry.2", f"{name}.dead"]
        values_of(Admin(cluster).create_topics([NewTopic(each, 2) for each in made]))
    return name
