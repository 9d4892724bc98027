"""The source of release 0.1 comes from the history; a clone without it is named, with the next step.

Zone: real.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from testbench.releases import RELEASE, ReleaseError, environment_of, release_source


def test_a_clone_without_the_commit_is_named(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    with pytest.raises(ReleaseError, match=r"release 0\.1\.0 \(commit 5e45a7ba\) is not in this clone: .*--unshallow"):
        release_source(tmp_path)
    assert not list((tmp_path / "build" / "releases").iterdir()), "no part of it is left"


def test_a_release_is_extracted_once(tmp_path: Path) -> None:
    made = tmp_path / "build" / "releases" / "0.1.0-5e45a7ba" / "src"
    made.mkdir(parents=True)
    assert release_source(tmp_path) == made


def test_the_source_is_that_of_the_release() -> None:
    try:
        source = release_source()
    except ReleaseError as error:
        pytest.skip(str(error))
    assert f'__version__ = "{RELEASE}"' in (source / "ottla" / "__init__.py").read_text()
    environment = environment_of(source)
    assert environment is not None
    assert environment["PYTHONPATH"] == str(source)


def test_todays_processes_inherit_the_environment() -> None:
    assert environment_of(None) is None
