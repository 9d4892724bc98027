"""`ottla schema` with a registry of Ottla."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbench.registry import RegistryProcess
from tests.cli.conftest import Ottla

pytestmark = pytest.mark.slow

ORDER: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
WRONG = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}


@pytest.fixture(scope="module")
def url(brokers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry."""
    with RegistryProcess(tmp_path_factory.mktemp("registry"), brokers) as process:
        yield process.url


@pytest.fixture
def schema(ottla: Ottla, url: str) -> Ottla:
    """Runs `ottla schema WORDS…`."""
    return lambda *words: ottla("schema", *words, env={"OTTLA_SCHEMA_REGISTRY": url})


def write(directory: Path, name: str, content: object) -> str:
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(directory / name)


def test_from_registration_to_deletion(schema: Ottla, tmp_path: Path) -> None:
    order, wrong = write(tmp_path, "order.avsc", ORDER), write(tmp_path, "wrong.avsc", WRONG)
    made = json.loads(schema("register", "life-value", order, "-o", "json").stdout)
    assert schema("register", "life-value", order).stdout == f"{made['id']}\n"
    assert json.loads(schema("show", "life-value").stdout) == ORDER
    shown = json.loads(schema("show", "life-value", "--version", "1", "-o", "json").stdout)
    assert (shown["subject"], shown["id"], shown["type"]) == ("life-value", made["id"], "AVRO")
    assert schema("check", "life-value", order).stdout == "compatible\n"
    refused = schema("check", "life-value", wrong, "-o", "json")
    assert (refused.exit_code, json.loads(refused.stdout)["compatible"]) == (1, False)
    assert json.loads(refused.stdout)["reasons"]
    assert schema("register", "life-value", wrong).exit_code == 1
    assert schema("delete", "life-value").exit_code != 0, "it asks first"
    assert json.loads(schema("delete", "life-value", "-y", "-o", "json").stdout) == [
        {"subject": "life-value", "versions": [1]}
    ]
    assert schema("delete", "life-value", "-y", "--permanent").exit_code == 0
    assert schema("list", "--include", "life-.*").stdout == ""


def test_types_are_chosen_by_the_name_of_the_file(schema: Ottla, tmp_path: Path) -> None:
    files = {"a.json": ({"type": "object"}, "JSON"), "b.proto": ('syntax = "proto3"; message M {}', "PROTOBUF")}
    for name, (content, kind) in files.items():
        assert schema("register", f"kind-{name}", write(tmp_path, name, content)).exit_code == 0
        assert json.loads(schema("show", f"kind-{name}", "-o", "json").stdout)["type"] == kind
    named = schema("register", "kind-c", write(tmp_path, "c.txt", {"type": "object"}), "--type", "json")
    assert named.exit_code == 0, named.stderr
    listed = schema("list", "--include", "kind-.*", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["subject"] for line in listed] == ["kind-a.json", "kind-b.proto", "kind-c"]


def test_a_subject_that_is_not_there(schema: Ottla) -> None:
    shown = schema("show", "missing")
    assert shown.exit_code == 3
    assert "ottla schema list" in shown.stderr


def test_the_level_of_all_subjects_counts_where_one_has_none(schema: Ottla, tmp_path: Path) -> None:
    order, wrong = write(tmp_path, "order.avsc", ORDER), write(tmp_path, "wrong.avsc", WRONG)
    for name in ("level-a", "level-b"):
        schema("register", name, order)
    shown = schema("compatibility", "get")
    assert shown.stdout.split() == ["SUBJECT", "COMPATIBILITY", "SOURCE", "(default)", "BACKWARD", "default"]
    made = schema("compatibility", "set", "none", "level-a", "-o", "json")
    assert json.loads(made.stdout) == [{"subject": "level-a", "compatibility": "NONE", "source": "subject"}]
    assert schema("register", "level-a", wrong).exit_code == 0
    assert schema("register", "level-b", wrong).exit_code == 1
    shown = schema("compatibility", "get", "level-a", "level-b", "-o", "jsonl")
    assert [json.loads(line)["source"] for line in shown.stdout.splitlines()] == ["subject", "default"]
    for _ in range(2):
        gone = schema("compatibility", "unset", "level-a", "-o", "json")
        assert json.loads(gone.stdout) == [{"subject": "level-a", "compatibility": "BACKWARD", "source": "default"}]
    assert schema("compatibility", "set", "BACKWARD").exit_code == 0
    assert schema("compatibility", "set", "SIDEWAYS").exit_code == 2


def test_modes(schema: Ottla, tmp_path: Path) -> None:
    order = write(tmp_path, "order.avsc", ORDER)
    schema("register", "mode-a", order)
    made = schema("mode", "set", "READONLY", "mode-a", "-o", "json")
    assert json.loads(made.stdout) == [{"subject": "mode-a", "mode": "READONLY", "source": "subject"}]
    assert schema("register", "mode-a", write(tmp_path, "wrong.avsc", WRONG)).exit_code == 1
    assert schema("mode", "set", "IMPORT", "mode-a").exit_code == 1, "it has schemas"
    assert schema("mode", "set", "IMPORT", "mode-a", "--force").exit_code == 0
    assert "READWRITE" in schema("mode", "unset", "mode-a").stdout
    assert "READWRITE" in schema("mode", "get").stdout


def test_references(schema: Ottla, tmp_path: Path) -> None:
    line = {"type": "record", "name": "Line", "fields": [{"name": "item", "type": "string"}]}
    bill = {"type": "record", "name": "Bill", "fields": [{"name": "line", "type": "Line"}]}
    schema("register", "line", write(tmp_path, "line.avsc", line))
    name = write(tmp_path, "bill.avsc", bill)
    assert schema("register", "bill", name).exit_code == 1
    made = schema("register", "bill", name, "--reference", "Line=line:1")
    assert made.exit_code == 0, made.stderr
    assert schema("check", "bill", name, "--reference", "Line=line:1").stdout == "compatible\n"
    for wrong in ("Line", "Line=line", "Line=line:x", "=line:1"):
        refused = schema("register", "bill", name, "--reference", wrong)
        assert (refused.exit_code, "NAME=SUBJECT:VERSION" in refused.stderr) == (2, True)


def test_one_version_is_deleted(schema: Ottla, tmp_path: Path) -> None:
    more = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}]}
    for content in (ORDER, more):
        schema("register", "versions", write(tmp_path, "order.avsc", content))
    gone = schema("delete", "versions", "--version", "1", "-y", "-o", "json")
    assert json.loads(gone.stdout) == [{"subject": "versions", "versions": [1]}]
    assert schema("show", "versions", "--version", "1").exit_code == 3
    assert json.loads(schema("show", "versions").stdout) == more


def test_files_that_are_no_schemas(schema: Ottla, tmp_path: Path) -> None:
    large = schema("register", "bad", write(tmp_path, "large", " " * (4 * 1024 * 1024 + 1)))
    assert (large.exit_code, "is larger than" in large.stderr) == (2, True)
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert "is not UTF-8" in schema("register", "bad", str(tmp_path / "bytes")).stderr
    assert schema("register", "bad", write(tmp_path, "text", "no schema")).exit_code == 1


def test_a_registry_that_does_not_answer(ottla: Ottla) -> None:
    shown = ottla("schema", "list", "--schema-registry", "http://127.0.0.1:1")
    assert (shown.exit_code, "does not answer" in shown.stderr) == (1, True)
