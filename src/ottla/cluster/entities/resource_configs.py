"""The settings of groups and of client metrics, as DescribeConfigs and AlterConfigs see them.

Zone: deterministic. Any group and any subscription can have settings; what has none has the defaults, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.cluster.configs import (
    ConfigSource,
    ConfigUpdate,
    DescribedConfig,
    Resource,
    Synonym,
    alter_config,
    replace_config,
)
from ottla.cluster.entities.entity_reader import CLIENT_METRICS, GROUPS
from ottla.config.resources import CLIENT_METRICS_ROWS, GROUP_BROKER_KEYS, GROUP_ROWS
from ottla.config.rows import ConfigError, Row, parse_value, render_value
from ottla.errors import ApiError, ErrorCode
from ottla.znodes.entity_nodes import decode_name, encode_name, fault_of_entity_name

_ROWS: Final[Mapping[Resource, Mapping[str, Row]]] = {
    Resource.GROUP: GROUP_ROWS,
    Resource.CLIENT_METRICS: CLIENT_METRICS_ROWS,
}
_KINDS: Final = {GROUPS: Resource.GROUP, CLIENT_METRICS: Resource.CLIENT_METRICS}
_SOURCES: Final = {
    Resource.GROUP: ConfigSource.DYNAMIC_GROUP_CONFIG,
    Resource.CLIENT_METRICS: ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG,
}
_REFUSED: Final = {
    Resource.GROUP: ErrorCode.INVALID_CONFIG,
    Resource.CLIENT_METRICS: ErrorCode.INVALID_REQUEST,
}
"""Kafka's error for a value that is refused …"""
_REFUSED_OF_KEY: Final = {"match": ErrorCode.INVALID_CONFIG}
"""… and where another one is the error of a key."""
_SHOWN: Final = 100


class ResourceConfigs:
    """The settings that exist."""

    def __init__(self, on_subscription: Callable[[str, Mapping[str, str]], None]) -> None:
        """`on_subscription` receives the name of a subscription of client metrics, and its settings."""
        self._on_subscription = on_subscription
        self._stored: dict[Resource, dict[str, Mapping[str, str]]] = {kind: {} for kind in _ROWS}

    def on_config(self, path: str, config: Mapping[str, str]) -> None:
        """Take the settings of `groups/…` or `client-metrics/…`; none: they were deleted."""
        kind, _, node = path.partition("/")
        resource, name = _KINDS[kind], decode_name(node) or ""
        if config:
            self._stored[resource][name] = config
        else:
            self._stored[resource].pop(name, None)
        if resource is Resource.CLIENT_METRICS:
            self._on_subscription(name, config)

    def names_of(self, resource: Resource) -> list[str]:
        """The names of the resources of a type that have settings, sorted."""
        return sorted(self._stored[resource])

    def describe_resource(self, resource: Resource, name: str, wanted: Sequence[str] | None) -> list[DescribedConfig]:
        """The settings of a resource; `wanted` None: all. Raises ApiError INVALID_REQUEST for an impossible name."""
        _check_name(name)
        stored, rows = self._stored[resource].get(name, {}), _ROWS[resource]
        names = sorted(rows) if wanted is None else [key for key in dict.fromkeys(wanted) if key in rows]
        return [_described(rows[key], stored.get(key), _SOURCES[resource]) for key in names]

    def change_of(
        self, resource: Resource, name: str, changes: Sequence[ConfigUpdate], incremental: bool
    ) -> Callable[[Mapping[str, str]], dict[str, str]]:
        """The function that computes the new settings. It raises ApiError if they are refused."""
        _check_name(name)
        rows = _ROWS[resource]

        def change(present: Mapping[str, str]) -> dict[str, str]:
            effective = {key: present.get(key, render_value(row.default)) for key, row in rows.items()}
            after = alter_config(present, rows, effective, changes) if incremental else replace_config(changes)
            for key, text in after.items():
                if present.get(key) != text:
                    _check_value(resource, key, text)
            return after

        return change

    def present_config(self, resource: Resource, name: str) -> Mapping[str, str]:
        """The settings that a resource has."""
        return self._stored[resource].get(name, {})


def resource_path(resource: Resource, name: str) -> str:
    """The path of a resource below /config."""
    kind = GROUPS if resource is Resource.GROUP else CLIENT_METRICS
    return f"{kind}/{encode_name(name)}"


def _check_name(name: str) -> None:
    fault = fault_of_entity_name(name)
    if fault:
        raise ApiError(ErrorCode.INVALID_REQUEST, fault)


def _check_value(resource: Resource, key: str, text: str) -> None:
    row = _ROWS[resource].get(key)
    if row is None:
        kind = "group" if resource is Resource.GROUP else "client metrics"
        raise ApiError(_REFUSED[resource], f"Unknown {kind} configuration: {key[:_SHOWN]}")
    try:
        parse_value(row, text)
    except ConfigError as error:
        raise ApiError(_REFUSED_OF_KEY.get(key, _REFUSED[resource]), str(error)) from None


def _described(row: Row, stored: str | None, source: ConfigSource) -> DescribedConfig:
    default = render_value(row.default)
    broker_key = GROUP_BROKER_KEYS.get(row.name, row.name)
    synonyms = [] if default is None else [Synonym(broker_key, default, ConfigSource.DEFAULT_CONFIG)]
    if stored is None:
        return DescribedConfig(row, default, ConfigSource.DEFAULT_CONFIG, False, tuple(synonyms))
    return DescribedConfig(row, stored, source, False, (Synonym(row.name, stored, source), *synonyms))
