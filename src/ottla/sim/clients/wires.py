"""Which brokers a producer is connected to, and when it tries again: what its sender's thread does with sockets.

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
        """nodes: where the bootstrap addresses lead. changed: one was opened (None), or could not be, or is no more."""
        self._network = network
        self._host = host
        self._bootstrap = {-1 - at: node for at, node in enumerate(nodes)}
        self._config = config.client
        self._random = random
        self._changed = changed
        self._links: dict[int, SimulatedConnection] = {}
        self._failures: dict[int, tuple[int, float]] = {}
        """Consecutive failures per node, and when to try it again."""

    @property
    def ready(self) -> dict[int, SimulatedConnection]:
        """Those that requests can be sent on."""
        return {node: link for node, link in self._links.items() if link.ready}

    def retries_after(self, now: float) -> list[float]:
        """When nodes may be tried again that could not be reached."""
        return [until for _, until in self._failures.values() if until > now]

    def open(self, node: int, known: Sequence[int]) -> bool:
        """Begin to connect, unless it is being done, failed a moment ago, or nobody `known` has that number."""
        target = self._bootstrap.get(node) if node < 0 else (node if node in known else None)
        if target is None or node in self._links or self._failures.get(node, (0, 0.0))[1] > self._now():
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

    def any(self, known: Sequence[int]) -> SimulatedConnection | None:
        """The one with the least on its way, brokers first; None: connecting to one has begun, or must wait."""
        ready = self.ready
        chosen = [link for node, link in ready.items() if node >= 0] or list(ready.values())
        if chosen:
            return min(chosen, key=lambda link: len(link.awaited))
        if len(self._links) == len(ready):  # none is being opened
            self._open_any(known)
        return None

    def _open_any(self, known: Sequence[int]) -> None:
        """One more broker: those of the cluster first, then the bootstrap addresses (KIP-899)."""
        nodes = sorted(known, key=lambda _: self._random.unit())
        for node in sorted([*nodes, *self._bootstrap], key=lambda node: self._failures.get(node, (0, 0.0))[1]):
            if self.open(node, known):
                return

    def keep(self, known: Sequence[int], error: ClientError) -> None:
        """Close connections to brokers that are not in the cluster any more, as far as anybody knows."""
        for node in [node for node in self._links if node >= 0 and node not in known]:
            self._links[node].close(error)
        self._failures = {n: failure for n, failure in self._failures.items() if n < 0 or n in known}

    def _note_failure(self, node: int) -> None:
        count = self._failures.get(node, (0, 0.0))[0]
        first, most = self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms
        wait = backoff_ms(first, most, count, self._random.unit()) / 1000
        self._failures[node] = (count + 1, self._now() + wait)

    def _now(self) -> float:
        return self._network.timeline.now_ns / 1e9
