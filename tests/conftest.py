"""Fixtures that several test folders use."""

from __future__ import annotations

import base64
import gc
import gzip
import json
import os
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from testbench.apache_kafka.packages import BenchError
from testbench.postgres import Postgres
from testbench.zookeeper import ZooKeeper

# No deadline per example, because machines differ and are busy. The examples are the same in every run, so that a
# failure is caused by the change under test; `make explore` draws new ones until it is stopped.
settings.register_profile("ottla", deadline=None, derandomize="EXPLORE" not in os.environ)
settings.load_profile("ottla")


# A suite that a script starts in the background inherits an ignored SIGINT, and its children would inherit it as well,
# but tests send them SIGINT. With a Python handler here, an executed program starts with the default action again.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Collecting the tests makes half a million objects that live to the end. Garbage collections walked all of them, which
# took half of the time of collecting, and a third of a second wherever a test, or a simulated run, collects garbage.
def pytest_configure() -> None:
    """Collect no garbage while the tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep the tests themselves out of all later garbage collections."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that cannot run here, with the reason. Tests are never skipped silently."""
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        pytest.fail("mounts file systems, which needs root: run make test as root, in a container for example", False)


GOLDEN = Path(__file__).parent / "data" / "golden"


class GoldenRecord(NamedTuple):
    """A record as Apache Kafka's consumer received it."""

    partition: int | None
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int | None


class Golden:
    """A case of the golden data (tests/data/golden/README.md): log directories that Apache Kafka wrote."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        """The untarred log directory, for reading."""

    def dump(self) -> str:
        """The output of Apache Kafka's dump tool."""
        (path,) = GOLDEN.glob(f"*/{self.name}.dump.txt*")
        return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()

    def records(self, name: str | None = None) -> Iterator[GoldenRecord]:
        """The records of a topic, from `<name>.records.jsonl.gz`."""
        (path,) = GOLDEN.glob(f"*/{name or self.name}.records.jsonl.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines():
            row = json.loads(line)
            headers = tuple((key, _bytes(value)) for key, value in row.get("headers", ()))
            yield GoldenRecord(
                row.get("partition"),
                row["offset"],
                row["timestamp"],
                row["timestamp_type"],
                _bytes(row["key"]),
                _bytes(row["value"]),
                headers,
                row.get("leader_epoch"),
            )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Golden]:
    """`golden("records")`: a case, untarred once per session."""
    cases: dict[str, Golden] = {}

    def case(name: str) -> Golden:
        if name not in cases:
            (path,) = GOLDEN.glob(f"*/{name}.tar.gz")
            directory = tmp_path_factory.mktemp(name)
            with tarfile.open(path) as tar:
                tar.extractall(directory, filter="data")
            cases[name] = Golden(name, directory)
        return cases[name]

    return case


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One ZooKeeper server for all tests, each with a path of its own; a failure names the package to install."""
    try:
        with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
            yield server
    except BenchError as missing:
        pytest.fail(str(missing), False)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL server for all tests, each with tables of its own; a failure names the package to install."""
    try:
        with Postgres() as server:
            yield server
    except BenchError as missing:
        pytest.fail(str(missing), False)
