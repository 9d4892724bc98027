"""One definition of a pipeline: its file, its state and its settings; the form of its record, and the checks.

Zone: pure. The key of a record is the pipeline's name, the value a JSON object with `version` and the fields that are
set; a null value deletes the definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from ottla.pipeline.errors import fault_of_pipeline_name
from ottla.retry.policy import PolicyError, duration_ms

VERSION: Final = 1
"""Raised with every field that is added: a reader that does not know the field must not drop it."""
RUNNING: Final = "running"
PAUSED: Final = "paused"
MAX_PIPELINES: Final = 100
"""Of one service: each has a thread, and a query per step."""
VALUE_BYTES_MAX: Final = 16_384
NAMES_MAX: Final = 1_000
_FILE_CHARS_MAX: Final = 500
_INT32_MAX: Final = 2**31 - 1
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\\]")


class PipelineDefinition(NamedTuple):
    """How a service runs a pipeline. The name is that of the `Pipeline`, so that two definitions cannot run one."""

    file: str
    """A path with `/` below the directory of the service."""
    state: str = RUNNING
    """running or paused."""
    trigger: str | None = None
    """An interval such as 5s. None: the service's."""
    max_restarts: int | None = None
    """Restarts without a finished batch between them. None: the service's."""

    def to_document(self) -> dict[str, str | int]:
        """The fields that are set."""
        return {key: value for key, value in self._asdict().items() if value is not None}


class UnreadableDefinition(NamedTuple):
    """A record that is no definition that this version knows."""

    reason: str
    is_newer: bool = False
    """Whether a later version has written it."""


Definition = PipelineDefinition | UnreadableDefinition


def _fault_of_file(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > _FILE_CHARS_MAX or _UNPRINTABLE.search(value):
        return f"write a path of up to {_FILE_CHARS_MAX} characters, with / between its parts"
    # Definitions choose among the files that were deployed: a path out of that directory would run other code.
    if PurePosixPath(value).is_absolute() or any(part in ("", ".", "..") for part in value.split("/")):
        return f"{value!r} is not a path below the directory of the service: use no '..', and no '/' at its beginning"
    return "" if value.endswith(".py") else f"{value!r} is not a Python file: its name must end with .py"


def _fault_of_state(value: object) -> str:
    return "" if value in (RUNNING, PAUSED) else f"{_shown(value)} is not one of {RUNNING}, {PAUSED}"


def _fault_of_trigger(value: object) -> str:
    try:
        duration_ms(value if isinstance(value, str) else "")
    except PolicyError:
        return f"{_shown(value)} is not an interval such as 500ms or 5s"
    return ""


def _fault_of_restarts(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _INT32_MAX:
        return ""
    return f"{_shown(value)} is not a whole number from 0 to {_INT32_MAX}"


def _shown(value: object) -> str:
    return "this" if isinstance(value, dict | list) else repr(value)[:100]


_CHECKS: Final[Mapping[str, Callable[[object], str]]] = {
    "file": _fault_of_file,
    "state": _fault_of_state,
    "trigger": _fault_of_trigger,
    "max_restarts": _fault_of_restarts,
}
assert tuple(_CHECKS) == PipelineDefinition._fields


def fault_of_field(name: str, value: object) -> str:
    """Why a field cannot have this value; "" if it can. None leaves a field unset, which `file` cannot be."""
    if value is None and name != "file":
        return ""
    return _CHECKS[name](value)


def definition_of(fields: Mapping[str, Any]) -> PipelineDefinition:
    """The definition of checked fields; None is the default."""
    return PipelineDefinition(**{key: value for key, value in fields.items() if value is not None})


def encode_definition(definition: PipelineDefinition) -> bytes:
    """The value of its record. The same definition has the same bytes."""
    document = {"version": VERSION, **definition.to_document()}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def decode_definition(value: bytes) -> Definition:
    """The definition in the value of a record."""
    if len(value) > VALUE_BYTES_MAX:
        return UnreadableDefinition(f"its record has {len(value)} bytes, more than {VALUE_BYTES_MAX}")
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return UnreadableDefinition("its record is not JSON")
    if not isinstance(document, dict):
        return UnreadableDefinition("its record is not a JSON object")
    version = document.pop("version", None)
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        return UnreadableDefinition(f"its record has version {version}, and {VERSION} is known: upgrade ottla", True)
    if version != VERSION or isinstance(version, bool):
        return UnreadableDefinition(f"its record has no version {VERSION}")
    return _decode_fields(document)


def _decode_fields(document: Mapping[str, Any]) -> Definition:
    for key, value in document.items():
        if key not in _CHECKS:
            return UnreadableDefinition(f"its record has a field {key[:100]!r} that is not known")
        if fault := fault_of_field(key, value):
            return UnreadableDefinition(f"{key}: {fault}")
    if fault := fault_of_field("file", document.get("file")):
        return UnreadableDefinition(f"file: {fault}")
    return definition_of(document)


class DefinitionTable:
    """The definitions after all records so far: the last record of each name counts."""

    def __init__(self) -> None:
        self.definitions: dict[str, Definition] = {}
        self.ignored = 0
        """Records whose key is not the name of a pipeline, or one name too many."""

    def apply_record(self, key: bytes | None, value: bytes | None) -> None:
        """Take the next record. value None: the definition is deleted."""
        name = (key or b"").decode(errors="replace")
        if fault_of_pipeline_name(name) or (name not in self.definitions and len(self.definitions) >= NAMES_MAX):
            # A deletion of a name that is not kept changes nothing, and is no reason for a note.
            self.ignored += value is not None
        elif value is None:
            self.definitions.pop(name, None)
        else:
            self.definitions[name] = decode_definition(value)
