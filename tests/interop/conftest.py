"""A broker process for clients and tools nobody here wrote; a test fails when the broker complains behind its back.

Zone: real.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the test bench is not part of the package

from testbench.apache_kafka.broker import KafkaNode
from testbench.ottla_node import OttlaNode
from testbench.retention import NO_RETENTION
from tests.names import own_name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of clients about their own age are theirs to heed."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """One broker for all tests; every test uses topics of its own."""
    node = OttlaNode(tmp_path_factory.mktemp("interop") / "data", {**NO_RETENTION})
    node.start()
    yield node
    node.stop()
    assert "Traceback" not in node.said()


@pytest.fixture(scope="session")
def kafka_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    """A broker of Apache Kafka 4.4 for all tests that need one; every test uses topics and groups of its own."""
    # Members of these groups get their partitions with a later heartbeat, by default after 5 seconds.
    beats = ("heartbeat.interval.ms", "min.heartbeat.interval.ms")
    quick = {f"group.{kind}.{key}": "200" for kind in ("consumer", "share") for key in beats}
    quick |= {"share.coordinator.state.topic.num.partitions": "1"}
    with KafkaNode(tmp_path_factory.mktemp("kafka"), settings={**NO_RETENTION, **quick}) as node:
        yield node


@pytest.fixture
def bootstrap(broker: OttlaNode, request: pytest.FixtureRequest) -> Iterator[str]:
    """The broker's address; afterwards the broker must live, and its log must hold no traceback of this test's time."""
    assert broker.alive, f"the broker died before this test:\n{broker.tail()}"
    before = broker.position
    yield broker.bootstrap
    complaints = broker.complaints(before)
    assert not complaints, f"the broker complained during {request.node.name}: {complaints}\n{broker.said(before)}"


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of this test's own, legal for Kafka."""
    return own_name(request, 200)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., OttlaNode]]:
    """`node(setting="value")`: further brokers with settings of their own (dots as underscores), started."""
    nodes: list[OttlaNode] = []

    def make(**settings: str) -> OttlaNode:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        made = OttlaNode(tmp_path / f"node{len(nodes)}", {**NO_RETENTION, **named})
        made.start()
        nodes.append(made)
        return made

    yield make
    for made in nodes:
        made.kill()
        assert "Traceback" not in made.said(), made.tail()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """The end of the broker's log goes under the report of a test that failed."""
    report = yield
    node = item.funcargs.get("broker") if hasattr(item, "funcargs") else None
    if report.failed and isinstance(node, OttlaNode):
        report.sections.append(("broker log (end)", node.tail()))
    return report


@pytest.fixture(scope="session")
def need() -> Callable[[str, str], str]:
    """`need("kcat", "kcat")`: the path of a command; when it is missing, a failure that names the package."""

    def path(command: str, package: str) -> str:
        found = shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if found is None:
            pytest.fail(f"{command} is missing: run testbench/setup (Debian: apt-get install {package})")
        return found

    return path
