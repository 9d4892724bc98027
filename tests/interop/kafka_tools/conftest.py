"""One broker, and one JVM for each version of Apache Kafka's tools, for all comparisons.

Zone: real.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from testbench.apache_kafka import packages
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.ottla_node import OttlaNode
from tests.interop.kafka_tools.comparison import Comparison

_SETTINGS = {
    "log.initial.task.delay.ms": "86400000",
    "group.initial.rebalance.delay.ms": "0",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="session")
def authorized_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    node = OttlaNode(tmp_path_factory.mktemp("kafka-tools") / "data", _SETTINGS)
    node.start()
    yield node
    node.stop()
    assert "Traceback" not in node.said()


def _started_shell(version: str) -> Iterator[ToolShell]:
    try:
        with ToolShell(version) as shell:
            yield shell
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")


@pytest.fixture(scope="session")
def shell() -> Iterator[ToolShell]:
    yield from _started_shell("4.4.0")


@pytest.fixture(scope="session")
def kafka_3_shell() -> Iterator[ToolShell]:
    yield from _started_shell("3.9.1")


@pytest.fixture
def both(authorized_node: OttlaNode, shell: ToolShell, request: pytest.FixtureRequest) -> Comparison:
    """Both sides, with names of this test's own."""
    return Comparison(shell, authorized_node.bootstrap, _stem_of(request))


@pytest.fixture
def both_3(authorized_node: OttlaNode, kafka_3_shell: ToolShell, request: pytest.FixtureRequest) -> Comparison:
    """The same, with the tools of Kafka 3.9."""
    return Comparison(kafka_3_shell, authorized_node.bootstrap, _stem_of(request))


def _stem_of(request: pytest.FixtureRequest) -> str:
    return f"{zlib.crc32(request.node.name.encode()) % 100_000:05}"
