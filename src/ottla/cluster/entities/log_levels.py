"""The levels of this broker's loggers, as settings of BROKER_LOGGER resources (KIP-412).

Zone: deterministic. Loggers are those of Python, with Kafka's names of levels; `root` is the one of all others. Levels
are not stored: a restart has those of the command line again. As in Kafka only loggers that exist can be set, the
root's level cannot be deleted, and without a level a logger has that of the next one above.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ottla.cluster.configs import AlterOperation, ConfigSource, ConfigUpdate, DescribedConfig
from ottla.config.rows import LOW, Dynamic, Row, Type
from ottla.errors import ApiError, ErrorCode

ROOT: Final = "root"
LEVELS: Final = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
_PACKAGE: Final = "ottla"
_SHOWN: Final = 100


def describe_loggers(wanted: Sequence[str] | None) -> list[DescribedConfig]:
    """The effective level of each logger; `wanted` None: of all."""
    loggers = _all_loggers()
    names = sorted(loggers) if wanted is None else [name for name in dict.fromkeys(wanted) if name in loggers]
    return [_described(name, loggers[name]) for name in names]


def alter_loggers(changes: Sequence[ConfigUpdate], validate_only: bool) -> None:
    """Set or delete levels; all of them, or none. Raises ApiError INVALID_REQUEST or INVALID_CONFIG, as Kafka."""
    loggers = _all_loggers()
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a logger is named twice")
    levels = [_new_level(change, loggers) for change in changes]
    for name, level in zip(names, [] if validate_only else levels, strict=False):
        loggers[name].setLevel(level)


def _new_level(change: ConfigUpdate, loggers: dict[str, logging.Logger]) -> int:
    name = change.name
    if name not in loggers:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {name[:_SHOWN]} does not exist!")
    if change.operation == AlterOperation.DELETE:
        if name == ROOT:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")
        return logging.NOTSET
    if change.operation != AlterOperation.SET:
        raise ApiError(ErrorCode.INVALID_REQUEST, "only SET and DELETE are allowed for BROKER_LOGGER resources")
    level = LEVELS.get(change.value or "")
    if level is None:
        text = (
            f"Cannot set the log level of {name} to {(change.value or '')[:_SHOWN]!r}; it is one of {', '.join(LEVELS)}"
        )
        raise ApiError(ErrorCode.INVALID_CONFIG, text)
    return level


def _all_loggers() -> dict[str, logging.Logger]:
    """The root, and all loggers of this program that exist. Others' (asyncio, kazoo) are below the root."""
    known = list(logging.root.manager.loggerDict.items())
    own = ((name, each) for name, each in known if name.partition(".")[0] == _PACKAGE)
    return {ROOT: logging.getLogger(), **{name: each for name, each in own if isinstance(each, logging.Logger)}}


def _described(name: str, logger: logging.Logger) -> DescribedConfig:
    row = Row(name, Type.STRING, "INFO", "Level of this logger.", None, LOW, Dynamic.CLUSTER_WIDE, ())
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return DescribedConfig(row, _name_of(logger.getEffectiveLevel()), source, False, ())


def _name_of(level: int) -> str:
    """Kafka's name of a level: the highest that is not above it."""
    return next((name for name, number in reversed(LEVELS.items()) if number <= level), "TRACE")
