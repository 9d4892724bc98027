"""The source of an earlier release as a package of another name, so that one process can import both releases.

Zone: real. `ottla` becomes `ottla_0_1_0` in imports and in the names of modules that are looked up later. Nothing else
of the source is changed.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Final

from ottla import seams
from testbench.releases import RELEASE, release_source

PACKAGE: Final = "ottla"
EARLIER: Final = f"ottla_{RELEASE.replace('.', '_')}"
_SHARED: Final = ("Kind", "Failure", "Instant", "Region", "Gate", "Op", "Node", "Session")
"""Values that cross the seams: both releases have the same fields. Those of this release are used, because the
simulator makes and checks them."""
_IMPORT: Final = re.compile(r"^(\s*(?:from|import)\s+)ottla\b", re.MULTILINE)
_MODULE_NAME: Final = re.compile(r"""(?<=["'])ottla((?:\.\w+)+)""")


class PackageError(Exception):
    """The source of the earlier release cannot be used under another name."""


def earlier_module(name: str) -> ModuleType:
    """A module of the earlier release, by its name below the package. Raises ReleaseError, PackageError."""
    _prepare_package()
    return importlib.import_module(f"{EARLIER}.{name}")


def _prepare_package() -> None:
    if EARLIER in sys.modules:
        return
    where = str(renamed_source())
    if where not in sys.path:
        sys.path.append(where)
    theirs = importlib.import_module(f"{EARLIER}.seams")
    # Before any other module imports them from there.
    for name in _SHARED:
        _check_same(name, getattr(theirs, name), getattr(seams, name))
        setattr(theirs, name, getattr(seams, name))


def _check_same(name: str, theirs: type, ours: type) -> None:
    for attribute in ("_fields", "__members__"):
        if [*getattr(theirs, attribute, ())] != [*getattr(ours, attribute, ())]:
            raise PackageError(f"seams.{name} of release {RELEASE} differs from that of this release: adapt it")


def renamed_source(source: Path | None = None) -> Path:
    """The directory with the renamed package; written once, beside the source. Raises ReleaseError."""
    source = source or release_source()
    made = source.parent / "renamed"
    if not made.is_dir():
        part = Path(tempfile.mkdtemp(dir=source.parent))
        try:
            _write_package(source / PACKAGE, part / EARLIER)
            # A rename, so that a directory of this name is complete; that of a process beside this one is as good.
            if not made.is_dir():
                part.rename(made)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return made


def _write_package(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*.py")):
        written = target / path.relative_to(source)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(rename_package(path.read_text(), source))


def rename_package(text: str, source: Path) -> str:
    """The text of a module with the other name of the package. `source`: the package, to tell modules from settings."""

    def rename_module(match: re.Match[str]) -> str:
        path = source.joinpath(*match[1].split(".")[1:])
        return f"{EARLIER}{match[1]}" if path.is_dir() or path.with_suffix(".py").is_file() else match[0]

    return _MODULE_NAME.sub(rename_module, _IMPORT.sub(rf"\g<1>{EARLIER}", text))
