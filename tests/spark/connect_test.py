"""The source, the exactly-once sink and write_batch in sessions of Spark Connect, on one server for all tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.connect_server import ConnectServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]
VALUES = [b"%d" % number for number in range(200)]


@pytest.fixture(scope="module")
def any_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    found = ConnectServer(tmp_path_factory.mktemp("connect"))
    yield found
    found.stop()


@pytest.fixture
def server(any_server: ConnectServer) -> ConnectServer:
    """The server, also after a test that killed it."""
    any_server.start()
    return any_server


@pytest.fixture
def source(topics: Any) -> str:
    name: str = topics.make(2)
    for number in range(2):
        topics.put(name, number, VALUES[number::2])
    return name


def once(topics: Any, topic: str) -> bool:
    """Whether each row is there once."""
    return Counter(topics.values(topic)) == Counter(VALUES)


def test_streams_write_exactly_once(server: ConnectServer, topics: Any, source: str, tmp_path: Path) -> None:
    target = topics.make(2)
    words = {"bootstrap": topics.bootstrap, "source": source, "target": target, "checkpoint": str(tmp_path / "c")}
    assert server.run("read_and_stream", **words) == {"rows": 200, "failed": [None, None]}
    assert once(topics, target)


def test_a_worker_that_is_killed_within_a_batch_writes_nothing_twice(
    server: ConnectServer, topics: Any, source: str, tmp_path: Path
) -> None:
    first, second = topics.make(2), topics.make(2)
    (tmp_path / "between").write_text("worker")
    words = {"bootstrap": topics.bootstrap, "source": source, "first": first, "second": second}
    # Characters of patterns: Spark reads a path as a pattern, and writes checkpoints to it as it is.
    killed, done = server.run("write_twice", **words, checkpoint=f"{tmp_path}/[c]*", strikes=str(tmp_path))
    assert "Python worker exited unexpectedly" in killed, killed
    assert done is None, done
    assert once(topics, first)
    assert once(topics, second)
    none, other, *numbers = json.loads((tmp_path / "errors").read_text())
    assert none.startswith("NoBatch: write_batch needs checkpoint=")
    assert other.startswith(f"NoBatch: {tmp_path} is not the checkpoint of a query")
    for number, error in zip((0, 2), numbers, strict=True):
        assert error.startswith(f"NoBatch: write_batch was called for batch {number}, which is not running")


def test_a_pipeline_shows_its_plan_and_its_progress(
    server: ConnectServer, topics: Any, source: str, tmp_path: Path
) -> None:
    target = f"{source}-doubled"
    topics.put(source, 0, [b"not a number"])
    words = {"bootstrap": topics.bootstrap, "source": source, "target": target, "checkpoint": str(tmp_path / "c")}
    found = server.run("run_pipeline", **words)
    assert found["scopes"] == [["partition", True], ["partition", True], ["batch", False]]
    assert found["figures"] == [["rows", 201, 200, 1, 0], ["large", 200, 100, 0, 0]]
    assert "broken" in found["failed"]
    assert "ValueError: no price in b'" in found["failed"]
    assert found["effects"] == ["continues"] * 2
    assert Counter(topics.values(target)) == Counter(b"%d" % (2 * int(value)) for value in VALUES)


def test_a_server_that_is_killed_within_a_batch_writes_nothing_twice(
    server: ConnectServer, topics: Any, source: str, tmp_path: Path
) -> None:
    target = topics.make(2)
    (tmp_path / "after").write_text("server")
    words = {"bootstrap": topics.bootstrap, "source": source, "target": target}
    words |= {"checkpoint": str(tmp_path / "c"), "strikes": str(tmp_path)}
    server.run_until_killed("write_counts", **words)
    assert len(topics.values(target)) == 100
    server.start()
    assert server.run("write_counts", **words) is None
    assert once(topics, target)
