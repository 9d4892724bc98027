"""librdkafka's test runner, built from a checkout of its sources and kept in the cache.

Zone: real. One directory for each state of the sources: the runner, the two libraries it is linked to, and the source
with its list of tests.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from testbench.apache_kafka.packages import BenchError, cache

CONFIGURE: Final = ("--disable-gssapi", "--disable-curl", "--disable-lz4-ext", "--disable-zstd")
"""Optional parts that are left out: a compiler, zlib and OpenSSL are enough; RapidJSON allows three more tests."""
KEPT: Final = (
    "src/librdkafka.so.1", "src-cpp/librdkafka++.so.1", "tests/test-runner", "tests/test.c", "src/rdkafka.h",
    "src/statistics_schema.json",
)  # fmt: skip
IGNORED: Final = (
    ".git",
    "*.o",
    "*.d",
    "*.a",
    "*.so",
    "*.so.1",
    "test-runner",
    "Makefile.config",
    "config.h",
    "config.cache",
)
"""Files that an earlier build may have left in a checkout."""
STEPS: Final = (("./configure", *CONFIGURE), ("make", "-j2", "libs"), ("make", "-j2", "-C", "tests", "test-runner"))
_VERSION = re.compile(r"define RD_KAFKA_VERSION\s+0x([0-9a-fA-F]{2})([0-9a-fA-F]{2})([0-9a-fA-F]{2})")


class Runner(NamedTuple):
    """A built test runner."""

    directory: Path

    @property
    def command(self) -> str:
        """The program."""
        return str(self.directory / "test-runner")

    @property
    def schema(self) -> Path:
        """The JSON schema of librdkafka's statistics, which one test reads."""
        return self.directory / "statistics_schema.json"

    @property
    def source(self) -> str:
        """The C source that lists the tests."""
        return (self.directory / "test.c").read_text(errors="replace")

    @property
    def version(self) -> str:
        """librdkafka's version."""
        match = _VERSION.search((self.directory / "rdkafka.h").read_text(errors="replace"))
        return ".".join(str(int(part, 16)) for part in match.groups()) if match else "unknown"


def build_runner(source: Path) -> Runner:
    """The runner of these sources; the first call for a state of them takes minutes. Raises BenchError."""
    if not (source / "tests" / "test.c").exists() or not (source / "configure").exists():
        raise BenchError(f"{source} holds no checkout of librdkafka: tests/test.c or configure is missing")
    target = cache() / f"librdkafka-{_digest(source)}"
    if not target.exists():
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache(), prefix="librdkafka-") as name:
            tree = Path(name) / "tree"
            shutil.copytree(source, tree, ignore=shutil.ignore_patterns(*IGNORED))
            _make(tree)
            _keep(tree, Path(name) / "kept", target)
    return Runner(target)


def _digest(source: Path) -> str:
    """Digest of the compiled files and their configuration."""
    digest = hashlib.sha256(" ".join((*CONFIGURE, *KEPT)).encode())
    for part in ("src", "src-cpp", "tests"):
        for path in sorted((source / part).rglob("*")):
            if path.suffix in (".c", ".cpp", ".h") and path.name != "config.h":
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _make(tree: Path) -> None:
    for command in STEPS:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr)[-1_500:]
            raise BenchError(
                f"{' '.join(command)} failed in a copy of librdkafka. It needs gcc, g++, make, zlib and OpenSSL "
                f"(Debian: build-essential zlib1g-dev libssl-dev):\n{said}"
            )


def _keep(tree: Path, kept: Path, target: Path) -> None:
    kept.mkdir()
    for name in KEPT:
        shutil.copy(tree / name, kept)
    if not target.exists():  # another run may have built it at the same time
        kept.rename(target)
