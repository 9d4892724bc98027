"""The first files that people meet (contributing rules, workflows, templates, packaging) name things that exist."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
from tools.check_wheel import version
from tools.commit_message import find_faults

import ottla

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "docs/releasing.md",
    ".github/PULL_REQUEST_TEMPLATE.md",
)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PATH = re.compile(
    r"`((?:src|tests|tools|testbench|bench|docs|packaging|examples)/[\w./-]*|[A-Z]+\.md)`|\]\((?!http)([^)#]+)"
)
TARGET = re.compile(r"^(?:\$\(VENV\)/)?([.a-z-]+):", re.MULTILINE)


def targets() -> set[str]:
    return set(TARGET.findall((ROOT / "Makefile").read_text()))


@pytest.mark.parametrize("page", PAGES)
def test_paths_that_a_page_names_exist(page: str) -> None:
    for written, linked in PATH.findall((ROOT / page).read_text()):
        place = (ROOT / page).parent / linked if linked else ROOT / written
        assert place.exists(), f"{page} names {written or linked}"


@pytest.mark.parametrize("path", [*(ROOT / page for page in PAGES), *WORKFLOWS], ids=lambda path: path.name)
def test_targets_that_a_page_names_exist(path: Path) -> None:
    text = path.read_text()
    pattern = r"run: make ([\w./-]+)" if path.suffix == ".yml" else r"`make ([a-z-]+)"
    for target in re.findall(pattern, text):
        assert target.removeprefix(".venv/") in targets(), f"{path.name}: make {target}"


def test_workflows_run_each_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)}
    tried = set(re.findall(r'"(3\.\d+)"', (ROOT / ".github" / "workflows" / "ci.yml").read_text()))
    assert named <= tried
    assert f">={min(tried, key=lambda text: int(text[2:]))}" == project["requires-python"]


def test_the_version_is_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ottla.__version__"}
    assert version() == ottla.__version__
    assert metadata("ottla")["Version"] == ottla.__version__, "install again: pip install -e ."


def test_the_changelog_has_releases_and_kinds_in_order() -> None:
    """The form of keepachangelog.com."""
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    for release in releases[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - (?:\d{4}-\d\d-\d\d|unreleased)", release), release
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for part in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert kinds == sorted(kinds, key=order.index)
        assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize(
    "message",
    [
        "storage: sync the directory after a rename\n",
        "spark: freeze modules\n\nPySpark collects at each task.\n# a comment of git's\n",
        "tests: x",
        "Merge branch 'x'",
        "fixup! anything at all",
    ],
)
def test_good_commit_messages(message: str) -> None:
    assert find_faults(message) == []


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Fix things", "does not read"),
        ("", "does not read"),
        ("Storage: fix", "does not read"),
        ("storage: " + "x" * 64, "73 characters"),
        ("storage: sync it.", "full stop"),
        ("storage: sync it\nat once", "no empty line"),
    ],
)
def test_commit_messages_with_a_fault(message: str, fault: str) -> None:
    assert any(fault in found for found in find_faults(message))
