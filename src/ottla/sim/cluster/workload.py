"""The clients of a cluster's run.

Zone: deterministic. The actors are those of a single broker's run, with clients that find leaders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ottla.sim.cluster.admin import ClusterAdmin
from ottla.sim.cluster.client import ClusterClient
from ottla.sim.cluster.history import ClusterHistory, Led
from ottla.sim.cluster.readers import ClusterReader
from ottla.sim.entropy import Stream, Streams
from ottla.sim.networks.network import Network
from ottla.sim.workload.catalog import Catalog, Role, log_name
from ottla.sim.workload.producers import Producer
from ottla.sim.workload.workload import PRODUCERS, READERS
from ottla.types import ZERO_UUID
from ottla.wire.messages import MetadataResponse

RACKS = 2
"""Number of racks; brokers and readers are spread over them."""


class ClusterWorkload:
    """All clients of one run."""

    admin_type: ClassVar[type[ClusterAdmin]] = ClusterAdmin
    client_type: ClassVar[type[ClusterClient]] = ClusterClient
    producer_kinds: ClassVar[Sequence[tuple[Role, bool]]] = PRODUCERS
    """Role of the topics, and whether the producer is idempotent."""
    reader_kinds: ClassVar[Sequence[tuple[Role, bool]]] = READERS
    """Role of the topics, and whether the reader begins at their start."""
    last_roles: ClassVar[Sequence[Role]] = (Role.EVENTS, Role.PLAIN, Role.CHURN, Role.CUT)
    """Roles of the topics that are read at the end."""

    def __init__(
        self,
        network: Network,
        streams: Streams,
        catalog: Catalog,
        history: ClusterHistory,
        nodes: Sequence[int],
        replication: int,
        flush: bool,
    ) -> None:
        self.network = network
        self.catalog = catalog
        self.history = history
        self._nodes = nodes
        self._streams = streams
        self.names: list[str] = []
        """Hosts of the clients on the network."""
        admin = self.make_client("admin")
        self.admin = self.admin_type(admin, catalog, streams.named_stream("admin"), history, replication, flush)
        self.producers = [self._make_producer(number, *kind) for number, kind in enumerate(self.producer_kinds)]
        self.readers = [self._make_reader("reader", number, *kind) for number, kind in enumerate(self.reader_kinds)]
        self.last_readers: list[ClusterReader] = []
        self.watcher = self.make_client("watcher")
        """Requests metadata for the checks of the run."""

    def named_stream(self, name: str) -> Stream:
        """The random stream of that name."""
        return self._streams.named_stream(name)

    def make_client(self, name: str) -> ClusterClient:
        """Create one more client."""
        random = self._streams.named_stream(f"client {name}")
        client = self.client_type(self.network, name, self._nodes, random, self._note_leaders)
        client.complain = self.history.broken_protocol.append
        self.names.append(name)
        return client

    def _make_producer(self, number: int, role: Role, idempotent: bool) -> Producer:
        client = self.make_client(f"producer-{role.value}-{number}")
        random = self._streams.named_stream(f"producer{number}")
        return Producer(client, self.catalog, role, idempotent, random, self.history)

    def _make_reader(self, kind: str, number: int, role: Role, from_start: bool) -> ClusterReader:
        client = self.make_client(f"{kind}-{role.value}-{number}")
        random = self._streams.named_stream(f"{kind}{number}")
        rack = f"rack{number % RACKS}" if random.chance(0.5) and kind == "reader" else ""
        return ClusterReader(client, self.catalog, role, from_start, random, self.history, rack)

    def _note_leaders(self, response: MetadataResponse, node: int) -> None:
        """Note the leaders in a Metadata answer: all brokers have to name the same leader for an epoch."""
        for topic in response.topics:
            for row in topic.partitions:
                if row.leader_id < 0 or topic.topic_id == ZERO_UUID:
                    continue
                log = log_name(topic.name or "", row.partition_index, topic.topic_id)
                led = self.history.leaders.get((log, row.leader_epoch))
                if led is None:
                    self.history.leaders[log, row.leader_epoch] = Led(row.leader_id, node, self.network.timeline.now_ns)
                elif led.leader != row.leader_id:
                    self.history.rivals.append(
                        f"{log} epoch {row.leader_epoch}: broker {node} reports {row.leader_id} as leader,"
                        f" broker {led.reported_by} reported {led.leader}"
                    )

    def start_clients(self) -> None:
        """Start all clients."""
        self.admin.start_admin()
        for producer in self.producers:
            producer.start_writing()
        for reader in self.readers:
            reader.start_reading()

    @property
    def acknowledged(self) -> int:
        """Records acknowledged so far."""
        return sum(producer.acknowledged for producer in self.producers)

    # ---- the end ----

    def wind_down(self) -> None:
        """Stop new batches and deletions; unacknowledged batches are still retried."""
        self.admin.working = False
        for producer in self.producers:
            producer.working = False

    def unacknowledged_logs(self) -> list[str]:
        """Producers that wait for acknowledgements, and the logs."""
        return [f"{p.name} on {log}" for p in self.producers for log in p.outstanding_logs()]

    def read_all(self) -> None:
        """Read every log from its start to its end, from the leaders."""
        self.last_readers = [
            self._make_reader("last-reader", number, role, True) for number, role in enumerate(self.last_roles)
        ]
        for reader in self.last_readers:
            reader.read_fast()
            reader.start_reading()

    def unread_logs(self) -> list[str]:
        """Logs that the last readers have not read to their end."""
        return [
            f"{reader.name} on {cursor.log} at {cursor.position} of {cursor.high_watermark}, led by {cursor.node}"
            for reader in self.last_readers
            for cursor in reader.list_cursors()
            if not cursor.broken and not 0 <= cursor.position == cursor.high_watermark
        ]

    def note_final(self) -> None:
        """Add the records of the last readers to the history."""
        names = {reader.name for reader in self.last_readers}
        for reader in self.last_readers:
            for cursor in reader.list_cursors():
                self.history.final[cursor.log] = {}
        for read in self.history.reads:
            if read.reader in names:
                self.history.final[read.log].update(read.records)
