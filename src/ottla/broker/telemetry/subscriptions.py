"""The subscriptions of client metrics that are set, and which of them a client matches.

Zone: pure. A client gets the metrics of all subscriptions that it matches, at the shortest of their intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from zlib import crc32

from ottla.config.resources import CLIENT_METRICS_ROWS, ClientMetricsConfig, split_match
from ottla.config.rows import ConfigError, parse_value
from ottla.linear_regex import Pattern, PatternError, TooCostly

ALL: Final = "*"
SUBSCRIPTIONS_MAX: Final = 100
"""Most subscriptions that are matched: each costs each new client some time."""
STEPS_MAX: Final = 20_000
"""Most steps of one match; a pattern that needs more does not match."""
METRICS_MAX: Final = 1_000
"""Most prefixes that a client gets."""


class ClientFacts(NamedTuple):
    """What is known of a client, by Kafka's names of selectors."""

    client_id: str
    client_instance_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str

    def value_of(self, selector: str) -> str:
        """The property with this name; its port is not known."""
        return str(getattr(self, selector, ""))


class Wanted(NamedTuple):
    """What a client is to push."""

    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int


class _Subscription(NamedTuple):
    metrics: tuple[str, ...]
    interval_ms: int
    patterns: tuple[tuple[str, Pattern], ...]

    def matches(self, facts: ClientFacts) -> bool:
        try:
            return all(_matches(pattern, facts.value_of(selector)) for selector, pattern in self.patterns)
        except TooCostly:
            return False


def _matches(pattern: Pattern, text: str) -> bool:
    pattern.allowance = STEPS_MAX
    return pattern.matches_name(text)


class Subscriptions:
    """All subscriptions."""

    def __init__(self) -> None:
        self.generation = 0
        """Rises with every change; a client keeps what is wanted from it until then."""
        self._by_name: dict[str, _Subscription] = {}

    def set_config(self, name: str, config: Mapping[str, str]) -> None:
        """Replace a subscription; without settings it is deleted. One that cannot be used matches no client."""
        found = _parse(config) if config else None
        if found is None:
            self._by_name.pop(name, None)
        elif name in self._by_name or len(self._by_name) < SUBSCRIPTIONS_MAX:
            self._by_name[name] = found
        self.generation += 1

    def wanted_from(self, facts: ClientFacts) -> Wanted:
        """What a client is to push."""
        matching = [each for each in self._by_name.values() if each.matches(facts)]
        metrics = dict.fromkeys(metric for each in matching for metric in each.metrics)
        chosen = (ALL,) if ALL in metrics else tuple(metrics)[:METRICS_MAX]
        interval_ms = min((each.interval_ms for each in matching), default=ClientMetricsConfig().interval_ms)
        text = f"{chosen} {interval_ms} {facts.client_instance_id}"
        return Wanted(chosen, interval_ms, crc32(text.encode(errors="replace")) & 0x7FFF_FFFF)


def _parse(config: Mapping[str, str]) -> _Subscription | None:
    values = ClientMetricsConfig()
    parsed = {}
    try:
        for name, text in config.items():
            if name in CLIENT_METRICS_ROWS:
                parsed[name] = parse_value(CLIENT_METRICS_ROWS[name], text)
        patterns = parsed.get("match", values.match)
        metrics = parsed.get("metrics", values.metrics)
        interval_ms = parsed.get("interval.ms", values.interval_ms)
        assert isinstance(patterns, tuple)
        assert isinstance(metrics, tuple)
        assert isinstance(interval_ms, int)
        compiled = tuple((selector, Pattern(pattern)) for selector, pattern in split_match(patterns))
    except (ConfigError, PatternError, ValueError):
        return None
    return _Subscription(metrics, interval_ms, compiled)
