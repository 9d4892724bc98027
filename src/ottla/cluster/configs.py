"""Settings that change while the cluster runs: the source of each value, and the result of a change.

Zone: pure. Text in, text out; the order of precedence is topic, this broker, all brokers, file, default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from ottla.config.broker import BROKER_ROWS, BrokerConfig, find_row
from ottla.config.broker_listeners import LISTENER_PREFIX
from ottla.config.names import OLD_BROKER_NAMES, nearest_key_hint, unsupported_reason
from ottla.config.rows import ConfigError, Dynamic, Row, Type, parse_value, render_value
from ottla.config.topic import TOPIC_ROWS, TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.utf8 import readable_text

MAX_VALUE: Final = 32_767
"""Limit in bytes of one value, which is the longest string of the protocol, so that DescribeConfigs can return it."""


class ConfigSource(IntEnum):
    """The source of a value, by its number in DescribeConfigs (KIP-226)."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class Resource(IntEnum):
    """A kind of resource that has settings, by its number in the configuration APIs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterOperation(IntEnum):
    """An operation of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Synonym(NamedTuple):
    """A value of a key or of one of its synonyms, with its source."""

    name: str
    value: str
    source: ConfigSource


class DescribedConfig(NamedTuple):
    """One key with its value, its source, and the values that would replace it in order."""

    row: Row
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: tuple[Synonym, ...]


class Layers(NamedTuple):
    """The settings of one broker by origin, strongest first."""

    own: Mapping[str, str]
    shared: Mapping[str, str]
    static: Mapping[str, str]

    def synonyms_of(self, names: Sequence[str]) -> Iterator[Synonym]:
        """Every value under these names, by origin and then by name; defaults last.

        As in Kafka, the list does not begin with a default of another name than the first: it has another unit.
        """
        # Only defaults are restricted: a value that was set counts under any of the names.
        first = names[:1]
        for synonym in self._all_synonyms(names):
            if synonym.source is not ConfigSource.DEFAULT_CONFIG or synonym.name in first:
                first = names
            if first == names:
                yield synonym

    def _all_synonyms(self, names: Sequence[str]) -> Iterator[Synonym]:
        for values, source in (
            (self.own, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self.shared, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.static, ConfigSource.STATIC_BROKER_CONFIG),
        ):
            for name in names:
                if name in values:
                    yield Synonym(name, values[name], source)
        for name in names:
            default = render_value(BROKER_ROWS[name].default) if name in BROKER_ROWS else None
            if default is not None:
                yield Synonym(name, default, ConfigSource.DEFAULT_CONFIG)

    def resolve_layers(self) -> BrokerConfig:
        """The configuration that these layers result in. Raises ConfigError."""
        return BrokerConfig.from_properties({**self.static, **self.shared, **self.own})[0]


def describe_topic(
    overrides: Mapping[str, str], config: TopicConfig, layers: Layers, wanted: Sequence[str] | None
) -> list[DescribedConfig]:
    """The settings of a topic; `wanted` None: all of them. Unknown names are left out, as in Kafka."""
    found = []
    for row in _wanted_rows(TOPIC_ROWS, wanted):
        synonyms = list(layers.synonyms_of(row.synonyms))
        if row.name in overrides:
            synonyms.insert(0, Synonym(row.name, overrides[row.name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        value = render_value(getattr(config, row.attribute))
        found.append(DescribedConfig(row, value, source, False, tuple(synonyms)))
    return found


def describe_broker(config: BrokerConfig, layers: Layers, wanted: Sequence[str] | None) -> list[DescribedConfig]:
    """The effective settings of a broker."""
    found = []
    for row in _wanted_rows(BROKER_ROWS, wanted):
        synonyms = [] if row.sensitive else list(layers.synonyms_of((row.name, *_fallback_keys(row))))
        own = [synonym for synonym in synonyms if synonym.name == row.name]
        source = own[0].source if own else ConfigSource.DEFAULT_CONFIG
        value = None if row.sensitive else render_value(config.value_of(row))
        found.append(DescribedConfig(row, value, source, row.dynamic is Dynamic.READ_ONLY, tuple(synonyms)))
    return found + _describe_listeners(layers, wanted)


def _describe_listeners(layers: Layers, wanted: Sequence[str] | None) -> list[DescribedConfig]:
    """The settings of single listeners, as far as they were set: `listener.name.<listener>.<key>`."""
    names = {name for layer in layers for name in layer if name.startswith(LISTENER_PREFIX)}
    found = []
    for row in _wanted_rows({name: row for name in names if (row := find_row(name))}, wanted):
        first = next(layers.synonyms_of((row.name,)))
        value, synonyms = (None, ()) if row.sensitive else (first.value, (first,))
        found.append(DescribedConfig(row, value, first.source, row.dynamic is Dynamic.READ_ONLY, synonyms))
    return found


def describe_shared(shared: Mapping[str, str], wanted: Sequence[str] | None) -> list[DescribedConfig]:
    """The dynamic settings of all brokers together; only those that were set."""
    found = []
    for row in _wanted_rows(BROKER_ROWS, wanted):
        if row.name in shared:
            synonym = Synonym(row.name, shared[row.name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
            value = None if row.sensitive else shared[row.name]
            found.append(DescribedConfig(row, value, synonym.source, False, () if row.sensitive else (synonym,)))
    return found


def _wanted_rows(rows: Mapping[str, Row], wanted: Sequence[str] | None) -> list[Row]:
    names = sorted(rows) if wanted is None else [name for name in dict.fromkeys(wanted) if name in rows]
    return [rows[name] for name in names]


_CHAINS: Final = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
)


def _fallback_keys(row: Row) -> tuple[str, ...]:
    """Keys of the broker that are used when this one is not set."""
    for chain in _CHAINS:
        if row.name == chain[0]:
            return chain[1:]
    return ()


# -- changes ---------------------------------------------------------------------------------------------------------


class ConfigUpdate(NamedTuple):
    """One key of an alteration."""

    name: str
    operation: int
    value: str | None


def replace_config(changes: Sequence[ConfigUpdate]) -> dict[str, str]:
    """The settings after AlterConfigs, which replaces all of a resource's settings. Raises ApiError."""
    return alter_config({}, {}, {}, changes)


def alter_config(
    present: Mapping[str, str],
    rows: Mapping[str, Row],
    effective: Mapping[str, str | None],
    changes: Sequence[ConfigUpdate],
) -> dict[str, str]:
    """The settings after IncrementalAlterConfigs: `present` are the resource's own, `effective` those in force.

    Raises ApiError INVALID_REQUEST: a key twice, a missing value, an append to a key that is not a list, an unknown
    operation.
    """
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a key is named twice")
    result = dict(present)
    for change in changes:
        if change.operation == AlterOperation.DELETE:
            result.pop(change.name, None)
            continue
        value = _new_value(change, rows, effective)
        if readable_text(value) != value:  # the store keeps settings as JSON
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{change.name}: the value is not UTF-8")
        if len(value.encode()) > MAX_VALUE:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{change.name}: the value would have more than {MAX_VALUE} bytes")
        result[change.name] = value
    return result


def _new_value(change: ConfigUpdate, rows: Mapping[str, Row], effective: Mapping[str, str | None]) -> str:
    if change.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{change.name}: a value is needed")
    if change.operation == AlterOperation.SET:
        return change.value
    row = rows.get(change.name)
    if change.operation not in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{change.name}: unknown operation {change.operation}")
    if row is None or row.type is not Type.LIST:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{change.name} is not a list; it can only be set or deleted")
    present = [word for word in (effective.get(change.name) or "").split(",") if word]
    words = [word.strip() for word in change.value.split(",") if word.strip()]
    if change.operation == AlterOperation.APPEND:
        return ",".join(present + [word for word in words if word not in present])
    return ",".join(word for word in present if word not in words)


def check_topic(before: Mapping[str, str], after: Mapping[str, str], defaults: TopicConfig) -> None:
    """Check a change of a topic's own settings. Raises ApiError INVALID_CONFIG.

    Settings that were stored before and do not change may be unusable. They are not checked, and can be deleted.
    """
    used, _ = usable_overrides(before)
    try:
        defaults.with_overrides(
            {name: text for name, text in after.items() if name in used or before.get(name) != text}
        )
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None


def check_broker(before: Layers, after: Layers) -> None:
    """Check a change of a broker's dynamic settings. Raises ApiError INVALID_REQUEST or INVALID_CONFIG.

    Settings that were stored before and do not change may be unusable. They are not checked, and can be deleted.
    """
    used, _ = usable_layers(before)
    own = _check_changed(before.own, used.own, after.own, True)
    shared = _check_changed(before.shared, used.shared, after.shared, False)
    try:
        after._replace(own=own, shared=shared).resolve_layers()
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None


def _check_changed(
    before: Mapping[str, str], used: Mapping[str, str], after: Mapping[str, str], own: bool
) -> dict[str, str]:
    """The usable settings after a change, of this broker (`own`) or of all. Raises ApiError for a changed key that
    cannot be set."""
    for name in sorted(after):
        # Unchanged settings are not checked: one invalid setting must not block changes of the others.
        if before.get(name) != after[name]:
            _check_dynamic(name, own)
            _check_value(name, after[name])
    return {name: text for name, text in after.items() if name in used or before.get(name) != text}


def _check_dynamic(name: str, own: bool) -> None:
    """Check that a key may be changed, for one broker (`own`) or for all. Raises ApiError."""
    row = find_row(name)
    if row is None:
        raise ApiError(ErrorCode.INVALID_CONFIG, _unknown_key_message(name))
    why = _fixed_reason(row, own)
    if why is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name[:100]} {why}")


def _fixed_reason(row: Row, own: bool) -> str | None:
    """The reason why a key may not be changed, for one broker (`own`) or for all; None: it may be."""
    # 1. The start alone reads it.
    if row.dynamic is Dynamic.READ_ONLY:
        return "cannot change while the broker runs; set it and restart"
    # 2. The store keeps plain text, and every client that may read it would know the secret.
    if row.sensitive:
        return "is a secret, which the metadata store must not keep: put it into a file of the broker and restart"
    # 3. A key of TLS changes for one listener of one broker, as in Kafka.
    if row.dynamic is Dynamic.PER_BROKER:
        if not own:
            return "can be altered for single brokers only: name the broker"
        if not row.name.startswith(LISTENER_PREFIX):
            return f"can be altered for single listeners only: {LISTENER_PREFIX}<listener>.{row.name}"
    return None


def _check_value(name: str, text: str) -> None:
    row = find_row(name)
    assert row is not None, "checked before"
    try:
        if text.strip() or row.default is not None:
            parse_value(row, text)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None


def _unknown_key_message(name: str) -> str:
    if name in OLD_BROKER_NAMES:
        return f"{name} is an old name of {OLD_BROKER_NAMES[name]}: use that"
    why = unsupported_reason(name)
    if why is not None:
        return f"{name[:100]}: {why}"
    return f"{name[:100]!r} is not a configuration of a broker{nearest_key_hint(name, BROKER_ROWS)}"


def usable_layers(layers: Layers) -> tuple[Layers, list[str]]:
    """The layers without the dynamic settings that cannot be used, and a line about each of those.

    Stored settings must never prevent a broker from starting: another version of Ottla, or an operator with a ZooKeeper
    shell, may have written them.

    1. Leave out keys that are unknown, read-only, or invalid by themselves.
    2. Resolve the rest. While that fails, leave out the key that the error names, or, if it is a static one, all
       dynamic settings, because any of them may conflict with it.
    """
    lines: list[str] = []
    found = layers._replace(
        own=_usable_alone(layers.own, lines, True), shared=_usable_alone(layers.shared, lines, False)
    )
    while found.own or found.shared:
        try:
            found.resolve_layers()
            break
        except ConfigError as error:
            before, found = found, _drop_setting(error.key, found)
            gone = sorted((before.own.keys() - found.own.keys()) | (before.shared.keys() - found.shared.keys()))
            lines.append(str(error) if gone == [error.key] else f"{', '.join(gone)}: together with {error}")
    return found, lines


def retention_guards(lost: Iterable[str]) -> dict[str, str]:
    """Replacements for stored settings of these names that are ignored: the defaults could delete records too early."""
    if any(name.startswith(("log.retention.", "log.cleanup.")) for name in lost):
        return dict.fromkeys(("log.retention.ms", "log.retention.bytes"), "-1")
    return {}


def _usable_alone(settings: Mapping[str, str], lines: list[str], own: bool) -> dict[str, str]:
    good = {}
    for name, text in settings.items():
        try:
            _check_dynamic(name, own)
            _check_value(name, text)
        except ApiError as error:
            lines.append(error.message or name)
        else:
            good[name] = text
    return good


def _drop_setting(name: str, layers: Layers) -> Layers:
    """The layers without this dynamic setting; without any dynamic setting if it is a static one."""
    if name in layers.own:
        return layers._replace(own={key: text for key, text in layers.own.items() if key != name})
    if name in layers.shared:
        return layers._replace(shared={key: text for key, text in layers.shared.items() if key != name})
    return layers._replace(own={}, shared={})


KEEP_ALL: Final[Mapping[str, str]] = MappingProxyType({"cleanup.policy": ""})
"""Settings of a topic whose own settings cannot be read: no record is deleted."""
_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")
_DELETING: Final = ("cleanup.policy", "retention.ms", "retention.bytes")


def usable_overrides(overrides: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The topic settings that are valid, and a message about each of the others.

    A node that an operator or another version wrote must not prevent a topic from loading. If a setting is invalid that
    decides which records may be deleted, none are.
    """
    good: dict[str, str] = {}
    words = []
    for name, text in overrides.items():
        try:
            TopicConfig().with_overrides({name: text})
        except ConfigError as error:
            words.append(f"ignored {error}")
            good.update(KEEP_ALL if name in _DELETING else {})
        else:
            # Not an assignment: a cleanup.policy that is valid must not replace the one of KEEP_ALL.
            good.setdefault(name, text)
    return good, words


def resolve_topic(overrides: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
    """The topic's effective settings. If its compaction lags contradict the broker's defaults, the defaults win."""
    if not overrides:
        return defaults
    try:
        return defaults.with_overrides(overrides)
    except ConfigError:
        return defaults.with_overrides({name: text for name, text in overrides.items() if name not in _LAGS})
