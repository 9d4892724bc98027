"""Receivers of events that a test does not look at."""

from __future__ import annotations

from collections.abc import Callable

from ottla.config.broker import BrokerConfig
from ottla.replication.partition.partition_context import PartitionEvents


def ignore(*_: object) -> None:
    """Ignore an event."""


def partition_events(
    on_change: Callable[..., object] = ignore, on_role: Callable[..., object] = ignore
) -> PartitionEvents:
    """The events of partitions."""
    return PartitionEvents(on_change, ignore, on_role, ignore)


class Listener:
    """The events of a broker. Implements `BrokerListener`."""

    def __init__(self) -> None:
        self.configs: list[BrokerConfig] = []
        self.not_reported = 0

    def on_listening(self) -> None:
        """Ignore it: brokers of tests can always be reached."""

    def on_ready(self) -> None:
        """Ignore it: tests look at `Broker.ready`."""

    def on_config(self, config: BrokerConfig) -> None:
        """Keep the settings."""
        self.configs.append(config)

    def on_failure_not_reported(self) -> None:
        """Count the failures of directories that no controller knows of."""
        self.not_reported += 1

    def is_wanted(self) -> bool:
        """Starts are not aborted."""
        return True


class NoCoordinators:
    """A broker that coordinates nothing. Implements `RoleListener`."""

    on_role = on_marker = staticmethod(ignore)
