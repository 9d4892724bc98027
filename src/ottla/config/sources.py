"""Reads configuration text from Java properties, TOML and environment variables, and merges it.

Zone: pure. The input is the text of a file, never a file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Final

from ottla.config.rows import ConfigError

ENVIRONMENT_PREFIX: Final = "KAFKA_"
_NOT_KEYS: Final = frozenset(
    {
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPTS",
        "KAFKA_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_DEBUG",
        "KAFKA_HOME",
        "KAFKA_MODE",
        "KAFKA_ADVERTISED_HOST_NAME",
    }
)
_NOT_KEY_PREFIXES: Final = ("KAFKA_JMX_", "KAFKA_LOG4J_", "KAFKA_JVM_", "KAFKA_TOOLS_", "KAFKA_CLUSTER_CLI")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNDERSCORES: Final = re.compile(r"_+")


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java .properties file: comments, continued lines, escapes, `=`, `:` or blanks between key and value.

    A repeated key has its last value. Raises ConfigError for a broken \\uXXXX.
    """
    pairs: dict[str, str] = {}
    for line in _logical_lines(text):
        # Cut before the escapes are replaced: an escaped `=` or blank is part of the key.
        cut = _key_end(line)
        name = _unescape_text(line[:cut])
        rest = line[cut:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        pairs[name] = _unescape_text(rest)
    return pairs


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones. An odd number of backslashes at the end of a line continues it."""
    pending = ""
    for raw in re.split(r"\r\n|\n|\r", text):
        line = raw.lstrip(" \t\f")
        # A line that continues another one is never a comment, as in java.util.Properties.
        if not pending and (not line or line[0] in "#!"):
            continue
        # An even number of backslashes is escaped backslashes, and the line ends.
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    # The last line ends with a backslash: java.util.Properties takes what it has.
    if pending:
        yield pending


def _key_end(line: str) -> int:
    escaped = False
    for position, letter in enumerate(line):
        if not escaped and letter in "=: \t\f":
            return position
        escaped = letter == "\\" and not escaped
    return len(line)


def _unescape_text(text: str) -> str:
    if "\\" not in text:
        return text
    return re.sub(r"\\(u[0-9a-fA-F]{4}|.|$)", _unescape_one, text, flags=re.DOTALL)


def _unescape_one(match: re.Match[str]) -> str:
    body = match.group(1)
    if len(body) == 5:
        return chr(int(body[1:], 16))
    if body == "u":
        raise ConfigError("properties", "\\u must be followed by four hexadecimal digits")
    return _ESCAPES.get(body, body)


def parse_toml(text: str) -> dict[str, str]:
    """Parse a TOML file with Kafka's dotted keys. Tables and dotted keys are equivalent; a list becomes a comma list.

    Raises ConfigError when it is not TOML, or a value has no text form (a date, a list of tables).
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            "toml", f"{error}; a key that is also the beginning of another one has to be quoted"
        ) from None
    return dict(_flatten_table("", document))


def _flatten_table(prefix: str, table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten_table(f"{prefix}{name}.", value)
        else:
            yield prefix + name, _toml_text(prefix + name, value)


def _toml_text(name: str, value: object) -> str:
    # Before the numbers: a bool is an int, and `str` would give True for it.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list):
        return ",".join(_toml_text(name, item) for item in value)
    raise ConfigError(name, "must be a text, a number, true, false or a list of these")


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Read keys from KAFKA_… variables: `_` means a dot, `__` an underscore, `___` a dash."""
    pairs: dict[str, str] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == ENVIRONMENT_PREFIX:
            continue
        if variable in _NOT_KEYS or variable.startswith(_NOT_KEY_PREFIXES):
            continue
        name = _UNDERSCORES.sub(_name_separators, variable[len(ENVIRONMENT_PREFIX) :].lower())
        pairs[name] = environment[variable]
    return pairs


def _name_separators(match: re.Match[str]) -> str:
    # Longest first: three underscores are a dash, so four of them are a dash and a dot.
    count = len(match.group())
    return "-" * (count // 3) + ("", ".", "_")[count % 3]


def parse_assignment(text: str) -> tuple[str, str]:
    """Parse the `key=value` of a flag. Raises ConfigError if the `=` or the key is missing."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(text[:80], "is not key=value")
    return name.strip(), value.strip()


def merge_layers(*layers: Mapping[str, str]) -> dict[str, str]:
    """Merge several mappings, the strongest first: flags, environment, file."""
    # From the weakest to the strongest layer, so that `update` keeps the value of the strongest.
    merged: dict[str, str] = {}
    for layer in reversed(layers):
        merged.update(layer)
    return merged
