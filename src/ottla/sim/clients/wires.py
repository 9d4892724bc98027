"""The connections of a producer, and when it tries to connect again: its sender thread does this with sockets.

Zone: deterministic. Negative numbers are bootstrap addresses, as in `ottla.client.producer.network.sender`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.client.backoff import backoff_ms
from ottla.client.errors import ClientError
from ottla.client.producer.config import ProducerConfig
from ottla.sim.clients.link import SimulatedConnection
from ottla.sim.entropy import Stream
from ottla.sim.networks.network import Network


class Wires:
    """The connections of one producer: at most one per node."""

    def __init__(
        self,
        network: Network,
        host: str,
        nodes: Sequence[int],
        config: ProducerConfig,
        random: Stream,
        changed: Callable[[ClientError | None], None],
    ) -> None:
        """`nodes` are the bootstrap brokers. `changed` gets None for an opened connection, else the error."""
        self._network = network
        self._host = host
        self._bootstrap = {-1 - at: node for at, node in enumerate(nodes)}
        self._config = config.client
        self._random = random
        self._changed = changed
        self._links: dict[int, SimulatedConnection] = {}
        self._failures: dict[int, tuple[int, float]] = {}
        """Consecutive failures per node, and the time of the next attempt."""

    @property
    def ready(self) -> dict[int, SimulatedConnection]:
        """The connections on which requests can be sent."""
        return {node: link for node, link in self._links.items() if link.ready}

    def retries_after(self, now: float) -> list[float]:
        """The times at which unreachable nodes may be tried again."""
        return [until for _, until in self._failures.values() if until > now]

    def open_connection(self, node: int, known: Sequence[int]) -> bool:
        """Start to connect, unless a connection exists, the backoff is not over, or the node is not `known`."""
        target = self._bootstrap.get(node) if node < 0 else (node if node in known else None)
        if target is None or node in self._links or self._failures.get(node, (0, 0.0))[1] > self._now_seconds():
            return False

        def opened() -> None:
            self._failures.pop(node, None)
            self._changed(None)

        def closed(error: ClientError) -> None:
            if self._links.get(node) is link:
                del self._links[node]
            self._note_failure(node)
            self._changed(error)

        timeout_ms = self._config.request_timeout_ms
        link = self._links[node] = SimulatedConnection(self._network, self._host, target, timeout_ms, opened, closed)
        return True

    def choose_connection(self, known: Sequence[int]) -> SimulatedConnection | None:
        """The connection with the fewest open requests, brokers before bootstrap addresses; None: none is ready yet."""
        ready = self.ready
        chosen = [link for node, link in ready.items() if node >= 0] or list(ready.values())
        if chosen:
            return min(chosen, key=lambda link: len(link.awaited))
        if len(self._links) == len(ready):  # none is being opened
            self._connect_any(known)
        return None

    def _connect_any(self, known: Sequence[int]) -> None:
        """Connect to one more broker: first those of the cluster, then the bootstrap addresses (KIP-899)."""
        nodes = sorted(known, key=lambda _: self._random.random_unit())
        for node in sorted([*nodes, *self._bootstrap], key=lambda node: self._failures.get(node, (0, 0.0))[1]):
            if self.open_connection(node, known):
                return

    def close_removed(self, known: Sequence[int], error: ClientError) -> None:
        """Close connections to brokers that are not in `known` any more."""
        for node in [node for node in self._links if node >= 0 and node not in known]:
            self._links[node].close_connection(error)
        self._failures = {n: failure for n, failure in self._failures.items() if n < 0 or n in known}

    def _note_failure(self, node: int) -> None:
        count = self._failures.get(node, (0, 0.0))[0]
        first, most = self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms
        wait = backoff_ms(first, most, count, self._random.random_unit()) / 1000
        self._failures[node] = (count + 1, self._now_seconds() + wait)

    def _now_seconds(self) -> float:
        return self._network.timeline.now_ns / 1e9
