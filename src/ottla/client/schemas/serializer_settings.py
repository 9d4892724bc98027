"""The settings of serializers and deserializers, by confluent-kafka's keys.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ottla.client.errors import ConfigError
from ottla.client.schemas.subject_names import (
    STRATEGIES,
    SubjectNameStrategy,
    prefix_schema_id_serializer,
    reference_subject_name_strategy,
)

_NAMING: Final = (
    ("use.latest.version", False),
    ("subject.name.strategy", None),
    ("subject.name.strategy.type", "TOPIC"),
)
_WRITING: Final = (
    *_NAMING,
    ("auto.register.schemas", True),
    ("normalize.schemas", False),
    ("schema.id.serializer", prefix_schema_id_serializer),
)
_DEPRECATED: Final = (("use.deprecated.format", False),)
AVRO_WRITING: Final[Mapping[str, Any]] = dict(
    (*_WRITING, ("validate.strict", False), ("validate.strict.allow.default", False))
)
JSON_WRITING: Final[Mapping[str, Any]] = dict((*_WRITING, ("validate", True)))
PROTOBUF_WRITING: Final[Mapping[str, Any]] = dict(
    (
        *_WRITING,
        ("skip.known.types", True),
        ("reference.subject.name.strategy", reference_subject_name_strategy),
        *_DEPRECATED,
    )
)
AVRO_READING: Final[Mapping[str, Any]] = dict(_NAMING)
JSON_READING: Final[Mapping[str, Any]] = dict((*_NAMING, ("validate", True)))
PROTOBUF_READING: Final[Mapping[str, Any]] = dict(_DEPRECATED)


def read_settings(defaults: Mapping[str, Any], conf: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings with their defaults. Raises ConfigError for an unknown key, a wrong type, or a contradiction."""
    given = dict(conf or {})
    if unknown := sorted(given.keys() - defaults.keys()):
        raise ConfigError(f"{unknown[0]} is not a setting of this serializer", f"These are: {', '.join(defaults)}")
    settings = {**defaults, **given}
    for name, default in defaults.items():
        if isinstance(default, bool) and not isinstance(settings[name], bool):
            raise ConfigError(f"{name} is {settings[name]!r}, not True or False")
        if callable(default) and not callable(settings[name]):
            raise ConfigError(f"{name} is {settings[name]!r}, not a function")
    _check_combinations(settings)
    return settings


def _check_combinations(settings: Mapping[str, Any]) -> None:
    if settings.get("use.latest.version") and settings.get("auto.register.schemas"):
        raise ConfigError(
            "use.latest.version and auto.register.schemas are both True", "Set auto.register.schemas to False"
        )
    if settings.get("use.deprecated.format"):
        raise ConfigError("use.deprecated.format is True, which is not supported", "Set it to False")


def subject_strategy(settings: Mapping[str, Any]) -> SubjectNameStrategy:
    """The function that names subjects. Raises ConfigError."""
    function, kind = settings["subject.name.strategy"], str(settings["subject.name.strategy.type"]).upper()
    if function is None and kind not in STRATEGIES:
        raise ConfigError(f"subject.name.strategy.type is {kind}", f"Supported are {', '.join(STRATEGIES)}")
    if function is not None and not callable(function):
        raise ConfigError(f"subject.name.strategy is {function!r}, not a function of a context and a name")
    found: SubjectNameStrategy = STRATEGIES[kind] if function is None else function
    return found
