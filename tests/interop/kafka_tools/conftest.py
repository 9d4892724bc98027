"""One broker and one JVM with Apache Kafka's tools for all comparisons.

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


@pytest.fixture(scope="session")
def shell() -> Iterator[ToolShell]:
    try:
        with ToolShell("4.4.0") as shell:
            yield shell
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")


@pytest.fixture
def both(authorized_node: OttlaNode, shell: ToolShell, request: pytest.FixtureRequest) -> Comparison:
    """Both sides, with names of this test's own."""
    stem = f"{zlib.crc32(request.node.name.encode()) % 100_000:05}"
    return Comparison(shell, authorized_node.bootstrap, stem)
