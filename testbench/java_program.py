"""Java programs of the bench, compiled against Apache Kafka's client library; the cache keeps the classes.

Zone: real.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from testbench.apache_kafka.packages import BenchError, cache, class_path, java
from testbench.apache_kafka.tools import logging_options

SOURCES = Path(__file__).parent / "java"
SMALL_JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def command(name: str, *arguments: str, version: str = "4.4.0", part: str = "clients") -> list[str]:
    """The command line of testbench/java/<name>.java with the packages of one version. Raises BenchError."""
    path = class_path(version, part)
    classes = f"{_classes(name, version, path)}:{path}"
    return [java(), *SMALL_JVM, *logging_options(version), "-cp", classes, name, *arguments]


def _classes(name: str, version: str, path: str) -> Path:
    source = SOURCES / f"{name}.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    target = cache() / "java" / f"{name}-{version}-{digest}"
    if not target.exists():
        _compile(source, target, path)
    return target


def _compile(source: Path, target: Path, path: str) -> None:
    compiler = Path(java()).with_name("javac")
    found = str(compiler) if compiler.exists() else shutil.which("javac")
    if found is None:
        raise BenchError("javac not found: run testbench/setup (Debian: openjdk-17-jdk-headless)")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent))
    words = [found, "-Xlint:all,-classfile", "-Werror", "-proc:none", "-cp", path]
    done = subprocess.run([*words, "-d", str(fresh), str(source)], capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(fresh)
        raise BenchError(f"{source} does not compile:\n{done.stdout}{done.stderr}")
    fresh.replace(target) if not target.exists() else shutil.rmtree(fresh)
