"""`ottla pipeline serve` as a user runs it: one pipeline works, one cannot; pages, and a stop by SIGTERM."""

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
from typing import Any

import pytest
from testbench.ports import free_port

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


def test_pipelines_as_a_service(topics: Any, tmp_path: Path) -> None:
    source = topics.make()
    topics.put(source, 0, [b"tea", b"bad"])
    for name, topic in (("works", source), ("lacks", f"{source}.missing")):
        text = FILE.format(name=name, source=topic, brokers=topics.bootstrap)
        (tmp_path / f"{name}.py").write_text(text)
    port = free_port()
    words = ["works.py", "lacks.py:lacks", "--checkpoint", "state", "--trigger", "1s", "-o", "json"]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "ottla", "pipeline", "serve", *words, "--http", f"127.0.0.1:{port}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OTTLA_CONFIG_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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
