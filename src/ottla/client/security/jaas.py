"""Kafka's `sasl.jaas.config`: a login module's name and its options.

Zone: pure. Reads only the one-line form of client properties, not JAAS files.
"""

from __future__ import annotations

import shlex

from ottla.client.errors import ConfigError


def parse_jaas(text: str) -> dict[str, str]:
    """The options of `MODULE required key="value" …;` by name.

    Raises ConfigError, which does not quote the text, because it contains a password.
    """
    try:
        words = shlex.split(text.strip().removesuffix(";"))
    except ValueError as error:
        raise ConfigError(f"sasl.jaas.config cannot be read: {error}", _EXAMPLE) from None
    if len(words) < 2 or words[1].lower() not in _FLAGS:
        raise ConfigError("sasl.jaas.config is not a module, a flag and options", _EXAMPLE)
    options: dict[str, str] = {}
    for word in words[2:]:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ConfigError("an option of sasl.jaas.config has no '='", _EXAMPLE)
        options[name] = value
    return options


_FLAGS = ("required", "requisite", "sufficient", "optional")
_EXAMPLE = (
    'Write org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";'
    " or set sasl.username and sasl.password"
)
