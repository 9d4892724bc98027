"""Definitions of pipelines as records: their form, their checks, and the table after all records."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline import BadPipeline, Pipeline
from ottla.pipeline.definitions.definition import (
    NAMES_MAX,
    VALUE_BYTES_MAX,
    DefinitionTable,
    PipelineDefinition,
    UnreadableDefinition,
    decode_definition,
    encode_definition,
    fault_of_field,
)
from ottla.pipeline.errors import fault_of_pipeline_name

DEFINITIONS = st.builds(
    PipelineDefinition,
    st.sampled_from(["shop.py", "parts/new shop.py", "ü/on.py", "..hidden.py"]),
    st.sampled_from(["running", "paused"]),
    st.none() | st.sampled_from(["5s", "500ms", "1h30m"]),
    st.none() | st.integers(0, 2**31 - 1),
)
SHOP = PipelineDefinition("shop.py")


@given(DEFINITIONS)
def test_a_record_has_the_same_definition(definition: PipelineDefinition) -> None:
    value = encode_definition(definition)
    assert decode_definition(value) == definition
    assert json.loads(value)["version"] == 1
    assert len(value) < VALUE_BYTES_MAX


def test_the_bytes_of_a_record_are_known() -> None:
    """They are in the topics of users."""
    assert encode_definition(SHOP) == b'{"version":1,"file":"shop.py","state":"running"}'
    full = PipelineDefinition("a/ü.py", "paused", "5s", 3)
    written = '{"version":1,"file":"a/ü.py","state":"paused","trigger":"5s","max_restarts":3}'
    assert encode_definition(full) == written.encode()
    assert decode_definition(b'{"file":"shop.py","version":1}') == SHOP


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe\xfd", "is not JSON"),
        (b"[" * 5000, "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"{}", "has no version 1"),
        (b'{"version":true,"file":"a.py"}', "has no version 1"),
        (b'{"version":0,"file":"a.py"}', "has no version 1"),
        (b'{"version":1}', "file: write a path"),
        (b'{"version":1,"file":null}', "file: write a path"),
        (b'{"version":1,"file":"../a.py"}', "file: '../a.py' is not a path below"),
        (b'{"version":1,"file":"a.py","cores":4}', "has a field 'cores' that is not known"),
        (b'{"version":1,"file":"a.py","state":["paused"]}', "state: this is not one of"),
        (b'{"version":1,"file":"' + b"a" * VALUE_BYTES_MAX + b'.py"}', "more than 16384"),
    ],
)
def test_a_record_that_is_no_definition_has_a_reason(value: bytes, reason: str) -> None:
    found = decode_definition(value)
    assert isinstance(found, UnreadableDefinition)
    assert reason in found.reason
    assert not found.is_newer


def test_a_record_of_a_later_version_is_known_as_such() -> None:
    found = decode_definition(b'{"version":2,"file":["shop.py"],"cores":4}')
    assert found == UnreadableDefinition("its record has version 2, and 1 is known: upgrade ottla", is_newer=True)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_definition_or_a_reason(value: bytes) -> None:
    table = DefinitionTable()
    table.apply_record(value, value)
    table.apply_record(b"shop", value)
    assert isinstance(table.definitions["shop"], PipelineDefinition | UnreadableDefinition)


@pytest.mark.parametrize(
    "file",
    ["", "/a.py", "../a.py", "a/../../b.py", "a/./b.py", "./a.py", "a//b.py", "a\\..\\b.py", "a\n.py", "a.txt", "a/",
     "a" * 600, 3, None],
)  # fmt: skip
def test_files_are_below_the_directory_of_the_service(file: object) -> None:
    assert fault_of_field("file", file)


def test_names_are_those_of_pipelines_and_directories() -> None:
    for name in ("", ".", "..", "a/b", "a b", "x" * 101, "ü"):
        assert fault_of_pipeline_name(name)
        with pytest.raises(BadPipeline, match="must be 1 to 100 letters"):
            Pipeline(name)
    assert fault_of_pipeline_name("a.B_c-1") == ""


def test_the_last_record_of_a_name_counts() -> None:
    table = DefinitionTable()
    for key, value in (
        (b"shop", b"?"), (b"stock", encode_definition(SHOP)), (b"shop", encode_definition(SHOP)), (b"stock", None),
        (b"a/b", encode_definition(SHOP)), (b"a/b", None), (None, b"{}"), (b"\xff", b"{}"),
    ):  # fmt: skip
        table.apply_record(key, value)
    assert table.definitions == {"shop": SHOP}
    assert table.ignored == 3


def test_the_number_of_names_is_bounded() -> None:
    table = DefinitionTable()
    for number in range(NAMES_MAX + 5):
        table.apply_record(b"p%d" % number, encode_definition(SHOP))
    assert (len(table.definitions), table.ignored) == (NAMES_MAX, 5)
    table.apply_record(b"p0", None)
    table.apply_record(b"late", encode_definition(SHOP))
    assert "late" in table.definitions
