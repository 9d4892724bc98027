"""Helpers for tests of Spark jobs, by the example of their page: its files are written, and pytest runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.client.errors import RefusedError
from ottla.retry.policy import PolicyError
from ottla.testing.clock import FakeClock
from ottla.testing.spark import EmbeddedTopics, Input

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "testing-spark.md").read_text()
FILE = re.compile(r"in `(\w+\.py)`[.:].*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
@pytest.mark.slow
def test_the_example_of_the_page(tmp_path: Path) -> None:
    files = dict(FILE.findall(PAGE))
    assert sorted(files) == ["conftest.py", "shop.py", "test_shop.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-W", "ignore", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_records_are_fed_and_read_without_spark(tmp_path: Path) -> None:
    with EmbeddedTopics(None, tmp_path, start_ms=1_000) as topics:
        topics.create_topic("stamped", 2, {"message.timestamp.type": "LogAppendTime"})
        topics.feed("stamped", ["a", b"b"])
        topics.clock.advance("5m")
        headers = {"h": b"x"}
        topics.feed("stamped", [Input({"n": 1}, key="k", headers=headers, partition=1), Input(None, partition=1)])
        found = topics.records("stamped")
        assert [(one.partition, one.offset, one.timestamp, one.value) for one in found] == [
            (0, 0, 1_000, b"a"), (1, 0, 1_000, b"b"), (1, 1, 301_000, b'{"n": 1}'), (1, 2, 301_000, None),
        ]  # fmt: skip
        assert (found[2].key, found[2].headers) == (b"k", (("h", b"x"),))
        assert topics.values("stamped") == ["a", "b", '{"n": 1}', None]
        with pytest.raises(ValueError, match="Expecting value"):
            topics.documents("stamped")
        topics.feed("given", [Input("x", timestamp=7)])
        assert topics.records("given")[0].timestamp == 7
        assert topics.dead_letters("given") == [(b"x", None, (), "", "", 0)]
        with pytest.raises(RefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            topics.records("unknown")


def test_a_clock_moves_forward_only() -> None:
    clock = FakeClock(10)
    clock.advance(1)
    clock.advance("2ms")
    assert clock.now_ms == 1_012
    with pytest.raises(PolicyError):
        clock.advance(-1)
