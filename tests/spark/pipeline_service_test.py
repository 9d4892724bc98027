"""`ottla pipeline serve` as a user runs it: from files, and from definitions that `ottla apply` writes meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner
from testbench.ports import free_port

from ottla.cli.main import cli

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
FILE = """
from pyspark_ottla import Pipeline, map_rows

{name} = Pipeline("{name}", "{brokers}")

@{name}.step("{source}", to="{source}.{name}", dead="{source}.dead")
@map_rows
def raise_letters(record):
    if record.value == b"bad":
        raise ValueError("no letters")
    return record.value.upper()
"""
PATIENCE_S = 400


def read_page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_for(what: str, is_there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, what
        time.sleep(0.2)


def start_service(directory: Path, *words: str, notes: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "ottla", "pipeline", "serve", *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OTTLA_CONFIG_DIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=notes,
        text=True,
    )


def test_pipelines_as_a_service(topics: Any, tmp_path: Path) -> None:
    """One pipeline works, one cannot; pages, and a stop by SIGTERM."""
    source = topics.make()
    topics.put(source, 0, [b"tea", b"bad"])
    for name, topic in (("works", source), ("lacks", f"{source}.missing")):
        text = FILE.format(name=name, source=topic, brokers=topics.bootstrap)
        (tmp_path / f"{name}.py").write_text(text)
    port = free_port()
    words = ["works.py", "lacks.py:lacks", "--checkpoint", "state", "--trigger", "1s", "-o", "json"]
    process = start_service(tmp_path, *words, "--http", f"127.0.0.1:{port}")
    try:
        rows = 'ottla_query_rows_total{query="works.raise_letters"} 2'
        wait_for("the batch is counted", lambda: rows in read_page(port, "/metrics")[1], process)
        metrics = read_page(port, "/metrics")[1]
        for line in (
            'ottla_query_written_rows_total{query="works.raise_letters"} 1',
            'ottla_query_dead_rows_total{query="works.raise_letters"} 1',
            f'ottla_query_lag_offsets{{query="works.raise_letters",topic="{source}"}} 0',
            'ottla_pipeline_failed{pipeline="lacks"} 1',
            'ottla_pipeline_running{pipeline="works"} 1',
        ):
            assert f"{line}\n" in metrics
        status, health = read_page(port, "/health")
        assert (status, json.loads(health)["pipelines"]["lacks"]["state"]) == (503, "failed")
        process.send_signal(signal.SIGTERM)
        printed, noted = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, noted
    works, lacks = json.loads(printed)
    assert (works["state"], works["steps"][0]["rows_out"], works["steps"][0]["dead"]) == ("stopped", 1, 1)
    assert lacks["state"] == "failed"
    assert f"pipeline lacks: given up: the topic {source}.missing does not exist: create it" in noted
    assert "stopping: the batches that are running are finished first" in noted
    assert topics.values(f"{source}.works") == [b"TEA"]


class Followed:
    """A service that follows the definitions in a topic, and what it is told and does."""

    def __init__(self, topics: Any, directory: Path) -> None:
        self.topics, self.bootstrap = topics, topics.bootstrap
        self.source, self.name = topics.make(), f"definitions-{os.getpid()}"
        self.files = directory / "files"
        self.files.mkdir()
        self.write_file("upper()")
        self._port, self._notes = free_port(), directory / "notes"
        self.process = start_service(
            directory, "files", "--from-cluster", "--checkpoint", "state", "--trigger", "200ms", "--stop-timeout", "30",
            "--pipelines-topic", self.name, "-b", self.bootstrap, "--http", f"127.0.0.1:{self._port}", "-o", "json",
            notes=self._notes.open("w"),
        )  # fmt: skip

    def write_file(self, call: str) -> None:
        """The file of the pipeline, whose step makes letters with this method."""
        text = FILE.format(name="shop", source=self.source, brokers=self.bootstrap)
        (self.files / "shop.py").write_text(text.replace("upper()", call))

    def apply(self, pipelines: dict[str, dict[str, Any]]) -> None:
        document = json.dumps({"version": 1, "pipelines": pipelines})
        words = ["apply", "-", "--yes", "--prune", "pipelines", "--pipelines-topic", self.name, "-b", self.bootstrap]
        done = CliRunner().invoke(cli, words, input=document)
        assert done.exit_code == 0, done.stderr

    def wait_for_health(self, pipelines: dict[str, str]) -> dict[str, Any]:
        """Wait for states; the page."""
        found: dict[str, Any] = {}

        def is_there() -> bool:
            status, page = read_page(self._port, "/health")
            found.update(json.loads(page) if status else {})
            states = {key: each["state"] for key, each in found.get("pipelines", {"": {"state": ""}}).items()}
            return states == pipelines

        wait_for(f"the states {pipelines}", is_there, self.process)
        return found

    def wait_for_starts(self, number: int) -> None:
        running = "pipeline shop: running"
        wait_for(f"start {number}", lambda: self.notes().count(running) == number, self.process)

    def wait_for_output(self, *values: bytes) -> None:
        wait_for(f"the output {values}", lambda: self.output() == [*values], self.process)

    def notes(self) -> str:
        """What the service has written on standard error."""
        return self._notes.read_text()

    def output(self) -> list[bytes]:
        found: list[bytes] = self.topics.values(f"{self.source}.shop")
        return found


@pytest.fixture
def followed(topics: Any, tmp_path: Path) -> Iterator[Followed]:
    made = Followed(topics, tmp_path)
    yield made
    made.process.kill()


def test_a_service_follows_the_definitions_in_the_cluster(followed: Followed, topics: Any) -> None:
    """Nothing at first; then a pipeline is started, changed with its code, paused, resumed and removed."""
    shop: dict[str, Any] = {"file": "shop.py"}
    page = followed.wait_for_health({})
    assert (page["status"], page["definitions"]["topic"]) == ("ready", followed.name)
    topics.put(followed.source, 0, [b"tea"])
    followed.apply({"shop": shop})
    page = followed.wait_for_health({"shop": "running"})
    assert page["definitions"] == {"topic": followed.name, "role": "active", "error": None}
    followed.wait_for_output(b"TEA")
    followed.write_file("title()")
    followed.apply({"shop": shop | {"trigger": "100ms"}, "lacks": {"file": "lacks.py"}})
    followed.wait_for_starts(2)
    topics.put(followed.source, 0, [b"cake"])
    followed.wait_for_output(b"TEA", b"Cake")
    lacking = followed.wait_for_health({"shop": "running", "lacks": "waiting"})["pipelines"]["lacks"]
    assert lacking["reason"] == f"lacks.py does not exist in {followed.files}: put it there"
    followed.apply({"shop": shop | {"state": "paused"}})
    followed.wait_for_health({"shop": "paused"})
    topics.put(followed.source, 0, [b"milk"])
    assert followed.output() == [b"TEA", b"Cake"]
    followed.apply({"shop": shop})
    followed.wait_for_output(b"TEA", b"Cake", b"Milk")
    followed.apply({})
    assert followed.wait_for_health({})["status"] == "ready"
    topics.put(followed.source, 0, [b"late"])
    followed.process.send_signal(signal.SIGTERM)
    printed, _ = followed.process.communicate(timeout=PATIENCE_S)
    noted = followed.notes()
    assert (followed.process.returncode, json.loads(printed)) == (0, []), noted
    assert f"this service runs the pipelines of {followed.name}" in noted
    assert noted.count("pipeline shop: stopped") == 3
    assert followed.output() == [b"TEA", b"Cake", b"Milk"]
