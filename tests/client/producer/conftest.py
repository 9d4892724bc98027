"""Fixtures of the producer's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from testbench.apache_kafka.broker import KafkaNode
from testbench.ottla_node import OttlaNode
from testbench.proxy import Proxy
from tests.client.producer.bench import BROKER, Bench

from ottla.client import (
    Producer,
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("broker")
    node = KafkaNode(directory) if BROKER == "kafka" else OttlaNode(directory / "data")
    proxy = Proxy("127.0.0.1", node.port)
    node.settings["advertised.listeners"] = f"PLAINTEXT://{proxy.address}"
    if BROKER == "kafka":
        node.settings["advertised.listeners"] += f",CONTROLLER://127.0.0.1:{node.controller_port}"
    with node:
        made = Bench(proxy)
        yield made
        made.cluster.close()
        proxy.stop()


@pytest.fixture
def producer(bench: Bench) -> Iterator[Callable[..., Producer]]:
    """Makes producers; a keyword's underscores are dots in the key."""
    made: list[Producer] = []

    def make(arguments: dict[str, Any] | None = None, **keys: Any) -> Producer:
        settings = {"bootstrap.servers": bench.bootstrap, **{k.replace("_", "."): v for k, v in keys.items()}}
        made.append(Producer(settings, **(arguments or {})))
        return made[-1]

    yield make
    for one in made:
        one.close(5)
