"""The REST interface of the registry: answers and error codes are Schema Registry's.

Zone: pure.
"""

from __future__ import annotations

import json
import random

import pytest
from tests.registry.conftest import MemoryRegistry

from ottla.registry.registration import MAX_REFERENCES
from ottla.registry.state import RegistryState

INT, LONG, TEXT = '"int"', '"long"', '"string"'
ONE = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
TWO = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0}],
}
BAD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}


def test_equal_schemas_have_one_id_and_each_subject_its_versions(registry: MemoryRegistry) -> None:
    assert registry.register("a", ONE) == registry.register("b", json.dumps(ONE, indent=2)) == 1
    assert registry.register("a", TWO) == 2
    assert registry.register("a", ONE) == 1
    assert registry.ask("GET", "/subjects") == ["a", "b"]
    assert registry.ask("GET", "/subjects/a/versions") == [1, 2]
    assert registry.ask("GET", "/schemas/ids/1/versions") == [
        {"subject": "a", "version": 1},
        {"subject": "b", "version": 1},
    ]
    assert registry.ask("GET", "/schemas/ids/1/subjects") == ["a", "b"]
    assert registry.ask("GET", "/schemas/ids/2/schema") == TWO
    latest = registry.ask("GET", "/subjects/a/versions/latest")
    assert (latest["version"], latest["id"], json.loads(latest["schema"])) == (2, 2, TWO)
    assert registry.ask("GET", f"/schemas/guids/{latest['guid']}")["schema"] == latest["schema"]
    assert registry.ask("POST", "/subjects/a", {"schema": json.dumps(ONE)})["version"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/subjects/x/versions", None, 40401),
        ("GET", "/subjects/x/versions/1", None, 40401),
        ("GET", "/subjects/a/versions/9", None, 40402),
        ("GET", "/subjects/a/versions/0", None, 42202),
        ("GET", "/subjects/a/versions/first", None, 42202),
        ("GET", "/subjects/a/versions/99999999999", None, 42202),
        ("GET", "/schemas/ids/9", None, 40403),
        ("GET", "/schemas/ids/x", None, 404),
        ("GET", "/schemas/guids/x", None, 40403),
        ("POST", "/subjects/x", {"schema": INT}, 40401),
        ("POST", "/subjects/a", {"schema": INT}, 40403),
        ("POST", "/subjects/a/versions", {"schema": json.dumps(BAD)}, 409),
        ("POST", "/subjects/a/versions", {"schema": "{"}, 42201),
        ("POST", "/subjects/a/versions", {"schema": ""}, 42201),
        ("POST", "/subjects/a/versions", {"schema": INT, "schemaType": "XML"}, 42201),
        ("POST", "/subjects/a/versions", {"schema": INT, "schemaType": 5}, 400),
        ("POST", "/subjects/a/versions", {"schema": INT, "references": [{"name": "x"}]}, 400),
        ("POST", "/subjects/a/versions", {"schema": INT, "references": 5}, 400),
        ("POST", "/subjects/a/versions", {"schema": INT, "id": "x"}, 400),
        ("POST", "/subjects/a/versions", {"schema": INT, "id": 7}, 42205),
        ("POST", "/subjects/a/versions", [], 400),
        ("POST", "/subjects/a/versions", None, 400),
        ("POST", "/subjects/" + "x" * 20_000 + "/versions", {"schema": INT}, 42208),
        ("POST", "/subjects/a\n/versions", {"schema": INT}, 42208),
        ("POST", "/compatibility/subjects/x/versions/latest", {"schema": INT}, 40401),
        ("POST", "/compatibility/subjects/a/versions/9", {"schema": INT}, 40402),
        ("DELETE", "/subjects/x", None, 40401),
        ("DELETE", "/subjects/x/versions/1", None, 40401),
        ("DELETE", "/subjects/a/versions/9", None, 40402),
        ("GET", "/config/a", None, 40408),
        ("DELETE", "/config/a", None, 40401),
        ("PUT", "/config/a", {"compatibility": "SOME"}, 42203),
        ("PUT", "/config", {}, 42203),
        ("GET", "/mode/a", None, 40409),
        ("DELETE", "/mode/a", None, 40401),
        ("PUT", "/mode/a", {"mode": "SOME"}, 42204),
        ("PUT", "/mode", {"mode": "IMPORT"}, 42205),
    ],
)
def test_refusals(registry: MemoryRegistry, method: str, path: str, body: object, code: int) -> None:
    registry.register("a", ONE)
    before = len(registry.written)
    assert registry.ask(method, path, body) == code
    assert len(registry.written) == before


def test_deletions_are_soft_first_and_permanent_then(registry: MemoryRegistry) -> None:
    registry.register("a", ONE)
    registry.register("a", TWO)
    assert registry.ask("DELETE", "/subjects/a/versions/1", permanent="true") == 40407
    assert registry.ask("DELETE", "/subjects/a/versions/1") == 1
    assert registry.ask("DELETE", "/subjects/a/versions/1") == 40406
    assert registry.ask("GET", "/subjects/a/versions") == [2]
    assert registry.ask("GET", "/subjects/a/versions", deleted="true") == [1, 2]
    assert registry.ask("GET", "/subjects/a/versions", deletedOnly="true") == [1]
    assert registry.ask("GET", "/subjects/a/versions/1") == 40402
    assert registry.ask("GET", "/subjects/a/versions/1", deleted="true")["deleted"] is True
    assert registry.ask("GET", "/schemas/ids/1")["schema"], "records that were written with it can be read"
    assert registry.ask("DELETE", "/subjects/a", permanent="true") == 40405
    assert registry.ask("DELETE", "/subjects/a") == [2]
    assert registry.ask("DELETE", "/subjects/a") == 40404
    assert registry.ask("GET", "/subjects") == []
    assert registry.ask("GET", "/subjects", deleted="true") == ["a"]
    assert registry.ask("DELETE", "/subjects/a", permanent="true") == [1, 2]
    assert registry.ask("GET", "/schemas/ids/1") == 40403
    assert registry.register("a", BAD) == 3, "an id is not given twice"


def test_a_deleted_schema_that_returns_has_its_id_and_a_new_version(registry: MemoryRegistry) -> None:
    registry.register("a", ONE)
    registry.ask("DELETE", "/subjects/a")
    assert registry.register("a", ONE) == 1
    assert registry.ask("GET", "/subjects/a/versions") == [2]


def test_referred_schemas_stay(registry: MemoryRegistry) -> None:
    registry.register("order", {"type": "record", "name": "shop.Order", "fields": []})
    basket = {"type": "record", "name": "B", "fields": [{"name": "o", "type": "shop.Order"}]}
    reference = {"name": "shop.Order", "subject": "order", "version": 1}
    assert registry.register("basket", basket) == 42201
    assert registry.register("basket", basket, references=[{**reference, "version": 2}]) == 42201
    assert registry.register("basket", basket, references=[reference]) == 2
    assert registry.ask("GET", "/subjects/order/versions/1/referencedby") == [2]
    assert registry.ask("GET", "/schemas/ids/2")["references"] == [reference]
    assert registry.ask("DELETE", "/subjects/order") == 42206
    assert registry.ask("DELETE", "/subjects/order/versions/1") == 42206
    registry.ask("DELETE", "/subjects/basket")
    assert registry.ask("DELETE", "/subjects/order") == [1]


def test_the_number_of_schemas_that_one_reaches_is_bounded(registry: MemoryRegistry) -> None:
    """A chain of references: each schema refers to the one before."""
    previous: list[dict[str, object]] = []
    for number in range(MAX_REFERENCES + 2):
        schema = {"type": "record", "name": f"R{number}", "fields": []}
        if previous:
            schema["fields"] = [{"name": "below", "type": f"R{number - 1}"}]
        found = registry.register(f"s{number}", schema, references=previous)
        assert found == (number + 1 if number <= MAX_REFERENCES else 42201), number
        previous = [{"name": f"R{number}", "subject": f"s{number}", "version": 1}]


@pytest.mark.parametrize(
    ("level", "fits"),
    [
        ("BACKWARD", {LONG}),
        ("FORWARD", set()),
        ("FULL", set()),
        ("BACKWARD_TRANSITIVE", {LONG}),
        ("FORWARD_TRANSITIVE", set()),
        ("FULL_TRANSITIVE", set()),
        ("NONE", {LONG, TEXT}),
    ],
)
def test_levels(registry: MemoryRegistry, level: str, fits: set[str]) -> None:
    registry.register("a", INT)
    assert registry.ask("PUT", "/config/a", {"compatibility": level.lower()}) == {"compatibility": level}
    assert registry.ask("GET", "/config/a") == {"compatibilityLevel": level}
    for schema in (LONG, TEXT):
        found = registry.ask("POST", "/compatibility/subjects/a/versions/latest", {"schema": schema}, verbose="true")
        assert found["is_compatible"] == (schema in fits), schema
        assert bool(found["messages"]) != found["is_compatible"]


def test_transitive_levels_compare_with_all_versions(registry: MemoryRegistry) -> None:
    with_c = {"type": "record", "name": "R", "fields": [*ONE["fields"], {"name": "c", "type": "int"}]}
    for schema in (ONE, TWO):
        registry.register("a", schema)
    registry.ask("DELETE", "/subjects/a/versions/2")
    registry.ask("PUT", "/config", {"compatibility": "FORWARD"})
    assert registry.register("a", with_c) == 3
    without = {"type": "record", "name": "R", "fields": [{"name": "c", "type": "int"}]}
    registry.ask("PUT", "/config", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert registry.register("a", without) == 409, "version 1 has no c"
    registry.ask("PUT", "/config", {"compatibility": "BACKWARD"})
    assert registry.register("a", without) == 4


def test_levels_and_modes_of_subject_context_and_all(registry: MemoryRegistry) -> None:
    registry.ask("PUT", "/config", {"compatibility": "FULL"})
    registry.ask("PUT", "/contexts/.lab/config", {"compatibility": "NONE"})
    for subject, level in (("a", "FULL"), (":.lab:a", "NONE")):
        assert registry.ask("GET", f"/config/{subject}", defaultToGlobal="true") == {"compatibilityLevel": level}
    registry.ask("PUT", "/mode", {"mode": "READONLY"})
    assert registry.register("a", INT) == 42205
    registry.ask("PUT", "/mode/a", {"mode": "READWRITE"})
    assert registry.register("a", INT) == 1
    assert registry.ask("DELETE", "/mode/a") == {"mode": "READWRITE"}
    assert registry.ask("DELETE", "/subjects/a") == 42205
    assert registry.ask("DELETE", "/config") == {"compatibilityLevel": "FULL"}
    assert registry.ask("GET", "/config") == {"compatibilityLevel": "BACKWARD"}


def test_import_keeps_ids_and_versions(registry: MemoryRegistry) -> None:
    registry.ask("PUT", "/mode/a", {"mode": "IMPORT"})
    assert registry.register("a", INT, id=40, version=7) == 40
    assert registry.register("a", TEXT, id=41, version=9) == 41, "nothing is compared"
    assert registry.register("a", LONG, id=40, version=10) == 42205
    assert registry.register("a", LONG) == 42205
    assert registry.ask("GET", "/subjects/a/versions") == [7, 9]
    assert registry.register("b", LONG) == 42


def test_contexts_have_ids_of_their_own(registry: MemoryRegistry) -> None:
    assert registry.register("a", INT) == 1
    lab = registry.ask("POST", "/contexts/.lab/subjects/a/versions", {"schema": TEXT})
    assert lab["id"] == 1
    assert registry.ask("GET", "/contexts") == [".", ".lab"]
    assert registry.ask("GET", "/schemas/ids/1")["schema"] == INT
    assert registry.ask("GET", "/schemas/ids/1", subject=":.lab:a")["schema"] == TEXT
    assert registry.ask("GET", "/contexts/.lab/schemas/ids/1")["schema"] == TEXT
    assert registry.ask("GET", "/subjects") == [":.lab:a", "a"]
    assert registry.ask("GET", "/subjects", subjectPrefix="") == ["a"]
    assert registry.ask("GET", "/contexts/.lab/subjects") == [":.lab:a"]


def test_pages_and_lists(registry: MemoryRegistry) -> None:
    for number in range(5):
        registry.register(f"s{number}", ONE)
    registry.register("s0", TWO)
    assert registry.ask("GET", "/subjects", offset="1", limit="2") == ["s1", "s2"]
    assert registry.ask("GET", "/subjects", limit="x") == 404
    assert len(registry.ask("GET", "/schemas")) == 6
    assert len(registry.ask("GET", "/schemas", latestOnly="true", subjectPrefix="s0")) == 1
    assert registry.ask("GET", "/schemas/types") == ["AVRO", "JSON", "PROTOBUF"]


def test_records_that_cannot_be_understood_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    state = RegistryState()
    for key, value in [
        (None, b"{}"),
        (b"{", None),
        (b"[]", None),
        (b'{"keytype":"SCHEMA"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"a","version":"x","magic":1}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}', b'{"id":1}'),
        (b'{"keytype":"CONFIG","subject":null,"magic":0}', b"5"),
        (b"[" * 100_000, None),
        (b"\xff", b"\xff"),
    ]:
        state.apply(key, value)
    assert state.subjects() == []
    assert len(caplog.records) == 9
    state.apply(b'{"keytype":"NOOP","magic":0}', None)
    state.apply(b'{"keytype":"SOMETHING_NEW","magic":0}', b"{}")
    assert len(caplog.records) == 9


def test_the_state_of_compacted_records_is_the_same(registry: MemoryRegistry) -> None:
    """Compaction keeps the last record of each key: what is true before is true after."""
    chance = random.Random(7)
    subjects, schemas = ["a", "b", ":.lab:c"], [INT, TEXT, json.dumps(ONE), json.dumps(TWO)]
    registry.ask("PUT", "/config", {"compatibility": "NONE"})
    for _ in range(400):
        subject = chance.choice(subjects)
        act = chance.randrange(7)
        if act < 3:
            registry.register(subject, chance.choice(schemas))
        elif act == 3:
            registry.ask("DELETE", f"/subjects/{subject}", permanent=chance.choice(["true", "false"]))
        elif act == 4:
            versions = registry.ask("GET", f"/subjects/{subject}/versions", deleted="true")
            if isinstance(versions, list):
                path = f"/subjects/{subject}/versions/{chance.choice(versions)}"
                registry.ask("DELETE", path, permanent=chance.choice(["true", "false"]))
        elif act == 5:
            registry.ask("PUT", f"/config/{subject}", {"compatibility": chance.choice(["NONE", "none"])})
        else:
            registry.ask("DELETE", f"/config/{subject}")
        compacted = RegistryState()
        last = {each.key: at for at, each in enumerate(registry.written)}
        for at, each in enumerate(registry.written):
            if last[each.key] == at:
                compacted.apply(each.key, each.value)
        for name in subjects:
            assert compacted.versions(name, deleted=True) == registry.state.versions(name, deleted=True)
        assert (compacted.levels, compacted.modes) == (registry.state.levels, registry.state.modes)


def test_two_ways_to_write_a_primitive_are_one_schema(registry: MemoryRegistry) -> None:
    assert registry.register("plain", '"string"') == registry.register("plain", {"type": "string"})
    assert registry.ask("GET", "/subjects/plain/versions") == [1]
    found = registry.ask("POST", "/subjects/plain", {"schema": '{"type": "string"}', "schemaType": "AVRO"})
    assert (found["version"], found["schema"]) == (1, '"string"')
