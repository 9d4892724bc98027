"""The cache of Apache Kafka's packages, and their download.

One directory per version in the cache: `broker/`, `tools/`, `clients/` and `streams/` with jars. The tools may have
another version than the broker: Kafka 4.4.0 was published to Maven without its tools and without Kafka Streams, so the
bench uses those of 4.3.1.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

HERE = Path(__file__).parent
TOOLS_VERSION = {"4.4.0": "4.3.1"}
PARTS = {"broker": "kafka_2.13", "tools": "kafka_2.13", "clients": "kafka-clients", "streams": "kafka-streams"}
"""Parts of a version, each with its main package."""
CONNECTOR: Final = "4.2.0"
"""The version of Spark's own Kafka source and sink (`spark-sql-kafka-0-10`); it runs in PySpark 4.2 and 4.3."""

ICEBERG: Final = "1.11.0"
DELTA: Final = "4.1.0"
"""Their jars are for Spark 4.1; there are none for a newer one."""


class BenchError(Exception):
    """Something that the test bench needs is missing; the message names it, and how to get it."""


def cache() -> Path:
    """The directory of all fetched packages."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("OTTLA_TESTBENCH_CACHE") or Path(base) / "ottla-testbench")


def home(version: str) -> Path:
    """The directory of one version."""
    return cache() / f"kafka-{version}"


def java() -> str:
    """The java command, 17 or newer. Raises BenchError."""
    chosen = os.environ.get("JAVA_HOME")
    command = str(Path(chosen) / "bin" / "java") if chosen else shutil.which("java")
    if command is None or not Path(command).exists():
        raise BenchError(
            "java not found: install OpenJDK 17 or newer (Debian: openjdk-17-jre-headless), or set JAVA_HOME"
        )
    if _java_version(command) < 17:
        raise BenchError(f"{command} is not Java 17 or newer")
    return command


@functools.cache
def _java_version(command: str) -> int:
    said = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found.group(1)) if found else 0


def class_path(version: str, part: str) -> str:
    """The class path of one of PARTS. Raises BenchError when they were not fetched."""
    directory = home(version) / part
    if not (directory / ".complete").exists():
        raise BenchError(f"Apache Kafka {version} is not in {cache()}: run  testbench/kafka fetch {version}")
    return f"{directory}/*"


def fetch(version: str) -> None:
    """Fetch the packages of one version into the cache with Maven. Raises BenchError."""
    _need_tools()
    for part in PARTS:
        if not (home(version) / part / ".complete").exists():
            _fetch_part(version, part)


def fetch_clients(version: str) -> None:
    """Fetch only the client library of one version into the cache with Maven. Raises BenchError."""
    _need_tools()
    if not (home(version) / "clients" / ".complete").exists():
        _fetch_part(version, "clients")


def fetch_old_tools(version: str) -> None:
    """Fetch the tools of a version that knew ZooKeeper into the cache with Maven. Raises BenchError."""
    _need_tools()
    target = home(version) / "old-tools"
    if not (target / ".complete").exists():
        options = ["-P", "old-tools", f"-Dkafka.version={version}"]
        _copy(options, target, f"the tools of Apache Kafka {version}", "kafka_2.12")
        (target / ".complete").write_text(f"{version}\n")


def _need_tools() -> None:
    java()
    if shutil.which("mvn") is None:
        raise BenchError("mvn not found: install Maven 3.6 or newer (Debian: maven)")


def connector_home() -> Path:
    """The directory of the jars of Spark's Kafka connector."""
    return cache() / f"spark-kafka-{CONNECTOR}"


def connector_jars() -> list[Path]:
    """The jars that Spark needs for `format("kafka")`. Raises BenchError when they were not fetched."""
    if not (connector_home() / ".complete").exists():
        raise BenchError(f"Spark's Kafka connector is not in {cache()}: run  testbench/kafka fetch-connector")
    return sorted(connector_home().glob("*.jar"))


def fetch_connector() -> None:
    """Fetch Spark's Kafka connector into the cache with Maven. Raises BenchError."""
    _need_tools()
    if not (connector_home() / ".complete").exists():
        options = ["-P", "spark", f"-Dkafka.version={CONNECTOR}", "-DexcludeTransitive=true"]
        _copy(options, connector_home(), f"Spark's Kafka connector {CONNECTOR}", "spark-sql-kafka-0-10")
        (connector_home() / ".complete").write_text(f"{CONNECTOR}\n")


def avro_jars() -> list[Path]:
    """The jar of Spark's own functions for Avro; fetched with Maven when it is missing. Raises BenchError."""
    directory = cache() / f"spark-avro-{CONNECTOR}"
    if not (directory / ".complete").exists():
        _need_tools()
        options = ["-P", "spark-avro", f"-Dkafka.version={CONNECTOR}"]
        _copy(options, directory, f"spark-avro {CONNECTOR}", "spark-avro")
        (directory / ".complete").write_text(f"{CONNECTOR}\n")
    return sorted(directory.glob("*.jar"))


def table_jars() -> list[Path]:
    """The jars with which Spark reads Iceberg and Delta tables. Raises BenchError when they were not fetched."""
    if not (_table_jars_home() / ".complete").exists():
        raise BenchError(
            f"Iceberg's and Delta's jars are not in {cache()}: run  python -m testbench.table_readers --spark"
        )
    return sorted(_table_jars_home().glob("*.jar"))


def fetch_table_jars() -> None:
    """Fetch the jars of table formats into the cache with Maven. Raises BenchError."""
    _need_tools()
    if not (_table_jars_home() / ".complete").exists():
        options = ["-P", "tables", f"-Diceberg.version={ICEBERG}", f"-Ddelta.version={DELTA}"]
        _copy(options, _table_jars_home(), f"Iceberg {ICEBERG} and Delta {DELTA} for Spark", "delta-spark")
        (_table_jars_home() / ".complete").write_text(f"{ICEBERG} {DELTA}\n")


def _table_jars_home() -> Path:
    return cache() / f"spark-tables-{ICEBERG}-{DELTA}"


def _fetch_part(version: str, part: str) -> None:
    target = home(version) / part
    tools = TOOLS_VERSION.get(version, version)
    logging = "kafka4" if version.startswith("4.") else "kafka3"
    options = ["-P", f"{part},{logging}", f"-Dkafka.version={version}", f"-Dtools.version={tools}"]
    _copy(options, target, f"Apache Kafka {version} ({part})", PARTS[part])
    (target / ".complete").write_text(f"{version} {tools}\n")


def _copy(options: list[str], target: Path, what: str, sign: str) -> None:
    """Let Maven copy jars to `target`; one of them must begin with `sign`. Raises BenchError."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    command = [
        "mvn", "-B", "-q", "-f", str(HERE / "pom.xml"), *options, "-DincludeScope=runtime",
        f"-DoutputDirectory={target}", "-Dmdep.outputScope=false", "dependency:copy-dependencies",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not list(target.glob(f"{sign}*.jar")):
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line][:3]
        raise BenchError(f"Maven could not get {what}:\n" + "\n".join(lines))
