"""Makes the producer or the consumer that a command's options describe.

Zone: real. Settings only: each command decides what it writes and reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ottla.cli.options import DEFAULT_TIMEOUT_S, ClientSettings, option_value, settings_of_side

if TYPE_CHECKING:
    from ottla.client import Consumer, Producer
    from ottla.client.producer.failed_records import FailedRecord

_REQUEST_TIMEOUT_MS = 30_000
_LINGER_MS = 5


def make_producer(
    defaults: ClientSettings | None = None,
    overrides: ClientSettings | None = None,
    on_failed: Callable[[FailedRecord], object] | None = None,
    side: str | None = None,
    ignored: Collection[str] = (),
) -> Producer:
    """A producer; close it. `--timeout` bounds how long a record may take, and how long a call may block.

    Arguments as of `settings_of_side`, and the producer's. ignored: keys of the command's other client. Raises
    ConfigError.
    """
    from ottla.client.producer import Producer
    from ottla.client.producer.config import PRODUCER_KEYS

    patience_ms = int(option_value("timeout_s", DEFAULT_TIMEOUT_S) * 1000)
    settings = settings_of_side(side, {"max.block.ms": patience_ms, **(defaults or {})}, overrides, PRODUCER_KEYS)
    settings = _without_keys(settings, ignored, PRODUCER_KEYS)
    settings.setdefault("request.timeout.ms", _request_timeout_ms(settings))
    return Producer(settings, on_failed=on_failed)


def _request_timeout_ms(settings: ClientSettings) -> int:
    """Kafka's default, or less where `delivery.timeout.ms` is shorter."""
    try:
        room = int(settings["delivery.timeout.ms"]) - int(settings.get("linger.ms", _LINGER_MS))
    except ValueError:  # the producer reports what is wrong with them
        return _REQUEST_TIMEOUT_MS
    return max(1, min(_REQUEST_TIMEOUT_MS, room))


def make_consumer(
    defaults: ClientSettings | None = None,
    overrides: ClientSettings | None = None,
    side: str | None = None,
    ignored: Collection[str] = (),
) -> Consumer:
    """A consumer; close it. Arguments as of `make_producer`. Raises ConfigError."""
    from ottla.client import Consumer
    from ottla.client.consumer.settings import CONSUMER_KEYS

    settings = settings_of_side(side, defaults, overrides, CONSUMER_KEYS)
    return Consumer(_without_keys(settings, ignored, CONSUMER_KEYS))


def _without_keys(settings: ClientSettings, ignored: Collection[str], own: Collection[str]) -> ClientSettings:
    """The settings without those that only the other client has."""
    from ottla.client.settings import is_shared

    return {key: value for key, value in settings.items() if key not in ignored or key in own or is_shared(key)}
