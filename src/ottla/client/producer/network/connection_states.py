"""Where a producer's brokers are, and when it may try to connect to each, as Kafka's ClusterConnectionStates.

Zone: real. Draws random numbers for the backoff, so that producers do not come back all at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from ottla.client.backoff import backoff_ms
from ottla.client.connections.address import Address, parse_addresses
from ottla.client.metadata import ClusterView
from ottla.client.settings import ClientConfig


class ConnectionStates:
    """The attempts to connect. Nodes below 0 are bootstrap addresses, whose ids are not known."""

    def __init__(self, config: ClientConfig) -> None:
        self._first_ms, self._most_ms = config.reconnect_backoff_ms, config.reconnect_backoff_max_ms
        self._bootstrap = {-1 - at: a for at, a in enumerate(parse_addresses(config.bootstrap_servers))}
        self._failures: dict[int, tuple[int, float]] = {}
        """(consecutive failures, time of the next attempt) per node."""
        self.opening: set[int] = set()
        """Nodes that are being connected to."""

    def address_of(self, node: int, view: ClusterView) -> Address | None:
        """Where a node is; None if that is not known, or not any more."""
        if node < 0:
            return self._bootstrap.get(node)
        found = view.nodes.get(node)
        return found.address if found is not None else None

    def may_open(self, node: int, now: float) -> bool:
        """Whether no attempt is in progress, and the backoff is over."""
        return node not in self.opening and self._failures.get(node, (0, 0))[1] <= now

    def note_opened(self, node: int) -> None:
        """An attempt succeeded."""
        self._failures.pop(node, None)

    def note_failure(self, node: int) -> None:
        """An attempt failed, or a connection broke: the next attempt has to wait."""
        count = self._failures.get(node, (0, 0.0))[0]
        pause_ms = backoff_ms(self._first_ms, self._most_ms, count, random.random())
        self._failures[node] = (count + 1, time.monotonic() + pause_ms / 1000)

    def forget_absent(self, view: ClusterView) -> None:
        """Forget the failures of brokers that the cluster does not have any more."""
        self._failures = {n: f for n, f in self._failures.items() if n < 0 or n in view.nodes}

    def next_attempts(self, now: float) -> Iterator[float]:
        """When the backoff of each node ends."""
        return (until for _, until in self._failures.values() if until > now)

    def order_of_attempts(self, view: ClusterView) -> list[int]:
        """All nodes, those whose backoff ends first: known brokers first, then the bootstrap addresses (KIP-899)."""
        nodes = sorted(view.nodes, key=lambda _: random.random())
        return sorted([*nodes, *self._bootstrap], key=lambda node: self._failures.get(node, (0, 0.0))[1])
