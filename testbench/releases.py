"""The source of an earlier release, from the history of this repository: brokers and clients of it run beside today's.

Zone: real. A shallow clone lacks the commit; `git fetch --unshallow` brings it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RELEASE: Final = "0.1.0"
COMMIT: Final = "5e45a7ba06929fb57557d9575de1e7eaa4586b60"
"""The commit of the release, which needs no tag in the clone."""


class ReleaseError(Exception):
    """The source of the release is not in this clone; the message has the next step."""


def release_source(clone: Path = ROOT) -> Path:
    """The directory of the release that goes into PYTHONPATH; extracted once, into `build`. Raises ReleaseError."""
    made = clone / "build" / "releases" / f"{RELEASE}-{COMMIT[:8]}"
    if not made.is_dir():
        made.parent.mkdir(parents=True, exist_ok=True)
        _extract(clone, made)
    return made / "src"


def _extract(clone: Path, made: Path) -> None:
    part = Path(tempfile.mkdtemp(dir=made.parent))
    try:
        archive = part / "source.tar"
        _git(clone, "archive", "--output", str(archive), COMMIT, "src/ottla")
        shutil.unpack_archive(archive, part, "tar", filter="data")
        archive.unlink()
        # A rename, so that a directory of this name is complete; that of a test beside this one is as good.
        if not made.is_dir():
            part.rename(made)
    except OSError as error:
        if not made.is_dir():
            raise ReleaseError(f"release {RELEASE} cannot be extracted into {made}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _git(clone: Path, *words: str) -> None:
    try:
        done = subprocess.run(
            ["git", "-C", str(clone), *words], capture_output=True, text=True, check=False, timeout=120
        )
    except FileNotFoundError:
        raise ReleaseError(f"release {RELEASE} comes from git's history, and there is no git: install it") from None
    if done.returncode:
        raise ReleaseError(
            f"release {RELEASE} (commit {COMMIT[:8]}) is not in this clone: {done.stderr.strip()[-200:]};"
            f" fetch the whole history with: git fetch --unshallow"
        )


def environment_of(source: Path | None) -> dict[str, str] | None:
    """The environment of a process of the release in `source`; None: that of this process, for today's source."""
    return None if source is None else {**os.environ, "PYTHONPATH": str(source)}
