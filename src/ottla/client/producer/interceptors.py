"""Runs a producer's interceptors and serializers on a record before it is accepted.

Zone: real. Users' code runs here, in the thread that calls `send`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from ottla.client.errors import ClientError, UsageError
from ottla.client.producer.config import Serializer
from ottla.client.producer.futures import RecordMetadata
from ottla.client.schemas.contexts import MessageField, RecordSerializer, SerializationContext
from ottla.client.timestamps import Timestamp
from ottla.record.batch import Headers

_log = logging.getLogger("ottla.client.producer")

_FieldSerializer = Callable[[Any, str, Any], Any]
DeliveryCallback = Callable[[RecordMetadata | None, ClientError | None], object]


class ProducerRecord(NamedTuple):
    """A record as the application passes it to `send`."""

    topic: str
    value: Any
    key: Any
    headers: Any
    partition: int | None
    timestamp: Timestamp | None


class Interceptor(Protocol):
    """Gets every record before the serializers, and every outcome before the callbacks."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send instead. If it raises, the error is logged, and the unchanged record is sent."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        """Called in the sender's thread; errors are logged."""
        ...


class InterceptorChain:
    """The interceptors and serializers of one producer."""

    __slots__ = ("_has_context", "_interceptors", "_key", "_value")

    def __init__(
        self,
        key: Serializer | None,
        value: Serializer | None,
        interceptors: tuple[Interceptor, ...],
    ) -> None:
        self._key = _with_context(key, MessageField.KEY)
        self._value = _with_context(value, MessageField.VALUE)
        self._has_context = isinstance(key, RecordSerializer) or isinstance(value, RecordSerializer)
        self._interceptors = interceptors

    @property
    def is_needed(self) -> bool:
        """Whether there is an interceptor or a serializer."""
        return bool(self._interceptors or self._key or self._value)

    def check_columns(self) -> None:
        """Raises UsageError if there is one, because tables are sent unchanged."""
        if self.is_needed:
            raise UsageError(
                "this producer has serializers or interceptors, which do not run for tables",
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
        """The record to send, and its delivery callback. Raises UsageError if a serializer raises.

        A ClientError of a serializer is raised as it is.
        """
        record = ProducerRecord(topic, value, key, headers, partition, timestamp)
        for interceptor in self._interceptors:
            try:
                record = interceptor.on_send(record)
            except Exception:  # noqa: BLE001  users' code
                _log.exception("producer: on_send of an interceptor raised; sending the record as it was before")
        # One list for key and value: a serializer with a context may add headers to it.
        headers = list(plain_headers(record.headers or ())) if self._has_context else record.headers
        key = _serialize_field("key", self._key, record.key, record.topic, headers)
        value = _serialize_field("value", self._value, record.value, record.topic, headers)
        told = self._acknowledgement_callback(told) if self._interceptors else told
        return record.topic, value, key, headers, record.partition, record.timestamp, told

    def _acknowledgement_callback(self, told: DeliveryCallback | None) -> DeliveryCallback:
        def tell(metadata: RecordMetadata | None, error: ClientError | None) -> None:
            for interceptor in self._interceptors:
                try:
                    interceptor.on_acknowledgement(metadata, error)
                except Exception:  # noqa: BLE001  users' code
                    _log.exception("producer: on_acknowledgement of an interceptor raised; ignoring that")
            if told is not None:
                told(metadata, error)

        return tell


def _with_context(serializer: Serializer | None, field: str) -> _FieldSerializer | None:
    """The serializer as a function of the content, the topic and the list of headers."""
    if serializer is None:
        return None
    if isinstance(serializer, RecordSerializer):
        in_context = serializer
        return lambda content, topic, headers: in_context(content, SerializationContext(topic, field, headers))
    plain = serializer
    return lambda content, _topic, _headers: plain(content)


def _serialize_field(what: str, serializer: _FieldSerializer | None, content: Any, topic: str, headers: Any) -> Any:
    if serializer is None or content is None:
        return content
    try:
        return serializer(content, topic, headers)
    except ClientError:
        raise  # it has a name and a next step, and it says whether a retry can help
    except Exception as error:
        raise UsageError(f"the {what} serializer raised {error!r}; the record was not accepted") from error


def plain_headers(headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]) -> Headers:
    """Headers as pairs, in order; names may repeat. Raises UsageError if they are not pairs."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple((name, content) for name, content in pairs)
    except (TypeError, ValueError):
        raise UsageError("headers are not pairs of a name and bytes", "Give a mapping, or a list of pairs") from None
