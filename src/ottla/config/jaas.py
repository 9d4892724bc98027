"""A line of Kafka's `sasl.jaas.config`: the name of a login module, a flag, and options.

Zone: pure. The one-line form of properties, with one module; not JAAS files. Errors do not quote the text, because it
contains passwords.
"""

from __future__ import annotations

import shlex
from typing import Final, NamedTuple

FLAGS: Final = ("required", "requisite", "sufficient", "optional")


class JaasEntry(NamedTuple):
    """A login module with its options."""

    module: str
    """The last word of its name: PlainLoginModule."""
    options: dict[str, str]

    def __repr__(self) -> str:
        """Without the options, which are passwords."""
        return f"JaasEntry({self.module})"


def parse_entry(text: str) -> JaasEntry:
    """Parse `MODULE required key="value" …;`. Raises ValueError."""
    try:
        # Its quotes are near enough to those of JAAS: a password with blanks or semicolons is in double quotes.
        words = shlex.split(text.strip().removesuffix(";"))
    except ValueError as error:
        raise ValueError(f"cannot be read: {error}") from None
    if len(words) < 2 or words[1].lower() not in FLAGS:
        raise ValueError("is not a module, a flag and options")
    options: dict[str, str] = {}
    for word in words[2:]:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ValueError("has an option without '='")
        options[name] = value
    return JaasEntry(words[0].rpartition(".")[2], options)
