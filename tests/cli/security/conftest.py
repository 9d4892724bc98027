"""`ottla` with a cluster in memory.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.security.fake_cluster import FakeCluster
from tests.client.conftest import ScriptedBroker

from ottla.cli.main import cli


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """A cluster in memory."""
    broker = ScriptedBroker()
    yield FakeCluster(broker)
    broker.close()


@pytest.fixture
def run(fake: FakeCluster) -> Any:
    """Runs `ottla WORDS…` for the cluster in memory."""

    def run(*words: str, stdin: bytes | str = b"", env: Mapping[str, str] | None = None) -> Result:
        brokers = {"OTTLA_BROKERS": fake.broker.bootstrap}
        return CliRunner().invoke(cli, list(words), input=stdin, env=brokers | dict(env or {}))

    return run
