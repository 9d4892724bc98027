"""The pages for contributors name folders, modules, classes, functions and settings that exist.

What is written as code is checked in one of these forms; commands, literals and words of a sentence are left out:

- `storage/log.py`, `broker/assembly`, `tests/`: a file or folder, from the root, `src/ottla`, or the room of its row;
- `effects.Effects`, `wire/slices.Elements`, `tools.reference`: a module, or a name that it defines;
- `Log.append`: a class and its member; `LeaderRole`, `slow_produce`: a module or a definition of the code;
- `flush.messages`, `__consumer_offsets`: a text of the code, such as the name of a key.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "ottla"
PAGES = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *(f"docs/internals/{path.name}" for path in (ROOT / "docs/internals").glob("*.md")),
)
FENCES = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)")
NAME = re.compile(r"@?\w+(?:[./:]+\w+)*/?")


DEFINED = re.compile(r"\b(?:def|class) (\w+)|\b(\w+)(?=\s*(?::|=[^=]))")
CLASS = re.compile(r"^( *)class (\w+)(?:\[[^]]*\])?(?:\(([^)]*)\))?:\n((?:(?:\1 +.*)?\n)*)", re.MULTILINE)


class Definitions:
    """Names that Python files define: of each file, of each class, and texts that are a name themselves.

    Found by regular expressions, because parsing all files takes seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.names: set[str] = set()
        self.texts: set[str] = set()
        self.of_file: dict[Path, set[str]] = {}
        self.of_class: dict[str, set[str]] = defaultdict(set)
        self.bases: dict[str, set[str]] = defaultdict(set)
        for path in folder.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            self.of_file[path] = defined_in(text)
            self.names |= {path.stem} | self.of_file[path]
            self.texts.update(found.rstrip(".") for found in re.findall(r'"([^"\n]+)"', text))
            for _, name, bases, body in CLASS.findall(text):
                self.of_class[name] |= defined_in(body)
                self.bases[name].update(re.findall(r"\w+", bases))


def defined_in(text: str) -> set[str]:
    """Functions, classes, parameters and all that is assigned, also to attributes."""
    return {name for found in DEFINED.findall(text) for name in found if name}


@cache
def code() -> Definitions:
    return Definitions(ROOT / "src")


def is_path(name: str, rooms: tuple[str, ...]) -> bool:
    """Whether it is a file or a folder, with or without its `.py`."""
    if any(
        (place / name).exists() or (place / f"{name.rstrip('/')}.py").exists() for place in (ROOT, ROOT / "src", SOURCE)
    ):
        return True
    return any(path.is_dir() for room in rooms for path in (SOURCE / room).rglob(name))


def is_module_or_its_name(name: str) -> bool:
    """`ottla.effects`, `effects.Effects`, `broker/assembly/root.build_broker`, `tools.reference`."""
    path = name.removeprefix("ottla.").replace(".", "/")
    if is_path(path, ()):
        return True
    module, _, last = path.rpartition("/")
    return last in code().of_file.get(SOURCE / f"{module}.py", ())


def is_member(name: str, visited: frozenset[str] = frozenset()) -> bool:
    """`Log.append`: a base class may define the member, in any file."""
    owner, _, member = name.partition(".")
    if owner not in code().of_class or owner in visited:
        return False
    bases = (f"{base}.{member}" for base in code().bases[owner])
    return member in code().of_class[owner] or any(is_member(base, visited | {owner}) for base in bases)


def exists(name: str, rooms: tuple[str, ...] = ()) -> bool:
    """Whether the project has what this name means, one of whose folders a table's row may be about."""
    file, _, test = name.partition("::")
    if test:
        return test in defined_in((ROOT / file).read_text(encoding="utf-8"))
    if "/" in name or name.endswith((".py", ".md", ".toml")):
        return is_path(name, rooms) or is_module_or_its_name(name)
    if re.match(r"[A-Z]\w*\.", name):
        return is_member(name)
    bare = name.lstrip("@")
    return bare in code().names | code().texts or is_module_or_its_name(bare)


def is_checked(name: str) -> bool:
    """Names with a separator or an underscore, and those in camel case: others are words or commands."""
    return bool(NAME.fullmatch(name)) and bool(re.search(r"[./_]|[a-z][A-Z]", name))


def named_in(page: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, rooms of the table's row that it is in) of a page."""
    for line in FENCES.sub("", (ROOT / page).read_text(encoding="utf-8")).splitlines():
        first = line.split("|")[1] if line.startswith("|") else ""
        rooms = tuple(re.findall(r"`(\w+)/`", first))
        yield from ((name, rooms) for name in re.findall(r"`([^`]+)`", line) if is_checked(name))


def anchors_of(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCES.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_to(path: Path, place: str) -> bool:
    """Whether a file has a line (`L12`), a heading or a definition of this name."""
    text = path.read_text(encoding="utf-8")
    if line := re.fullmatch(r"L(\d+)", place):
        return int(line.group(1)) <= text.count("\n")
    if path.suffix == ".py":
        return place in defined_in(text)
    return place in anchors_of(text)


@pytest.mark.parametrize("page", PAGES)
def test_names_on_a_page_exist(page: str) -> None:
    added = "\n".join(FENCES.findall((ROOT / page).read_text(encoding="utf-8")))
    """Examples may name what a diff of the same page adds."""
    assert [name for name, rooms in named_in(page) if not exists(name, rooms) and name not in added] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    for label, target, place in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} links {target}"
        assert not place or leads_to(path, place), f"{page} links {target}#{place}"
        if path.suffix == ".py" and "/src/" in path.as_posix():
            assert label == path.stem, f"{page} calls {target} {label}"


@pytest.mark.parametrize(
    "name",
    [
        "storage/loog.py", "broker/assemble", "ottla.storage.loog", "effects.Effect", "wire/slices.Elephants",
        "Log.appendix", "LeaderRoles", "slow_produces", "flush.massages", "tests/map_test.py::test_nothing",
    ],
)  # fmt: skip
def test_names_that_do_not_exist_are_found(name: str) -> None:
    assert is_checked(name)
    assert not exists(name)


@pytest.mark.parametrize(
    "name",
    [
        "storage/log.py", "broker/assembly", "ottla.storage.log", "effects.Effects", "wire/slices.Elements",
        "Log.append", "LeaderRole", "slow_produce", "flush.messages", "tests/map_test.py::test_names_on_a_page_exist",
    ],
)  # fmt: skip
def test_names_that_exist_are_not(name: str) -> None:
    assert is_checked(name)
    assert exists(name)
