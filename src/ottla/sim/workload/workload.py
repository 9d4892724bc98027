"""The clients of a run: producers, readers and an administrator, and the end of the run.

Zone: deterministic.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.entropy import Streams
from ottla.sim.history import History
from ottla.sim.networks.network import Network
from ottla.sim.networks.wire_client import WireClient
from ottla.sim.workload.admin import Admin
from ottla.sim.workload.catalog import Catalog, Role
from ottla.sim.workload.compacted_clients import KeyedProducer, Scan
from ottla.sim.workload.producers import Producer
from ottla.sim.workload.readers import EARLIEST, Reader
from ottla.sim.world import MS

PRODUCERS: Final = (
    (Role.EVENTS, True),
    (Role.EVENTS, True),
    (Role.EVENTS, True),
    (Role.PLAIN, False),
    (Role.CHURN, True),
    (Role.CUT, False),
)
"""Role of the topics, and whether the producer is idempotent."""
KEYED_PRODUCERS: Final = 2
READERS: Final = (
    (Role.EVENTS, True),
    (Role.EVENTS, False),
    (Role.PLAIN, True),
    (Role.CHURN, True),
    (Role.CUT, False),
)
"""Role of the topics, and whether the reader begins at their start."""


class Workload:
    """All clients of one run."""

    def __init__(self, network: Network, streams: Streams, catalog: Catalog, history: History) -> None:
        self.network = network
        self.catalog = catalog
        self.history = history
        self._streams = streams
        self.admin = Admin(self._make_client("admin"), catalog, streams.named_stream("admin"), history)
        self.producers = [
            Producer(
                self._make_client(f"producer-{role.value}-{number}"),
                catalog,
                role,
                idempotent,
                streams.named_stream(f"producer{number}"),
                history,
            )
            for number, (role, idempotent) in enumerate(PRODUCERS)
        ]
        self.producers += [self._keyed_producer(number) for number in range(KEYED_PRODUCERS)]
        self.scans: list[Scan] = []
        self.readers = [self._make_reader("reader", number, *reader) for number, reader in enumerate(READERS)]
        self.last_readers: list[Reader] = []

    def _make_client(self, name: str) -> WireClient:
        client = WireClient(self.network, name)
        client.complain = self.history.broken_protocol.append
        return client

    def _keyed_producer(self, number: int) -> Producer:
        random = self._streams.named_stream(f"keyed producer{number}")
        return KeyedProducer(self._make_client(f"keys-{number}"), self.catalog, Role.KEYED, True, random, self.history)

    def _make_reader(self, kind: str, number: int, role: Role, from_start: bool) -> Reader:
        client = self._make_client(f"{kind}-{role.value}-{number}")
        random = self._streams.named_stream(f"{kind}{number}")
        return Reader(client, self.catalog, role, from_start, random, self.history)

    def start_clients(self) -> None:
        """Start all clients."""
        self.admin.start_admin()
        for producer in self.producers:
            producer.start_writing()
        for reader in self.readers:
            reader.start_reading()
        self._scan_when_there()

    def _scan_when_there(self) -> None:
        """Scan the compacted logs from their start, once the topic exists."""
        if not self.catalog.topics_of_role(Role.KEYED):
            self.network.timeline.schedule_after(STEP_NS, "is it there", self._scan_when_there)
            return
        for scan in self._make_scans("scan"):
            scan.fetch_next()

    def _make_scans(self, name: str) -> list[Scan]:
        wire = self._make_client(name)
        return [
            Scan(wire, topic, partition, 0, self.history)
            for topic in self.catalog.topics_of_role(Role.KEYED)
            for partition in range(topic.partitions)
        ]

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
        """Read every log from its start to its end."""
        roles = (Role.EVENTS, Role.PLAIN, Role.CHURN, Role.CUT)
        self.last_readers = [self._make_reader("last-reader", number, role, True) for number, role in enumerate(roles)]
        for reader in self.last_readers:
            reader.wanted = EARLIEST
            reader.max_wait_ms, reader.max_bytes = 50, 1 << 20
            reader.start_reading()
        self.scans = self._make_scans("last-scan")
        for scan in self.scans:
            scan.fetch_next()

    def unread_logs(self) -> list[str]:
        """Logs that the last readers have not read to their end."""
        return [
            f"{reader.name} on {cursor.log} at {cursor.position} of {cursor.high_watermark}"
            for reader in self.last_readers
            for cursor in reader.list_cursors()
            if not cursor.broken and not 0 <= cursor.position == cursor.high_watermark
        ] + [f"the scan of {scan.log} at {scan.position}" for scan in self.scans if not scan.at_end]

    def note_final(self) -> None:
        """Add the records of the last readers to the history."""
        names = {reader.name for reader in self.last_readers}
        for reader in self.last_readers:
            for cursor in reader.list_cursors():
                self.history.final[cursor.log] = {}
        for read in self.history.reads:
            if read.reader in names:
                self.history.final[read.log].update(read.records)
                self.history.final_life = max(self.history.final_life, read.life)
        for scan in self.scans:
            scan.record_result()


STEP_NS: Final = 100 * MS
