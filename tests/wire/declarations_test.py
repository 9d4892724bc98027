"""The declarations, field by field, against the message tables inside Apache Kafka's own client jars."""

from __future__ import annotations

import json
import re
import sys
import typing
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ottla.seams import Part
from ottla.wire import messages
from ottla.wire.apis import API_TABLE
from ottla.wire.schema import LATEST, NUMBERS, OWN_TAG, Field, Message, StructType, struct_class, version_range

OLDEST, NEWEST = "3.9.1", "4.4.0"
RENAMED = {("TxnOffsetCommitRequest", "GenerationId"): "GenerationIdOrMemberEpoch"}
"""Fields that a later Kafka calls otherwise; we have the later name."""
UNSTABLE = {"InitProducerIdRequest", "InitProducerIdResponse"}
"""Their highest version is marked unstable and left out."""
EARLY_ACCESS = 76
"""From this key on the oldest release has drafts only (share groups)."""
PYTHON = {"int8": int, "int16": int, "uint16": int, "int32": int, "int64": int, "float64": float, "bool": bool,
          "uuid": bytes, "string": str, "bytes": bytes}  # fmt: skip


def snake(name: str) -> str:
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


@cache
def tables(version: str) -> dict[str, dict[str, Any]]:
    """Kafka's message tables of a version by name; those without a valid version left out."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    try:
        from testbench.apache_kafka.packages import class_path
    finally:
        sys.path.pop(0)
    (jar,) = Path(class_path(version, "broker").removesuffix("*")).glob("kafka-clients-*.jar")
    found = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                table = json.loads(re.sub(r"(?m)^\s*//.*$", "", archive.read(name).decode()))
                if table["validVersions"] != "none":
                    found[table["name"]] = table
    return found


def fields_of(table: dict[str, Any], fields: list[dict[str, Any]], version: int) -> list[dict[str, Any]]:
    return [f for f in fields if version in version_range(f["versions"])]


def inner_fields(table: dict[str, Any], field: dict[str, Any]) -> list[dict[str, Any]] | None:
    if "fields" in field:
        return field["fields"]
    common = {c["name"]: c["fields"] for c in table.get("commonStructs", ())}
    return common.get(field["type"].removeprefix("[]"))


def default_of(row: dict[str, Any], ours: Field) -> object:
    """Kafka's default of a field, as Python has it."""
    said, kind = row.get("default"), row["type"]
    if kind.startswith("[]"):
        return None if said == "null" else ()
    if kind == "records" or ours.type == "struct" or said == "null":
        return None
    if kind == "bool":
        return said in (True, "true")
    if kind in {"string", "bytes", "uuid"}:
        return {"string": said or "", "bytes": b"", "uuid": bytes(16)}[kind]
    return float(said or 0) if kind == "float64" else int(str(said or 0), 0)


def compare(cls: StructType, table: dict[str, Any], rows: list[dict[str, Any]], version: int) -> None:
    ours = [f for f in cls.FIELDS if f.exists_in(version) and (f.tag is None or f.tag < OWN_TAG)]
    theirs = fields_of(table, rows, version)
    names = [RENAMED.get((table["name"], row["name"]), row["name"]) for row in theirs]
    assert [f.name for f in ours] == [snake(name) for name in names], cls.__qualname__
    for field, row in zip(ours, theirs, strict=True):
        where = f"{cls.__qualname__}.{field.name} v{version}"
        kind = row["type"].removeprefix("[]")
        inside = inner_fields(table, row)
        assert (field.of if field.type == "array" else field.type) == ("struct" if inside is not None else kind), where
        assert (field.type == "array") == row["type"].startswith("[]"), where
        assert field.may_be_null(version) == (version in version_range(row.get("nullableVersions", "none"))), where
        assert field.tag == (int(row["tag"]) if "tag" in row else None), where
        assert field.default == default_of(row, field), where
        if inside is not None:
            compare(struct_class(cls, field), table, inside, version)


def all_messages() -> list[type[Message]]:
    return [getattr(messages, name) for name in messages.__all__]


@pytest.mark.kafka
@pytest.mark.slow
def test_every_field_of_every_version_is_as_kafka_declares_it() -> None:
    compared = 0
    for cls in all_messages():
        for release in (OLDEST, NEWEST):
            table = tables(release).get(cls.__name__)
            if table is None or (release == OLDEST and cls.API_KEY >= EARLY_ACCESS):
                continue
            for version in version_range(table["validVersions"]):
                if version in cls.VERSIONS:
                    flexible = version in version_range(table.get("flexibleVersions", "none"))
                    assert (version in cls.FLEXIBLE) == flexible, cls.__name__
                    compare(cls, table, table["fields"], version)
                    compared += 1
    assert compared > 1000


@pytest.mark.kafka
@pytest.mark.slow
def test_versions_reach_from_the_oldest_to_the_newest() -> None:
    for cls in all_messages():
        old, new = tables(OLDEST).get(cls.__name__), tables(NEWEST).get(cls.__name__)
        ranges = [version_range(table["validVersions"]) for table in (old, new) if table is not None]
        newest = ranges[-1].stop - (cls.__name__ in UNSTABLE)
        assert cls.VERSIONS.stop == newest, cls.__name__
        if cls.API_KEY < 68:  # what came later was unstable in the oldest
            assert cls.VERSIONS.start == min(r.start for r in ranges), cls.__name__


@pytest.mark.kafka
@pytest.mark.slow
def test_only_raft_streams_and_registration_are_left_out() -> None:
    keys = {t["apiKey"] for t in tables(NEWEST).values() if "apiKey" in t}
    assert sorted(keys - set(API_TABLE)) == [52, 53, 54, 58, 59, 62, 63, 70, 73, 80, 81, 82, 88, 89, 93, 94]


# The declarations against themselves: no jar is needed.


def structs_of(cls: type[Message]) -> list[StructType]:
    return [cls, *(value for value in vars(cls).values() if isinstance(value, StructType))]


def test_annotations_say_what_the_fields_are(message_class: type[Message]) -> None:
    for struct_type in structs_of(message_class):
        hints = typing.get_type_hints(struct_type, localns=dict(vars(message_class)))
        for field in struct_type.FIELDS:
            assert hints[field.name] == expected_hint(struct_type, field), f"{struct_type.__qualname__}.{field.name}"


def expected_hint(cls: StructType, field: Field) -> object:
    if field.type == "records":
        return Part | None
    kind = field.of if field.type == "array" else field.type
    element: Any = struct_class(cls, field) if kind == "struct" else PYTHON[kind]
    plain: Any = list[element] if field.type == "array" else element
    return plain if field.nullable == "none" else plain | None


def test_every_version_of_a_field_is_one_of_its_message(message_class: type[Message]) -> None:
    for struct_type in structs_of(message_class):
        for field in struct_type.FIELDS:
            versions = version_range(field.versions)
            assert any(version in versions for version in message_class.VERSIONS), field.name
            assert field.type in NUMBERS or field.type in {"string", "bytes", "records", "struct", "array"}


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "+", "1-2-3", "1 +"])
def test_not_a_range(text: str) -> None:
    with pytest.raises(ValueError, match="not a version range"):
        version_range(text)


def test_ranges() -> None:
    assert list(version_range("3-5")) == [3, 4, 5]
    assert list(version_range("4")) == [4]
    assert not version_range("none")
    assert version_range("7+") == range(7, LATEST + 1)
