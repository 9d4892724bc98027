"""A state as the document of a file, and a plan as a document of results.

Zone: pure. `tree.yaml_text` and the JSON library write documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ottla.cli.manifest.parsing import VERSION
from ottla.cli.manifest.state import SECTIONS, Change, ClusterState, Settings, TopicState
from ottla.cli.security.acl_options import acl_document
from ottla.cli.views.output import Json
from ottla.pipeline.definitions.definition import PipelineDefinition

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def state_document(state: ClusterState) -> dict[str, Any]:
    """The document from which `parsing` reads the same state; without passwords, which no cluster discloses."""
    writers: dict[str, Any] = {
        "topics": lambda rows: {name: _topic_document(row) for name, row in sorted(rows.items())},
        "brokers": lambda rows: {name or "default": _settings(row) for name, row in rows.items() if _settings(row)},
        "groups": lambda rows: {name: _settings(row) for name, row in sorted(rows.items())},
        "users": lambda rows: {name: _user_document(row.mechanisms) for name, row in sorted(rows.items())},
        "acls": lambda rows: [acl_document(binding) for binding in sorted(rows)],
        "quotas": lambda rows: list(_quota_documents(rows)),
        "pipelines": lambda rows: {
            name: row.to_document() for name, row in sorted(rows.items()) if isinstance(row, PipelineDefinition)
        },
    }
    found = {name: getattr(state, name) for name in SECTIONS}
    return {"version": VERSION} | {name: writers[name](rows) for name, rows in found.items() if rows is not None}


def _topic_document(topic: TopicState) -> dict[str, Json]:
    numbers = {"partitions": topic.partitions, "replication_factor": topic.replication_factor}
    settings = _settings(topic.settings)
    return {**{key: value for key, value in numbers.items() if value}, **({"configs": settings} if settings else {})}


def _settings(values: Settings) -> dict[str, Json]:
    return {key: _plain_value(value) for key, value in sorted(values.items()) if value is not None}


def _plain_value(text: str) -> Json:
    if _INTEGER.fullmatch(text) and text != "-0":
        return int(text)
    return text == "true" if text in ("true", "false") else text


def _user_document(mechanisms: Mapping[Any, int]) -> dict[str, Json]:
    return {"mechanisms": {each.title: iterations for each, iterations in sorted(mechanisms.items())}}


def _quota_documents(rows: Mapping[Any, Mapping[str, float | None]]) -> Iterator[Json]:
    for entity, values in rows.items():
        parts: dict[str, Json] = {name: part for name, part in entity._asdict().items() if part != ""}
        rates: dict[str, Json] = {
            key: int(value) if value is not None and value.is_integer() else value for key, value in values.items()
        }
        yield {"entity": parts, "quotas": rates}


def change_document(change: Change) -> dict[str, Json]:
    """The JSON form of a change."""
    return {
        "action": change.action,
        "kind": change.kind,
        "name": change.name,
        "before": _json_value(change.before),
        "after": _json_value(change.after),
        "path": change.path,
    }


def _json_value(value: object) -> Json:
    if isinstance(value, Mapping):
        return {str(key): _json_value(each) for key, each in value.items()}
    return value if isinstance(value, str | int | float) or value is None else str(value)
