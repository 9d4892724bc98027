"""What is built is whole: a wheel in an empty environment has its types, its data, its version, and a broker that runs.

    python tools/check_wheel.py DIR      DIR holds one wheel and one source archive

It needs nothing of the project but the files, so that it finds what the archives lack.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
IN_WHEEL: Final = ("ottla/py.typed", "ottla/data/", "pyspark_ottla/", "pyspark_ottla_log/")
IN_ARCHIVE: Final = ("README.md", "LICENSE", "pyproject.toml", "src/ottla/__init__.py")
PROGRAM: Final = """
from ottla.client import Consumer, Producer
from ottla.server.embedded import EmbeddedBroker

with EmbeddedBroker() as broker:
    settings = {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest", "group.id": "check"}
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        producer.send("orders", b"tea").result(30)
    with Consumer(settings) as consumer:
        consumer.subscribe(["orders"])
        print(next(iter(consumer)).value.decode())
"""


def main(words: list[str]) -> int:
    """Check the archives in a directory; the first fault ends it, with a sentence."""
    directory = Path(words[0])
    wheel, archive = _only(directory, "*.whl"), _only(directory, "*.tar.gz")
    _check_names(zipfile.ZipFile(wheel).namelist(), IN_WHEEL, wheel)
    with tarfile.open(archive) as tar:
        _check_names([name.partition("/")[2] for name in tar.getnames()], IN_ARCHIVE, archive)
    with tempfile.TemporaryDirectory() as place:
        _check_installed(wheel, Path(place))
    print(f"{wheel.name} and {archive.name} are whole")
    return 0


def version() -> str:
    """The version that src/ottla/__init__.py names."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/ottla/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found.group(1)


def _only(directory: Path, pattern: str) -> Path:
    found = list(directory.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{directory} holds {len(found)} files {pattern}, one is needed")
    return found[0]


def _check_names(names: list[str], wanted: tuple[str, ...], archive: Path) -> None:
    for each in wanted:
        if not any(name.startswith(each) for name in names):
            sys.exit(f"{archive.name} lacks {each}")


def _check_installed(wheel: Path, place: Path) -> None:
    venv.create(place / "venv", with_pip=True)
    binaries = place / "venv" / "bin"
    _run([str(binaries / "pip"), "install", "--quiet", str(wheel.resolve())], place)
    shown = _run([str(binaries / "ottla"), "--version"], place)
    if shown != f"ottla {version()}":
        sys.exit(f"the installed command says {shown!r}, the source is {version()}")
    if _run([str(binaries / "python"), "-c", PROGRAM], place) != "tea":
        sys.exit("the installed broker did not return the record that was written")


def _run(words: list[str], directory: Path) -> str:
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)[:200]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
