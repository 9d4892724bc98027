"""The rules of the code: zones, sizes, rules of packages, and no paths of the machine it was built on.

Every exception is listed here, with its reason.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
FILE_LINES: Final = 500
FUNCTION_LINES: Final = 50
ZONES: Final = ("pure", "deterministic", "real")

LONG_FILES: Final[dict[str, str]] = {}
LONG_FUNCTIONS: Final[dict[str, str]] = {}

FORBIDDEN: Final = {
    # Zone → modules that it must not import, because they give access to the world outside.
    "pure": {
        "asyncio", "concurrent", "logging", "multiprocessing", "os", "random", "select", "selectors", "shutil",
        "signal", "socket", "subprocess", "tempfile", "threading", "time",
    },
    "deterministic": {
        "asyncio", "concurrent", "multiprocessing", "os", "random", "select", "selectors", "shutil", "signal",
        "socket", "subprocess", "tempfile", "threading", "time",
    },
    "real": set(),
}  # fmt: skip
FORBIDDEN_CALLS: Final = {
    "pure": {"open", "print", "input"},
    "deterministic": {"open", "print", "input"},
    "real": set(),
}

ZONE_OF_ROOM: Final = {
    # Package → its zone. A file may be stricter than its package.
    "broker": "deterministic", "cluster": "deterministic", "config": "real", "coordinator": "deterministic",
    "groups": "deterministic", "purgatory": "deterministic", "record": "pure", "replication": "deterministic",
    "security": "deterministic", "storage": "deterministic", "transactions": "deterministic", "wire": "pure",
    "znodes": "deterministic",
}  # fmt: skip
REAL_IN_STRICT_ROOM: Final[dict[str, str]] = {
    "src/ottla/storage/dump": "a tool for people: reads ordinary files, never runs inside a broker",
    "src/ottla/storage/verify/source": "the same",
    "src/ottla/storage/verify/repair": "the same, and writes them",
}


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def zone_of(tree: ast.Module) -> str | None:
    found = re.search(r"^Zone: (\w+)\.", ast.get_docstring(tree) or "", re.MULTILINE)
    return found.group(1) if found else None


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, node.lineno


def functions_of(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """(dotted name, lines without the docstring) of every function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            first = node.body[0]
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                assert first.end_lineno is not None
                lines -= first.end_lineno - first.lineno + 1
            yield f"{prefix}{node.name}", lines
            yield from functions_of(node, f"{prefix}{node.name}.")


class Facts(NamedTuple):
    """What the tests want to know about a file. It is parsed once for all of them."""

    zone: str | None
    lines: int
    imports: list[tuple[str, int]]
    """Modules, and the lines of their imports."""
    calls: list[tuple[str, int]]
    """Functions that some zone must not call, and the lines of the calls."""
    awaits: bool
    functions: list[tuple[str, int]]
    """Dotted names, and their lines without the docstring."""
    global_statements: list[int]
    errors_handed_on: bool
    """Whether an ApiError or Failure is passed on with its frames."""


@cache
def facts_of(path: Path) -> Facts:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    return Facts(
        zone_of(tree),
        text.count("\n"),
        list(imports_of(nodes)),
        list(forbidden_calls(nodes)),
        any(isinstance(node, ast.Await | ast.AsyncFunctionDef) for node in nodes),
        list(functions_of(tree)),
        [node.lineno for node in nodes if isinstance(node, ast.Global)],
        any(hands_on_frames(node) for node in nodes if isinstance(node, ast.ExceptHandler)),
    )


def forbidden_calls(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    watched = {name for names in FORBIDDEN_CALLS.values() for name in names}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in watched:
            yield node.func.id, node.lineno


def zone_faults(path: Path) -> Iterator[str]:
    """Every file declares its zone and keeps it."""
    facts = facts_of(path)
    zone = facts.zone
    if zone not in ZONES:
        yield f"{name_of(path)}: the head has no `Zone: pure|deterministic|real.`"
        return
    for module, line in facts.imports:
        if module.partition(".")[0] in FORBIDDEN[zone]:
            yield f"{name_of(path)}:{line}: {zone} code must not import {module}"
    if zone != "real" and facts.awaits:
        yield f"{name_of(path)}: {zone} code does not await"
    for called, line in facts.calls:
        if called in FORBIDDEN_CALLS[zone]:
            yield f"{name_of(path)}:{line}: {zone} code calls {called}()"


def room_faults(path: Path) -> Iterator[str]:
    """A file is not freer than its room."""
    name = name_of(path)
    if any(name.startswith(exception) for exception in REAL_IN_STRICT_ROOM):
        return
    parts = path.relative_to(SOURCE).parts
    room = ZONE_OF_ROOM.get(parts[1], "real") if len(parts) > 2 else "real"
    zone = facts_of(path).zone
    if zone not in ZONES[: ZONES.index(room) + 1]:
        yield f"{name} is {zone}, its room is {room}"


def size_faults(path: Path) -> Iterator[str]:
    """Files and functions stay small."""
    facts, name = facts_of(path), name_of(path)
    lines = facts.lines
    if lines > FILE_LINES and name not in LONG_FILES:
        yield f"{name} has {lines} lines, {FILE_LINES} are allowed"
    for function, length in facts.functions:
        full = f"{name}:{function}"
        if length > FUNCTION_LINES and full not in LONG_FUNCTIONS:
            yield f"{full} has {length} lines, {FUNCTION_LINES} are allowed"


def test_test_files_stay_small() -> None:
    lines = {name_of(path): path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py")}
    assert len(lines) > 500
    assert {name: count for name, count in lines.items() if count > FILE_LINES} == {}


def test_exceptions_are_still_needed() -> None:
    for name in LONG_FILES:
        assert (ROOT / name).read_text().count("\n") > FILE_LINES, f"{name} is short now: take it off the list"
    for full in LONG_FUNCTIONS:
        name, _, function = full.partition(":")
        length = dict(functions_of(ast.parse((ROOT / name).read_text()))).get(function, 0)
        assert length > FUNCTION_LINES, f"{full} is short now: take it off the list"
    for prefix in REAL_IN_STRICT_ROOM:
        assert list(SOURCE.rglob("*.py")), prefix
        assert (ROOT / prefix).exists() or (ROOT / f"{prefix}.py").exists(), f"{prefix} is gone: take it off the list"


def state_faults(path: Path) -> Iterator[str]:
    """No module keeps mutable state: two brokers live in one interpreter in the simulator."""
    facts = facts_of(path)
    if facts.zone != "real" and facts.global_statements:
        yield f"{name_of(path)}: module-level state in the lines {facts.global_statements}"


_CLIENTS = ("client", "cli", "spark", "sim", "pipeline", "retry", "demo", "sinks", "logtable")
"""Packages whose processes run full garbage collections."""
_TAKES_TEXT = ("isinstance", "str", "repr", "warning", "error", "info", "debug", "exception")
"""Calls that do not keep a reference to an error they are passed."""


def handed_on(handler: ast.ExceptHandler) -> Iterator[int]:
    """Lines that use a caught error as a value, and not for its text, its code, or to raise it."""
    for parent in (node for statement in handler.body for node in ast.walk(statement)):
        if isinstance(parent, ast.Attribute | ast.FormattedValue | ast.Raise):
            continue
        if isinstance(parent, ast.Call) and getattr(parent.func, "attr", getattr(parent.func, "id", "")) in _TAKES_TEXT:
            continue
        yield from (
            child.lineno
            for child in ast.iter_child_nodes(parent)
            if isinstance(child, ast.Name) and child.id == handler.name and isinstance(child.ctx, ast.Load)
        )


def hands_on_frames(handler: ast.ExceptHandler) -> bool:
    """Whether it catches an ApiError or Failure, and uses it as a value."""
    caught = handler.type is not None and re.search(r"\b(ApiError|Failure)\b", ast.unparse(handler.type))
    return bool(caught) and any(handed_on(handler))


def frame_faults(path: Path) -> Iterator[str]:
    """An error that is passed on holds no frames.

    A broker freezes objects that have survived a collection: an error in a cycle with its frames is never freed.
    """
    package = path.relative_to(SOURCE).parts[1]
    if package not in _CLIENTS and facts_of(path).errors_handed_on:
        yield f"{name_of(path)}: hand on error.as_value()"


RULES: Final = (zone_faults, room_faults, size_faults, state_faults, frame_faults)
"""The rules of single files. A test per folder, not per file and rule: each test costs two milliseconds by itself, and
each process that gets one of a file's tests reads the file."""


@pytest.mark.parametrize("folder", sorted({path.parent for path in python_files()}), ids=name_of)
def test_the_files_of_a_folder_keep_the_rules(folder: Path) -> None:
    files = [path for path in python_files() if path.parent == folder]
    assert files
    faults = [fault for path in files for rule in RULES for fault in rule(path)]
    assert not faults, "\n".join(faults)


def test_no_path_of_a_machine_and_no_registry_in_the_project() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    machine = re.compile(r"/(?:work|root|farm)/|/home/[a-z]+/|index-url|registry\s*=\s*http")
    for name in tracked.split("\0"):
        path = ROOT / name
        if not name or not path.is_file() or path.suffix in {".gz", ".zst", ".png"} or name == "tests/tidy_test.py":
            continue
        text = path.read_text(errors="replace")
        found = machine.search(text)
        assert found is None, f"{name} names a path or registry of one machine: {found!r}"


def test_tests_have_the_same_names_in_every_process(request: pytest.FixtureRequest) -> None:
    """Else pytest-xdist cannot distribute them: no addresses of objects, no timestamps in gzip's bytes."""
    names = [item.nodeid for item in request.session.items]
    stamped = re.compile(r"\\x1f\\x8b\\x08\\x00(?!(\\x00){4})")
    assert [name for name in names if " at 0x" in name or stamped.search(name)] == []


HEADER_TYPES: Final = ("HeaderTuple", "BatchHeader")


def names_of_headers(scope: ast.AST, sources: set[str]) -> set[str]:
    """Names in a function that hold headers: by annotation, or because a source is their value."""
    found = {"header"}
    for node in ast.walk(scope):
        if isinstance(node, ast.arg) and node.annotation is not None:
            if ast.unparse(node.annotation).startswith(HEADER_TYPES):
                found.add(node.arg)
        elif isinstance(node, (ast.Assign, ast.NamedExpr, ast.For, ast.comprehension)):
            value = node.iter if isinstance(node, (ast.For, ast.comprehension)) else node.value
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            last = target.elts[-1] if isinstance(target, ast.Tuple) else target
            called = value.func if isinstance(value, ast.Call) else None
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
            if name in sources and isinstance(last, ast.Name):
                found.add(last.id)
    return found


def test_fields_of_headers_have_names() -> None:
    """`header[PRODUCER_ID]` (`ottla.record.header_fields`) costs 2 ns more than a number that has to be looked up."""
    texts = {path: path.read_text() for path in python_files()}
    makers = re.compile(r"def (\w+)\([^)]*\)\s*->\s*[^\n]*\b(?:HeaderTuple|BatchHeader)\b")
    sources = {"unpack_header"} | {name for text in texts.values() for name in makers.findall(text)}
    used = re.compile(rf"\b(?:header|{'|'.join(sources | set(HEADER_TYPES))})\b")
    found = []
    for path, text in texts.items():
        if not re.search(r"\w\[\d+\]", text) or not re.search(r"from ottla\.(record|storage)", text):
            continue
        if not used.search(text):
            continue
        for scope in ast.parse(text).body:
            names = names_of_headers(scope, sources)
            found += [
                f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}"
                for node in ast.walk(scope)
                if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in names
                if isinstance(node.slice, ast.Constant) and type(node.slice.value) is int
            ]
    assert not found, "numbers of fields: import their names from ottla.record.header_fields\n" + "\n".join(found)
