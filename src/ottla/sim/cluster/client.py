"""A Kafka client of a cluster: finds leaders and the controller through Metadata, and sends requests to them.

Zone: deterministic. It has one `WireClient` per broker, and uses its metadata until an answer shows that it is stale.
Like real clients it ignores leaders of an older epoch than the one it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ottla.sim.entropy import Stream
from ottla.sim.networks.network import Network
from ottla.sim.networks.wire_client import CONTROLLER, Answered, Route, WireClient
from ottla.sim.world import MS
from ottla.wire.messages import MetadataRequest, MetadataResponse
from ottla.wire.schema import Message

METADATA_VERSION: Final = 12
REFRESH_NS: Final = 100 * MS
"""Time between two requests for metadata, and until a request without a known leader fails."""
Noted = Callable[[MetadataResponse, int], None]
"""Called with every Metadata answer, and the broker that gave it."""


class Seen(NamedTuple):
    """A partition, as Metadata shows it."""

    topic_id: bytes
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class ClusterClient:
    """One client with at most one connection per broker. A `Client` of the workload."""

    def __init__(self, network: Network, name: str, nodes: Sequence[int], random: Stream, noted: Noted) -> None:
        self.network = network
        self.timeline = network.timeline
        self.name = name
        self.nodes = nodes
        self.random = random
        self.view: dict[Route, Seen] = {}
        """Partitions, with the newest metadata of each."""
        self.controller = -1
        self.complain: Callable[[str], None] = lambda _what: None
        """Called for every answer that breaks the protocol."""
        self._noted = noted
        self._wires: dict[int, WireClient] = {}
        self._refreshing = False

    def wire_client(self, node: int) -> WireClient:
        """The client of one broker."""
        found = self._wires.get(node)
        if found is None:
            found = self._wires[node] = self._make_wire(node)
            found.complain = self._report_complaint
        return found

    def _make_wire(self, node: int) -> WireClient:
        """Create the client of one broker."""
        return WireClient(self.network, self.name, node)

    def _report_complaint(self, what: str) -> None:
        self.complain(what)

    def send_request(
        self, message: Message, version: int, response: type[Message], then: Answered, route: Route | None = None
    ) -> None:
        """Send to the broker that the route names, or to any. Without a known broker, answer None a little later."""
        node = self._node_of(route)
        if node < 0:
            self.mark_metadata_stale()
            self.timeline.schedule_after(REFRESH_NS, "no broker to ask", then, None, 0)
            return

        def on_response(answer: Message | None, _life: int) -> None:
            if answer is None:
                self.mark_metadata_stale()
            then(answer, node)

        self.wire_client(node).send_request(message, version, response, on_response)

    def _node_of(self, route: Route | None) -> int:
        if route is None:
            return self.random.choice(self.nodes)
        if route == CONTROLLER:
            return self.controller
        seen = self.view.get(route)
        return -1 if seen is None else seen.leader

    # ---- metadata ----

    def mark_metadata_stale(self) -> None:
        """Request metadata soon, unless a request is under way."""
        if not self._refreshing:
            self._refreshing = True
            self.timeline.schedule_after(self.random.random_below(REFRESH_NS), "metadata", self._request_metadata)

    def _request_metadata(self) -> None:
        node = self.random.choice(self.nodes)
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        self.wire_client(node).send_request(
            request, METADATA_VERSION, MetadataResponse, lambda response, _life: self._on_metadata(node, response)
        )

    def _on_metadata(self, node: int, response: Message | None) -> None:
        if not isinstance(response, MetadataResponse):
            self.timeline.schedule_after(REFRESH_NS, "metadata", self._request_metadata)
            return
        self._refreshing = False
        self._noted(response, node)
        self.controller = response.controller_id
        for topic in response.topics:
            for row in topic.partitions:
                replicas, isr = tuple(row.replica_nodes), tuple(row.isr_nodes)
                self._update_view(
                    (topic.name or "", row.partition_index),
                    Seen(topic.topic_id, row.leader_id, row.leader_epoch, replicas, isr),
                )

    def _update_view(self, route: Route, seen: Seen) -> None:
        # Epochs compare only within one topic id: a topic that was created again starts at epoch 0.
        known = self.view.get(route)
        if known is None or known.topic_id != seen.topic_id or known.epoch <= seen.epoch:
            self.view[route] = seen
