"""The features that Apache Kafka 4.4 knows, the levels of each, and the names of the levels of metadata.version.

Zone: pure. The tables are those of Kafka's releases; `feature=level` is parsed by the rules of Kafka's tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.kafka_tools.options import ToolError

METADATA_VERSION: Final = "metadata.version"
_FIRST_LEVEL: Final = 7
_NAMES: Final = (
    "3.3-IV3",
    "3.4-IV0",
    "3.5-IV0",
    "3.5-IV1",
    "3.5-IV2",
    "3.6-IV0",
    "3.6-IV1",
    "3.6-IV2",
    "3.7-IV0",
    "3.7-IV1",
    "3.7-IV2",
    "3.7-IV3",
    "3.7-IV4",
    "3.8-IV0",
    "3.9-IV0",
    "4.0-IV0",
    "4.0-IV1",
    "4.0-IV2",
    "4.0-IV3",
    "4.1-IV0",
    "4.1-IV1",
    "4.2-IV0",
    "4.2-IV1",
    "4.3-IV0",
    "4.4-IV0",
    "4.4-IV1",
    "4.4-IV2",
    "4.5-IV0",
)
"""The levels from `_FIRST_LEVEL` on. Kafka 4 has no names for older ones."""
LATEST_STABLE: Final = "4.4-IV2"
"""The last level that is not under development."""
_LEVELS: Final = {name: level for level, name in enumerate(_NAMES, _FIRST_LEVEL)}
_RELEASES: Final = {name.partition("-")[0]: level for name, level in _LEVELS.items() if level <= _LEVELS[LATEST_STABLE]}
"""The last stable level of each release."""
_SINCE: Final[Mapping[str, tuple[str, ...]]] = {
    "kraft.version": ("3.9-IV0",),
    "transaction.version": ("4.0-IV2", "4.0-IV2"),
    "group.version": ("4.0-IV0",),
    "eligible.leader.replicas.version": ("4.1-IV0",),
    "share.version": ("4.2-IV0", "4.4-IV0"),
    "streams.version": ("4.2-IV1",),
}
"""The metadata.version with which the levels from 1 on became the default."""
_REQUIRED: Final = {("eligible.leader.replicas.version", 1): "4.0-IV1"}
"""The metadata.version that a level of a feature requires."""
_SHORT_MAX: Final = 32767


def level_name(feature: str, level: int) -> str:
    """A level as the list of features shows it: a name for those of metadata.version."""
    if feature != METADATA_VERSION:
        return str(level)
    return _metadata_name(level) or f"UNKNOWN {level}"


def _metadata_name(level: int) -> str:
    return _NAMES[level - _FIRST_LEVEL] if _FIRST_LEVEL <= level < _FIRST_LEVEL + len(_NAMES) else ""


def metadata_level(version: str) -> int:
    """The level of `4.0-IV1`, or the last stable one of a release: `4.0`, `4.0.1`. Raises ToolError."""
    # As in Kafka: only the first two parts count, and empty ones at the end are not parts, but are no release either.
    parts = version.rstrip(".").split(".")
    name = ".".join(parts[:2]) if len(parts) > 2 else version
    level = _LEVELS.get(name) or _RELEASES.get(name)
    if level is None:
        known = ", ".join(_NAMES)
        raise ToolError(f"Unknown {METADATA_VERSION} '{version}'. Supported {METADATA_VERSION} are: {known}")
    return level


def default_levels(metadata: int) -> dict[str, int]:
    """The levels of the other features that a new cluster of a metadata.version has."""
    return {name: sum(_LEVELS[each] <= metadata for each in since) for name, since in _SINCE.items()}


def describe_dependencies(feature: str, level: int) -> str:
    """The lines about the levels that a level requires. Raises ToolError for a level that Kafka does not know."""
    if feature == METADATA_VERSION:
        if name := _metadata_name(level):
            return f"{feature}={level} ({name}) has no dependencies."
        raise ToolError(f"Unknown {feature} {level}")
    if feature not in _SINCE:
        raise ToolError(f"Unknown feature: {feature}")
    if not 0 <= level <= len(_SINCE[feature]):
        raise ToolError(f"No feature:{feature} with feature level {level}")
    required = _REQUIRED.get((feature, level))
    if required is None:
        return f"{feature}={level} has no dependencies."
    return f"{feature}={level} requires:\n    {METADATA_VERSION}={_LEVELS[required]} ({required})"


def parse_level(word: str) -> tuple[str, int]:
    """Name and level of `feature=level`. Raises ToolError."""
    name, equals, text = word.partition("=")
    if not equals:
        raise ToolError(f"Can't parse feature=level string {word}: equals sign not found.")
    text = text.strip()
    try:
        level = int(text)
    except ValueError:
        # Out of range, so that text and numbers that are too large get one message.
        level = _SHORT_MAX + 1
    if not -_SHORT_MAX - 1 <= level <= _SHORT_MAX or "_" in text:
        raise ToolError(f"Can't parse feature=level string {word}: unable to parse {text} as a short.")
    return name.strip(), level
