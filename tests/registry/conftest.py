"""A registry in memory: its routes over a state, with the records that it would write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.registry.errors import RegistryError
from ottla.registry.records import Record
from ottla.registry.registration import Decision
from ottla.registry.routes import READING, WRITING, Raw, Request, Routes
from ottla.registry.state import RegistryState


class MemoryRegistry:
    """Decides, and applies the records at once."""

    def __init__(self) -> None:
        self.state = RegistryState()
        self.written: list[Record] = []
        self._routes = Routes(self.state, "cluster")

    def ask(self, method: str, target: str, body: Any = None, **query: str) -> Any:
        """The answer of a request; of a refused one its error code."""
        handler, parts = _find_route(method, target)
        try:
            answer = handler(self._routes, Request(parts, query, body))
        except RegistryError as error:
            return error.code
        if isinstance(answer, Decision):
            self.apply(*answer.records)
            answer = answer.answer
        return json.loads(answer.text) if isinstance(answer, Raw) else answer

    def apply(self, *records: Record) -> None:
        """Write records."""
        for each in records:
            self.written.append(each)
            self.state.apply(each.key, each.value)

    def register(self, subject: str, schema: Any, kind: str = "AVRO", **more: Any) -> Any:
        """Register a schema; its id, or an error code."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        answer = self.ask("POST", f"/subjects/{subject}/versions", {"schema": text, "schemaType": kind, **more})
        return answer["id"] if isinstance(answer, dict) else answer


def _find_route(method: str, target: str) -> Any:
    words = target.split("/")
    for (verb, pattern), handler in {**READING, **WRITING}.items():
        for prefix in ("", "/contexts/{context}"):
            names = (prefix + pattern).split("/")
            matches = all(name == word or name.startswith("{") for name, word in zip(names, words, strict=False))
            if verb == method and len(names) == len(words) and matches:
                pairs = zip(names, words, strict=True)
                return handler, {name.strip("{}"): word for name, word in pairs if name.startswith("{")}
    raise AssertionError(f"no route for {method} {target}")


@pytest.fixture
def registry() -> MemoryRegistry:
    """An empty registry."""
    return MemoryRegistry()
