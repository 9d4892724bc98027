"""Values with the schemas of a registry, which a server in a thread has.

Zone: real.
"""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple

import fastavro
from tests.registry.server_test import ServiceInMemory, served
from tests.tables.conftest import Topic

from ottla.client import Producer
from ottla.client.schemas.registry import RegisteredSchema, SchemaRegistry
from ottla.schemas.framing import write_framing

__all__ = ["ServiceInMemory", "served"]


class Registered(NamedTuple):
    """A registry and a topic's subject."""

    port: int
    topic: Topic

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def register(self, schema: Any, kind: str = "AVRO", subject: str = "") -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        registry = SchemaRegistry(self.url)
        return registry.register(subject or f"{self.topic.name}-{len(text)}-value", RegisteredSchema(text, kind))

    def send(self, *values: bytes | None, key: str = "key", partition: int = 0) -> None:
        """One record per value; keys are numbered."""
        with Producer({"bootstrap.servers": self.topic.bootstrap}) as producer:
            for at, value in enumerate(values):
                headers = [("at", b"%d" % at)]
                producer.send(self.topic.name, value, key=f"{key}-{at}".encode(), headers=headers, partition=partition)


def record(**fields: Any) -> dict[str, Any]:
    """An Avro record; a field's value is its type."""
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def framed(number: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return write_framing(number, out.getvalue())
