"""The declarative pipeline of examples/declarative: killed in the middle of a batch, and run again, every row once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from testbench.spark_chaos.committed import committed

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import OffsetFound
from ottla.client.cluster import Cluster
from ottla.client.settings import ClientConfig
from ottla.spark import java_home
from ottla.types import TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
RETRIES = "spark.sql.pipelines.maxFlowRetryAttempts"


class Project:
    """A copy of the example, with brokers and storage of its own."""

    def __init__(self, directory: Path, bootstrap: str, source: str, target: str) -> None:
        self.directory = directory
        shutil.copytree(ROOT / "examples" / "declarative", directory)
        spec = directory / "spark-pipeline.yml"
        text = spec.read_text().replace("file:///tmp/shop/storage", (directory / "storage").as_uri())
        spec.write_text(text.replace("localhost:9092", bootstrap))
        program = directory / "transformations" / "orders.py"
        text = program.read_text().replace('"subscribe", "orders"', f'"subscribe", "{source}"')
        program.write_text(text.replace('"topic": "large_orders"', f'"topic": "{target}"'))

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        binaries = Path(sys.executable).parent
        environment = {
            **os.environ, "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": "conf",
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        with (self.directory / "log").open("wb") as log:
            return subprocess.Popen(
                [binaries / "spark-pipelines", "run", *words],
                cwd=self.directory, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def run(self, *words: str) -> tuple[int, str]:
        """Run to the end; the exit code and the log."""
        return self.start(*words).wait(600), self.log()

    def log(self) -> str:
        return (self.directory / "log").read_text()


def test_killed_in_a_batch_and_run_again_every_row_comes_once(topics: Any, tmp_path: Path) -> None:
    source, target = topics.make(2), topics.make(2)
    orders = [{"id": number, "item": f"item{number % 7}", "cents": number * 37 % 20_000} for number in range(20_000)]
    for number in range(2):
        topics.put(source, number, [json.dumps(order).encode() for order in orders[number::2]])
    large = Counter(json.dumps(order, separators=(",", ":")) for order in orders if order["cents"] >= 10_000)
    project = Project(tmp_path / "shop", topics.bootstrap, source, target)

    first = project.start()
    while not has_records(topics.bootstrap, target):
        assert first.poll() is None, project.log()
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()

    code, log = project.run()
    assert code == 0, log
    assert Counter(committed(topics.bootstrap, target)) == large

    code, log = project.run("--full-refresh-all", "--conf", f"{RETRIES}=0")
    assert code != 0
    assert "OtherCheckpoint" in log
    assert Counter(committed(topics.bootstrap, target)) == large
    # As docs/declarative.md says: back to the checkpoint before the refresh.
    (flow,) = project.directory.glob("storage/_checkpoints/large_orders/find_large_orders")
    shutil.rmtree(max(flow.iterdir(), key=lambda each: int(each.name)))
    topics.put(source, 0, [b'{"id":20000,"item":"last","cents":10000}'])
    code, log = project.run()
    assert code == 0, log
    large['{"id":20000,"item":"last","cents":10000}'] = 1
    assert Counter(committed(topics.bootstrap, target)) == large


def has_records(bootstrap: str, topic: str) -> bool:
    """Whether anything was written, committed or not."""
    settings = ClientConfig.from_mapping({"bootstrap.servers": bootstrap, "isolation.level": "read_uncommitted"})
    with Cluster(settings) as cluster:
        ends = Admin(cluster).list_offsets({TopicPartition(topic, number): -1 for number in range(2)})
    return any(isinstance(each, OffsetFound) and each.offset > 0 for each in ends.values())
