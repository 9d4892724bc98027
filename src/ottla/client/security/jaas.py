"""Kafka's `sasl.jaas.config`, as clients set it.

Zone: pure.
"""

from __future__ import annotations

from ottla.client.errors import ConfigError
from ottla.config.jaas import parse_entry


def parse_jaas(text: str) -> dict[str, str]:
    """The options of `MODULE required key="value" …;` by name.

    Raises ConfigError, which does not quote the text, because it contains a password.
    """
    try:
        return parse_entry(text).options
    except ValueError as error:
        raise ConfigError(f"sasl.jaas.config {error}", _EXAMPLE) from None


_EXAMPLE = (
    'Write org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";'
    " or set sasl.username and sasl.password"
)
