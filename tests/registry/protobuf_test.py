"""Protobuf in the registry: texts as they were registered, equal schemas, references, and the format `serialized`.

Zone: pure.
"""

from __future__ import annotations

import base64
import json
import sys

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tests.registry.conftest import MemoryRegistry

from ottla.registry.state import RegistryState

ONE = 'syntax = "proto3";\n// An order.\nmessage Order { int32 id = 1; }\n'
SAME = "syntax='proto3'; message Order{int32 id=0x1;}"
TWO = 'syntax = "proto3"; message Order { int32 id = 1; string note = 2; }'
BAD = 'syntax = "proto3"; message Order { string id = 1; }'
USE = 'syntax = "proto3"; import "order.proto"; message Basket { Order first = 1; }'
REFERENCE = [{"name": "order.proto", "subject": "order", "version": 1}]


def descriptor_of(text: str) -> FileDescriptorProto:
    file = FileDescriptorProto()
    file.ParseFromString(base64.b64decode(text))
    return file


def test_a_text_is_returned_as_it_was_registered(registry: MemoryRegistry) -> None:
    assert registry.register("a", ONE, "PROTOBUF") == 1
    assert registry.ask("GET", "/schemas/ids/1")["schema"] == ONE
    assert registry.ask("GET", "/subjects/a/versions/1")["schemaType"] == "PROTOBUF"
    assert json.loads(registry.written[0].value or b"")["schema"] == ONE


def test_equal_schemas_of_a_subject_are_one_version(registry: MemoryRegistry) -> None:
    registry.register("a", ONE, "PROTOBUF")
    serialized = registry.ask("GET", "/schemas/ids/1", format="serialized")["schema"]
    for text in (SAME, serialized, ONE):
        assert registry.register("a", text, "PROTOBUF") == 1
        found = registry.ask("POST", "/subjects/a", {"schema": text, "schemaType": "PROTOBUF"})
        assert (found["version"], found["schema"]) == (1, ONE)
    assert registry.ask("GET", "/subjects/a/versions") == [1]
    assert registry.register("a", TWO, "PROTOBUF") == 2
    assert registry.register("a", SAME, "PROTOBUF") == 1
    assert registry.ask("POST", "/subjects/a", {"schema": BAD, "schemaType": "PROTOBUF"}) == 40403
    assert registry.ask("POST", "/subjects/a", {"schema": SAME}) == 42201, "a text of Avro is none of Protobuf"


def test_the_format_serialized_is_a_descriptor(registry: MemoryRegistry) -> None:
    registry.register("order", ONE, "PROTOBUF")
    registry.register("basket", USE, "PROTOBUF", references=REFERENCE)
    registry.register("avro", '"int"')
    guid = registry.ask("GET", "/schemas/ids/2")["guid"]
    for target in ("/schemas/ids/2", "/subjects/basket/versions/latest", f"/schemas/guids/{guid}"):
        answer = registry.ask("GET", target, format="serialized")
        assert (answer["guid"], answer["references"]) == (guid, REFERENCE)
        file = descriptor_of(answer["schema"])
        assert (list(file.dependency), file.message_type[0].field[0].type_name) == (["order.proto"], ".Order")
        assert registry.ask("GET", target)["schema"] == registry.ask("GET", target, format="")["schema"] == USE
    assert registry.ask("GET", "/schemas/ids/3", format="serialized")["schema"] == '"int"'


def test_references_are_imports_by_name(registry: MemoryRegistry) -> None:
    registry.register("order", ONE, "PROTOBUF")
    assert registry.register("basket", USE, "PROTOBUF") == 42201
    other = [{**REFERENCE[0], "name": "other.proto"}]
    assert registry.register("basket", USE, "PROTOBUF", references=other) == 42201
    assert registry.register("basket", USE, "PROTOBUF", references=REFERENCE) == 2
    assert registry.register("basket", USE + " ", "PROTOBUF", references=REFERENCE) == 2
    assert registry.ask("GET", "/subjects/order/versions/1/referencedby") == [2]


def test_compatibility_is_checked(registry: MemoryRegistry) -> None:
    registry.register("a", ONE, "PROTOBUF")
    assert registry.register("a", BAD, "PROTOBUF") == 409
    assert registry.register("a", '"int"') == 409
    target = "/compatibility/subjects/a/versions/latest"
    answer = registry.ask("POST", target, {"schema": BAD, "schemaType": "PROTOBUF"}, verbose="true")
    assert answer["is_compatible"] is False
    assert "FIELD_SCALAR_KIND_CHANGED" in answer["messages"][0]
    assert "#/Order/1" in answer["messages"][0]
    assert registry.register("a", TWO, "PROTOBUF") == 2


def test_a_copy_keeps_ids_and_texts(registry: MemoryRegistry) -> None:
    registry.ask("PUT", "/mode/a", {"mode": "IMPORT"})
    assert registry.register("a", ONE, "PROTOBUF", id=7, version=1) == 7
    assert registry.register("a", SAME, "PROTOBUF", id=9, version=2) == 9
    assert registry.ask("GET", "/schemas/ids/9")["schema"] == SAME


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "message",
        'edition = "2023";',
        'syntax = "proto3"; message M { int32 a = 19500; }',
        'syntax = "proto3"; message M { int32 a = 1; int32 b = 1; }',
        'syntax = "proto3"; message M { Missing a = 1; }',
        'syntax = "proto3"; import "missing.proto";',
        'syntax = "proto3"; message M { repeated group A = 1 {} }',
        "message M {" * 1_000 + "}" * 1_000,
        "message M" + " { option (a) = {" * 1_000,
        "\ud800",
        "AAAA",
    ],
)
def test_bad_schemas_are_refused_with_42201(registry: MemoryRegistry, text: str) -> None:
    assert registry.register("a", text, "PROTOBUF") == 42201
    assert registry.written == []


def test_a_text_that_another_registry_accepted_does_not_end_requests(registry: MemoryRegistry) -> None:
    registry.register("a", ONE, "PROTOBUF")
    record = registry.written[0]
    broken = json.loads(record.value or b"") | {"schema": 'edition = "2024";', "id": 5, "version": 2}
    key = json.loads(record.key) | {"version": 2}
    registry.apply(record._replace(key=json.dumps(key).encode(), value=json.dumps(broken).encode()))
    assert registry.register("a", SAME, "PROTOBUF") == 1
    assert registry.ask("GET", "/schemas/ids/5")["schema"] == 'edition = "2024";'
    assert registry.ask("GET", "/schemas/ids/5", format="serialized") == 42201
    assert registry.register("a", TWO, "PROTOBUF") == 42201, "it cannot be compared with the latest version"


def test_without_the_package_other_types_are_served(registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("google.protobuf.descriptor_pool", "google.protobuf.descriptor_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    assert registry.register("a", ONE, "PROTOBUF") == 42201
    assert registry.register("a", '"int"') == 1


def test_the_state_after_a_restart_is_the_same(registry: MemoryRegistry) -> None:
    registry.register("a", ONE, "PROTOBUF")
    registry.register("b", ONE, "PROTOBUF")
    state = RegistryState()
    for each in registry.written:
        state.apply(each.key, each.value)
    assert [state.version(name, 1) for name in "ab"] == [registry.state.version(name, 1) for name in "ab"]
    assert len(state.users_of_id(".", 1)) == 2
