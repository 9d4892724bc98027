"""Programs of the test bench in other languages: by kafkajs (node) and by franz-go (go, go_login, kfake).

Zone: real. npm and Go fetch their packages, in the versions of their lock files; the cache keeps the built programs.
`python -m testbench.programs` builds everything beforehand; `--has-go` only returns by its exit code whether a suitable
Go is installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from testbench.apache_kafka.packages import BenchError, cache

HERE = Path(__file__).parent
GO = (1, 24)
"""The oldest Go that compiles franz-go …"""
GO_OF_KFAKE = (1, 26)
"""… and the oldest one that compiles its broker."""


def kafkajs_member() -> list[str]:
    """The command of a group member by kafkajs. Raises BenchError."""
    node = _found("node", "nodejs")
    return [node, str(_made("node", _install_packages) / "member.js")]


def kafkajs_login() -> list[str]:
    """The command of testbench/node/login.js. Raises BenchError."""
    node = _found("node", "nodejs")
    return [node, str(_made("node", _install_packages) / "login.js")]


def franz_go_member() -> list[str]:
    """The command of a group member by franz-go. Raises BenchError."""
    return [str(_made("go", lambda directory: _compile(directory, "member", GO)) / "member")]


def franz_go_login() -> list[str]:
    """The command of testbench/go_login. Raises BenchError."""
    return [str(_made("go_login", lambda directory: _compile(directory, "login", GO)) / "login")]


def kfake() -> list[str]:
    """The command of franz-go's broker in memory; a port and a directory follow. Raises BenchError."""
    return [str(_made("kfake", lambda directory: _compile(directory, "kfake", GO_OF_KFAKE)) / "kfake")]


def _found(command: str, package: str) -> str:
    path = shutil.which(command)
    if path is None:
        raise BenchError(f"{command} not found: run testbench/setup (Debian: {package})")
    return path


def _made(language: str, make: Callable[[Path], None]) -> Path:
    """The directory with the programs of one language, built again when a source file has changed."""
    sources = sorted(path for path in (HERE / language).iterdir() if path.is_file())
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    target = cache() / f"{language}-{digest}"
    if target.exists():
        return target
    cache().mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=cache()))
    try:
        for path in sources:
            shutil.copy(path, fresh)
        make(fresh)
        if not target.exists():  # another process may have built it at the same time
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _install_packages(directory: Path) -> None:
    npm = _found("npm", "npm")
    _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], directory, "npm could not install kafkajs")


def go(oldest: tuple[int, int] = GO) -> str | None:
    """A Go that is new enough: that of the machine, or the wheel in this environment."""
    places = (os.environ.get("PATH", os.defpath), "/usr/local/go/bin", str(Path(sys.executable).parent))
    for place in places:
        path = shutil.which("go", path=place)
        if path is not None and _go_version(path) >= oldest:
            return path
    return None


def _go_version(path: str) -> tuple[int, int]:
    said = subprocess.run([path, "version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"go(\d+)\.(\d+)", said)
    return (0, 0) if version is None else (int(version[1]), int(version[2]))


def _compile(directory: Path, program: str, oldest: tuple[int, int]) -> None:
    path = go(oldest)
    if path is None:
        raise BenchError(f"there is no Go {oldest[0]}.{oldest[1]} or newer: run testbench/setup")
    _run([path, "build", "-o", program, "."], directory, f"Go could not build {program}")


def _run(command: list[str], directory: Path, what: str) -> None:
    settings = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, env=settings)
    if done.returncode:
        raise BenchError(f"{what}:\n{(done.stdout + done.stderr)[-1_000:]}")


if __name__ == "__main__":
    if "--has-go" in sys.argv:
        sys.exit(go(GO_OF_KFAKE) is None)
    try:
        print(*kafkajs_member())
        print(*franz_go_member())
        print(*franz_go_login())
        print(*kfake())
    except BenchError as error:
        sys.exit(f"programs: {error}")
