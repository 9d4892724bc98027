"""Readers of Iceberg and Delta tables that share no code with `ottla table`: DuckDB's own scans, and Spark.

Zone: real. Each is another version than the one in the tests' environment, in a directory of the cache and a process of
its own: the newest that has extensions or jars for both formats. `python -m testbench.table_readers` fetches DuckDB,
with `--spark` Spark and its jars as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbench.apache_kafka.packages import BenchError, cache, java, table_jars

DUCKDB: Final = (
    "duckdb==1.4.4",
    "duckdb-ext-avro==1.4.4.20260205",
    "duckdb-ext-delta==1.4.4.20260205",
    "duckdb-ext-iceberg==1.4.4.20260205",
)
"""The extensions are those of DuckDB's own server, as wheels; DuckDB checks their signatures."""
SPARK: Final = ("pyspark==4.1.1",)
_WAIT_S: Final = 600


def read_by_duckdb(kind: str, location: str, out: Path) -> None:
    """Write the rows of a table into a Parquet file, by `iceberg_scan` or `delta_scan`. Raises BenchError."""
    _run("duckdb_program.py", _home("duckdb", DUCKDB), [kind, location, str(out)])


def read_by_spark(kind: str, location: str, out: Path) -> None:
    """Write the rows of a table into a directory of Parquet files, by the format's own jar. Raises BenchError."""
    java()
    _run("spark_program.py", _home("spark", SPARK), [kind, location, str(out), ",".join(map(str, table_jars()))])


def _run(program: str, home: Path, words: Sequence[str]) -> None:
    command = [sys.executable, str(Path(__file__).with_name(program)), *words]
    environment = {**os.environ, "PYTHONPATH": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    # A Spark that is named here would be taken instead of the one in the cache.
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, env=environment, check=False)
    if done.returncode:
        raise BenchError(f"{program} could not read the {words[0]} table {words[1]}:\n{done.stderr[-2000:]}")


def _directory(name: str, packages: Sequence[str]) -> Path:
    return cache() / f"table-reader-{name}-{packages[0].partition('==')[2]}"


def _home(name: str, packages: Sequence[str]) -> Path:
    directory = _directory(name, packages)
    if not (directory / ".complete").exists():
        option = " --spark" if packages is SPARK else ""
        raise BenchError(f"{packages[0]} is not in {cache()}: run  python -m testbench.table_readers{option}")
    return directory


def fetch_reader(name: str, packages: Sequence[str]) -> None:
    """Fetch a reader into the cache with pip. Raises BenchError."""
    directory = _directory(name, packages)
    if (directory / ".complete").exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    options = ["--quiet", "--disable-pip-version-check", "--target", str(directory)]
    command = [sys.executable, "-m", "pip", "install", *options, *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"pip could not get {', '.join(packages)}:\n{done.stderr.strip()[-500:]}")
    (directory / ".complete").write_text("\n".join(packages))
