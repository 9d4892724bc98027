"""The events of a broker that its shell handles.

Zone: deterministic.
"""

from __future__ import annotations

from typing import Protocol

from ottla.config.broker import BrokerConfig


class BrokerListener(Protocol):
    """Receives the events of one broker. Each call is within a turn, so it must not call the broker."""

    def on_listening(self) -> None:
        """Handle, once, that other brokers may write to it, so its listeners have to be open."""
        ...

    def on_ready(self) -> None:
        """Handle, once, that it has applied the controller's orders and serves all requests."""
        ...

    def on_config(self, config: BrokerConfig) -> None:
        """Apply the effective settings after a change of dynamic ones."""
        ...

    def on_failure_not_reported(self) -> None:
        """Handle that no controller took the report of a failed log directory (KIP-858): the broker has to stop."""
        ...

    def is_wanted(self) -> bool:
        """Whether start-up is to continue. Polled during log recovery, which may take long."""
        ...
