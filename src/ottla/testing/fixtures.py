"""Fixtures of pytest for tests of queries and pipelines. Import them in a conftest.py.

Zone: real. `ottla.testing.spark` has what they return.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.testing.spark import EmbeddedTopics, start_session


@pytest.fixture(scope="session")
def ottla_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A SparkSession for all tests."""
    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def ottla_topics(ottla_spark: Any, tmp_path: Path) -> Iterator[EmbeddedTopics]:
    """A broker, its topics and its clock, for one test."""
    with EmbeddedTopics(ottla_spark, tmp_path / "ottla") as topics:
        yield topics
