"""The context of a key or value that is serialized, and the serializers that want it.

Zone: pure. The names are those of confluent-kafka, whose functions of a context work with these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any


class MessageField:
    """The part of a record."""

    KEY = "key"
    VALUE = "value"


class SerializationContext:
    """The topic and the headers of a record, of which a key or value is serialized or deserialized."""

    __slots__ = ("field", "headers", "topic")

    def __init__(self, topic: str, field: str, headers: Any = None) -> None:
        """field: of MessageField. headers: a list of pairs or a dict; a serializer may add some to it."""
        self.topic = topic
        self.field = field
        self.headers = headers


class RecordSerializer(ABC):
    """A serializer that a producer calls with a context besides the key or value."""

    @abstractmethod
    def __call__(self, obj: Any, ctx: SerializationContext) -> bytes | None:
        """The bytes of a key or value. Headers that it adds to the context are sent with the record."""


class RecordDeserializer(ABC):
    """A deserializer that a consumer calls with a key or value and its context."""

    @abstractmethod
    def __call__(self, data: bytes | None, ctx: SerializationContext) -> Any:
        """The key or value of some bytes."""


def header_pairs(headers: Any) -> Iterable[tuple[str, Any]]:
    """The headers of a context as pairs."""
    return headers.items() if isinstance(headers, dict) else headers or ()
