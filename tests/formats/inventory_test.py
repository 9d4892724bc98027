"""The inventory of formats is complete: what the source writes or sends and the inventory lacks is found.

Zone: pure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from testbench.formats.inventory import EXCHANGES, FILES, NODES, PARENTS, RECORDS, Exchange, StoredFormat
from testbench.formats.page import PAGE, with_tables
from testbench.formats.samples import GATED, write_samples
from testbench.releases import ROOT

import ottla.storage.layout

SOURCE = ROOT / "src" / "ottla"
BROKER = ("broker", "cluster", "coordinator", "groups", "replication", "storage", "transactions", "znodes")
WRITES = ("replace_now", "replace_file", "CoalescingWriter")
NOT_FILES = {"ROOT", "DELETED", "CLEANED", "SWAP", "TEMPORARY", "DELETE_DIR", "STRAY_DIR", "FUTURE_DIR"}
"""Names in `storage.layout` of states of files, and of directories."""


@cache
def module(name: str) -> ast.Module:
    return ast.parse((SOURCE / name).read_text())


@cache
def modules() -> list[str]:
    return [str(path.relative_to(SOURCE)) for part in BROKER for path in sorted((SOURCE / part).rglob("*.py"))]


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def writes_files(tree: ast.Module) -> bool:
    def creates(call: ast.Call) -> bool:
        return any(each.arg == "create" and ast.unparse(each.value) == "True" for each in call.keywords)

    return any(name in WRITES or creates(call) for name, call in calls(tree))


def sends_requests(tree: ast.Module) -> bool:
    # A follower builds the head of its Fetch by itself.
    return any(
        name in ("send_request", "request_head")
        and isinstance(call.func, ast.Attribute)
        and "peers" in ast.unparse(call)
        for name, call in calls(tree)
    )


def paths_in(tree: ast.Module) -> set[str]:
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"(/[a-z_-]+)+/?", text)}


def has_codec(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not any("Protocol" in ast.unparse(base) for base in node.bases):
            names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            found |= {node.name} if {"encode", "decode"} <= names else set()
    return found


def find_modules(condition: Callable[[ast.Module], object]) -> set[str]:
    return {name for name in modules() if condition(module(name))}


def writers_of(formats: Iterable[StoredFormat]) -> set[str]:
    return {name for each in formats for name in each.writers}


def test_each_module_that_writes_files_is_listed() -> None:
    assert find_modules(writes_files) == writers_of(FILES)


def test_each_name_of_a_file_is_listed() -> None:
    names = {
        name
        for name, value in vars(ottla.storage.layout).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    }
    assert names - NOT_FILES == {name for each in FILES for name in each.names}


def test_each_path_of_the_metadata_store_is_listed() -> None:
    found = {path for name in modules() if name.startswith(("cluster", "znodes")) for path in paths_in(module(name))}
    assert found == PARENTS | {path for each in NODES for path in each.names}


def test_each_codec_of_records_is_listed() -> None:
    found = {(name, codec) for name in modules() for codec in has_codec(module(name))}
    assert found == {(writer, name) for each in RECORDS for writer in each.writers for name in each.names}


def test_each_module_that_sends_to_brokers_is_listed() -> None:
    assert find_modules(sends_requests) == {each.sender for each in EXCHANGES}


@pytest.mark.parametrize("writer", sorted(writers_of((*NODES, *RECORDS))))
def test_a_listed_module_exists(writer: str) -> None:
    assert (SOURCE / writer).is_file()


def numbers(place: str, source: Path = SOURCE) -> set[int]:
    name, _, constant = place.partition(":")
    for node in ast.parse((source / name).read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == constant and node.value is not None:
            value = ast.literal_eval(node.value)
            return {value} if isinstance(value, int) else {row[-1] for row in value}
    raise AssertionError(f"{place} does not exist")


@pytest.mark.parametrize("each", EXCHANGES, ids=lambda each: f"{each.api} {Path(each.sender).stem}")
def test_the_versions_that_are_sent_are_those_listed_and_release_0_1_accepts_them(each: Exchange) -> None:
    assert set().union(*map(numbers, each.constants)) == set(each.versions)
    low, high = each.accepted
    assert low <= min(each.versions) <= max(each.versions) <= high


def declared(source: Path) -> dict[str, tuple[int, int]]:
    """The versions of each API that a source accepts."""
    text = "\n".join(path.read_text() for part in BROKER for path in sorted((source / part).rglob("*.py")))
    pattern = r"(?:@handles|Declaration)\(\s*ApiKey\.(\w+),\s*(\d+),\s*(\d+)"
    return {api: (int(low), int(high)) for api, low, high in re.findall(pattern, text)}


def test_this_release_accepts_the_versions_that_release_0_1_sends() -> None:
    accepted = declared(SOURCE)
    for each in EXCHANGES:
        low, high = accepted[each.api]
        assert low <= min(each.versions), each
        assert high >= max(each.versions), each


def test_each_format_has_samples_or_a_reason() -> None:
    for each in (*FILES, *RECORDS, *NODES):
        assert bool(each.samples) != bool(each.unsampled), each.name
    listed = {name for each in (*FILES, *RECORDS, *NODES) for name in each.samples}
    assert listed == {name.split(GATED)[0] for name in write_samples()}


def test_the_page_has_the_tables_of_the_inventory() -> None:
    assert PAGE.read_text() == with_tables(PAGE.read_text()), "run python -m testbench.formats"
