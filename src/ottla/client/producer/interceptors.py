"""What happens to a record before it is accepted: interceptors, then serializers.

Zone: real. Users' code runs here, in the thread that sends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from ottla.client.errors import ClientError, UsageError
from ottla.client.producer.config import Serializer
from ottla.client.producer.futures import RecordMetadata
from ottla.client.timestamps import Timestamp
from ottla.record.batch import Headers

_log = logging.getLogger("ottla.client.producer")

DeliveryCallback = Callable[[RecordMetadata | None, ClientError | None], object]


class ProducerRecord(NamedTuple):
    """A record as the application sends it."""

    topic: str
    value: Any
    key: Any
    headers: Any
    partition: int | None
    timestamp: Timestamp | None


class Interceptor(Protocol):
    """Sees every record before serializers do, and every outcome before callbacks do."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send in its place. What it raises is logged, and the record sent as it was."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        """In the sender's thread; what it raises is logged."""
        ...


class InterceptorChain:
    """The interceptors and serializers of one producer."""

    __slots__ = ("_interceptors", "_key", "_value")

    def __init__(self, key: Serializer | None, value: Serializer | None, interceptors: tuple[Interceptor, ...]) -> None:
        self._key = key
        self._value = value
        self._interceptors = interceptors

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._interceptors or self._key or self._value)

    def check_columns(self) -> None:
        """Raises UsageError when there is something to do, for a table goes as it is."""
        if self.is_needed:
            raise UsageError(
                "this producer's serializers and interceptors are for records, a table is sent as it is",
                "Send tables with a producer without them",
            )

    def prepare_record(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp: Timestamp | None,
        told: DeliveryCallback | None,
    ) -> tuple[str, Any, Any, Any, int | None, Timestamp | None, DeliveryCallback | None]:
        """The record to send and whom to tell. Raises UsageError when a serializer raises."""
        record = ProducerRecord(topic, value, key, headers, partition, timestamp)
        for interceptor in self._interceptors:
            try:
                record = interceptor.on_send(record)
            except Exception:  # noqa: BLE001  users' code
                _log.exception("an interceptor's on_send raised")
        key = _serialized("key", self._key, record.key)
        value = _serialized("value", self._value, record.value)
        told = self._acknowledging(told) if self._interceptors else told
        return record.topic, value, key, record.headers, record.partition, record.timestamp, told

    def _acknowledging(self, told: DeliveryCallback | None) -> DeliveryCallback:
        def tell(metadata: RecordMetadata | None, error: ClientError | None) -> None:
            for interceptor in self._interceptors:
                try:
                    interceptor.on_acknowledgement(metadata, error)
                except Exception:  # noqa: BLE001  users' code
                    _log.exception("an interceptor's on_acknowledgement raised")
            if told is not None:
                told(metadata, error)

        return tell


def _serialized(what: str, serializer: Serializer | None, content: Any) -> Any:
    if serializer is None or content is None:
        return content
    try:
        return serializer(content)
    except Exception as error:
        raise UsageError(f"the {what} serializer raised {error!r}", "The record was not accepted") from error


def plain_headers(headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]) -> Headers:
    """Headers as pairs, names in order; names may repeat. Raises UsageError for what is none."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple((name, content) for name, content in pairs)
    except (TypeError, ValueError):
        raise UsageError("headers are no pairs of a name and bytes", "Give a mapping, or a list of pairs") from None
