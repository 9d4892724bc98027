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
from collections.abc import Callable
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


def test_a_service_follows_the_definitions_in_the_cluster(topics: Any, tmp_path: Path) -> None:
    """Nothing at first; then a pipeline is started, changed with its code, paused, resumed and removed."""
    source, name = topics.make(), f"definitions-{os.getpid()}"
    text = FILE.format(name="shop", source=source, brokers=topics.bootstrap)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "shop.py").write_text(text)
    port = free_port()
    notes = tmp_path / "notes"
    process = start_service(
        tmp_path, "files", "--from-cluster", "--checkpoint", "state", "--trigger", "200ms", "--stop-timeout", "30",
        "--pipelines-topic", name, "-b", topics.bootstrap, "--http", f"127.0.0.1:{port}", "-o", "json",
        notes=notes.open("w"),
    )  # fmt: skip

    def apply(pipelines: dict[str, dict[str, Any]]) -> None:
        document = json.dumps({"version": 1, "pipelines": pipelines})
        words = ["apply", "-", "--yes", "--prune", "pipelines", "--pipelines-topic", name, "-b", topics.bootstrap]
        done = CliRunner().invoke(cli, words, input=document)
        assert done.exit_code == 0, done.stderr

    def wait_for_health(pipelines: dict[str, str]) -> dict[str, Any]:
        """Wait for states; the page."""
        found: dict[str, Any] = {}

        def is_there() -> bool:
            status, page = read_page(port, "/health")
            found.update(json.loads(page) if status else {})
            return {
                key: each["state"] for key, each in found.get("pipelines", {"": {"state": ""}}).items()
            } == pipelines

        wait_for(f"the states {pipelines}", is_there, process)
        return found

    def wait_for_starts(number: int) -> None:
        running = "pipeline shop: running"
        wait_for(f"start {number}", lambda: notes.read_text().count(running) == number, process)

    def wait_for_output(values: list[bytes]) -> None:
        wait_for(f"the output {values}", lambda: topics.values(f"{source}.shop") == values, process)

    shop: dict[str, Any] = {"file": "shop.py"}
    try:
        page = wait_for_health({})
        assert (page["status"], page["definitions"]["topic"]) == ("ready", name)
        topics.put(source, 0, [b"tea"])
        apply({"shop": shop})
        assert wait_for_health({"shop": "running"})["definitions"] == {"topic": name, "role": "active", "error": None}
        wait_for_output([b"TEA"])
        (tmp_path / "files" / "shop.py").write_text(text.replace("upper()", "title()"))
        apply({"shop": shop | {"trigger": "100ms"}, "lacks": {"file": "lacks.py"}})
        wait_for_starts(2)
        topics.put(source, 0, [b"cake"])
        wait_for_output([b"TEA", b"Cake"])
        lacking = wait_for_health({"shop": "running", "lacks": "waiting"})["pipelines"]["lacks"]
        assert lacking["reason"] == f"lacks.py does not exist in {tmp_path / 'files'}: put it there"
        apply({"shop": shop | {"state": "paused"}})
        wait_for_health({"shop": "paused"})
        topics.put(source, 0, [b"milk"])
        assert topics.values(f"{source}.shop") == [b"TEA", b"Cake"]
        apply({"shop": shop})
        wait_for_output([b"TEA", b"Cake", b"Milk"])
        apply({})
        assert wait_for_health({})["status"] == "ready"
        topics.put(source, 0, [b"late"])
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    noted = notes.read_text()
    assert (process.returncode, json.loads(printed)) == (0, []), noted
    assert f"this service runs the pipelines of {name}" in noted
    assert noted.count("pipeline shop: stopped") == 3
    assert topics.values(f"{source}.shop") == [b"TEA", b"Cake", b"Milk"]
