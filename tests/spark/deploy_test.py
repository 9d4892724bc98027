"""Workers on other machines get ottla in an archive, as docs/spark-deploy.md says.

The workers of this cluster run a Python without ottla: an environment that sees only the packages that ottla needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbench.spark_archive import short_run_options
from testbench.spark_chaos.committed import committed
from testbench.spark_chaos.standalone import Standalone

from ottla.spark import java_home

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ottla", "pyspark_ottla", "pyspark_ottla_log")
JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
brokers, source, target, checkpoint = sys.argv[1:]
records = (
    spark.readStream.format("ottla")
    .option("kafka.bootstrap.servers", brokers)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .load()
)
query = (
    records.selectExpr("key", "upper(CAST(value AS STRING)) AS value")
    .writeStream.format("ottla")
    .option("kafka.bootstrap.servers", brokers)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
"""


def make_environment(directory: Path) -> Path:
    """An environment with what ottla needs, and without ottla; its Python."""
    venv.create(directory, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
    # Not a directory for .pth files, so that an editable installation of ottla is not found.
    (packages / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = directory / "bin" / "python"
    found = subprocess.run([python, "-c", "import pyarrow, ottla"], env={}, capture_output=True, text=True, check=False)
    assert "No module named 'ottla'" in found.stderr
    return python


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        found = Standalone(tmp_path_factory.mktemp("cluster") / "spark")
    yield found
    found.stop()


def submit(cluster: Standalone, directory: Path, python: str, *words: str) -> subprocess.CompletedProcess[str]:
    import pyspark

    home = Path(pyspark.__file__).parent
    java_home()
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_SUBMIT_OPTS": short_run_options()}
    for name in ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON"):  # Spark passes both on, and the workers are on this machine
        environment.pop(name, None)
    command = [home / "bin" / "spark-submit", "--master", cluster.master]
    return subprocess.run(
        [*command, *words], cwd=directory, env=environment, capture_output=True, text=True, timeout=500, check=False
    )


def test_workers_without_ottla_get_it_in_an_archive(cluster: Standalone, topics: Any, tmp_path: Path) -> None:
    source, target = topics.make(2), topics.make(1)
    topics.put(source, 0, [b"a", b"b"])
    topics.put(source, 1, [b"c"])
    (tmp_path / "job.py").write_text(JOB)
    make_environment(tmp_path / "environment")
    words = ["job.py", topics.bootstrap, source, target, str(tmp_path / "checkpoint")]

    without = submit(cluster, tmp_path, "./environment/bin/python", *words)
    assert without.returncode != 0
    assert "DATA_SOURCE_NOT_FOUND" in without.stderr + without.stdout

    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "environment")}))
    for package in PACKAGES:
        shutil.copytree(ROOT / "src" / package, packages / package, ignore=shutil.ignore_patterns("*.pyc"))
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "environment", ".")
    words = ["--archives", "environment.tar.gz#environment", *words]
    done = submit(cluster, tmp_path, "./environment/bin/python", *words)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(committed(topics.bootstrap, target)) == ["A", "B", "C"]
