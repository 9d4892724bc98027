"""docs/internals/first-day.md, followed literally: each diff applies to a copy of the checkout, and its commands pass.

A diff that does not apply any more has lost its context: make the change by hand, and replace it by `git diff -U1`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "internals" / "first-day.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([^`]+)` \| (.+) \|$", re.MULTILINE)
TOUCHED = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)
PYTHON = ".venv/bin/python"
GENERATED = "written by `tools.reference`"
MOST_SOURCES, TEST_FILES = 2, 1
SECONDS = 300


class Section(NamedTuple):
    title: str
    text: str

    def blocks(self, language: str) -> list[str]:
        return [block for name, block in BLOCK.findall(self.text) if name == language]

    @property
    def commands(self) -> list[str]:
        return [line for block in self.blocks("bash") for line in block.splitlines()]


INTRODUCTION, *SECTIONS = [
    Section(part.partition("\n")[0], part) for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
]
ADDITIONS = [section for section in SECTIONS if section.blocks("diff")]


def copy_checkout(target: Path) -> None:
    """The files of the checkout as they are now, committed or not, as a repository of their own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
    subprocess.run(["git", "init", "--quiet"], cwd=target, check=True)


def run(command: list[str], directory: Path, text: str | None = None) -> None:
    """Run a command in the copy, with the copy's own sources. Fails with the command's output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "GIT"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(directory / "src"), str(directory)])
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{shlex.join(command)}: exit code {done.returncode}\n{output[-3000:]}"


def test_the_page_has_four_additions() -> None:
    assert [section.title for section in ADDITIONS] == [
        "A broker key", "An API handler", "A command", "A Spark option",
    ]  # fmt: skip


@pytest.mark.parametrize("section", ADDITIONS, ids=lambda section: section.title)
def test_an_addition_names_the_files_it_touches(section: Section) -> None:
    rows = dict(ROW.findall(section.text))
    touched = TOUCHED.findall("".join(section.blocks("diff")))
    generated = [name for name, change in rows.items() if change == GENERATED]
    assert sorted(touched + generated) == sorted(rows)
    assert sum(name.startswith("src/") for name in touched) <= MOST_SOURCES
    assert sum(name.startswith("tests/") for name in touched) == TEST_FILES


@pytest.mark.slow
@pytest.mark.timeout(4 * SECONDS)
@pytest.mark.parametrize("section", ADDITIONS, ids=lambda section: section.title)
def test_an_addition_applies_and_its_commands_pass(section: Section, tmp_path: Path) -> None:
    copy_checkout(tmp_path)
    for diff in section.blocks("diff"):
        run(["git", "apply", "-"], tmp_path, diff)
    for line in [*section.commands, *INTRODUCTION.commands]:
        words = shlex.split(line)
        assert words[0] == PYTHON, f"{line!r} does not begin with {PYTHON}"
        run([sys.executable, *words[1:]], tmp_path)
