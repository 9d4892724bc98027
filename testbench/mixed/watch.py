"""Watches the formats that brokers of two releases send, write, read and find, while they run.

Zone: deterministic. Reads only; the verdict is in `FormatWatch.found`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ottla.cluster.store.layout import FEATURE
from ottla.record.batch import LOG_OVERHEAD, MAGIC_POS, MAGIC_V2, crc_ok, header_at, records_of
from ottla.seams import Done, Failure, Network, Node
from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.cluster.ledger import Ledger
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.cluster.replicas import batch_views, directory_on
from ottla.sim.disks.drive import Directory, Drive
from ottla.sim.networks.wire_client import Route
from ottla.sim.world import SECOND
from ottla.znodes.tree import Change, Verb
from testbench.mixed.formats import (
    OFFSETS,
    OLD_FORMAT,
    OLD_MAGIC,
    TRANSACTIONS,
    RecordLimits,
    Release,
    find_new_file,
    find_new_node,
    find_new_record,
    find_unreadable,
    find_unsendable,
    limits_of,
)

REQUESTS: Final = "requests_keep_to_their_level"
RECORDS: Final = "records_keep_to_their_level"
MESSAGES: Final = "messages_keep_to_their_format"
NODES: Final = "nodes_keep_to_their_version"
FILES: Final = "files_keep_to_their_version"
FINALIZED: Final = "finalized_levels_are_followed"
_FOUND_MAX: Final = 20
"""Most findings of a run: one is enough to fail it."""
_BATCH_MAX_BYTES: Final = 1 << 20
LAG_NS: Final = 4 * SECOND
"""A server of the metadata store may lag for a few seconds, so a controller may miss a broker that registered less than
that before."""


class FormatWatch:
    """What was found in a run: a property and a sentence each."""

    def __init__(self, levels: Mapping[Release, str]) -> None:
        self.levels = levels
        """The `inter.broker.protocol.version` of the brokers of each release."""
        self.found: dict[tuple[str, str], None] = {}
        self.old_markers = False
        """All brokers know that transaction.version is below 2, and markers have to follow it."""

    def note(self, name: str, who: str, problem: str | None) -> None:
        """Keep a problem; None: there is none."""
        if problem is not None and len(self.found) < _FOUND_MAX:
            self.found[name, f"{who} {problem}"] = None


class WatchedNetwork:
    """The network of one broker; looks at each request that it sends to another one."""

    def __init__(self, network: Network, watch: FormatWatch, broker: int, release: Release) -> None:
        self._network = network
        self._watch = watch
        self._who = f"broker {broker} of {release.value}"
        self._release = release

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def call_broker(self, node: int, frame: bytes, deadline_ns: int, done: Done[memoryview], lane: str = "") -> None:
        """Send a request to another broker."""
        watch = self._watch
        old_markers = watch.old_markers and self._release is Release.PRESENT
        watch.note(REQUESTS, self._who, find_unsendable(frame, watch.levels[self._release], old_markers))
        self._network.call_broker(node, frame, deadline_ns, done, lane)


class WatchedStore:
    """The metadata store of a broker of release 0.1; looks at each node that it reads."""

    def __init__(self, store: Any, watch: FormatWatch, broker: int) -> None:
        self._store = store
        self._watch = watch
        self._who = f"broker {broker} of {Release.EARLIER.value}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_node(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """Read a node."""

        def on_node(node: Node | Failure | None) -> None:
            if isinstance(node, Node):
                self._watch.note(NODES, self._who, find_new_node(path, node.data))
            done(node)

        self._store.get_node(path, watch, on_node)


def watch_frame(watch: FormatWatch, broker: int, host: str, frame: memoryview) -> None:
    """Look at a request that reaches a broker of release 0.1; those of clients are not judged."""
    if host.startswith("node"):
        watch.note(REQUESTS, f"broker {broker} of {Release.EARLIER.value}", find_unreadable(frame))


def watch_files(watch: FormatWatch, broker: int, drives: Sequence[Drive]) -> None:
    """Look at the files that a broker of release 0.1 starts with."""
    for drive in drives:
        for path, inode in drive.walk_files():
            problem = find_new_file(path.rpartition("/")[2], bytes(inode.data[:4096]))
            watch.note(FILES, f"broker {broker} of {Release.EARLIER.value}", problem)


class MixedLedger(Ledger):
    """The truth in the metadata store, also about the release of each leader, and the levels that are finalized."""

    def __init__(
        self, history: ClusterHistory, note: Callable[[str], None], watch: FormatWatch, now_ns: Callable[[], int]
    ) -> None:
        super().__init__(history, note)
        self.releases: dict[int, Release] = {}
        """Of each registered broker."""
        self.writers: dict[tuple[Route, int], Release] = {}
        """The release of the leader, by partition and leader epoch."""
        self.finalized: dict[str, int] = {}
        self._watch = watch
        self._now_ns = now_ns
        self._since_ns: dict[int, int] = {}

    def follow_changes(self, changes: Sequence[Change]) -> None:
        """Apply one committed transaction of the store."""
        for change in changes:
            if change.verb is Verb.DELETE:
                self._forget_broker(change.path)
            elif change.path.startswith("/brokers/ids/"):
                self._note_release(int(change.path.rpartition("/")[2]), json.loads(change.data))
            elif change.path == FEATURE and change.data:
                self._note_finalized(json.loads(change.data).get("features", {}))
        super().follow_changes(changes)
        for route, partition in self.partitions.items():
            if partition.leader in self.releases:
                self.writers.setdefault((route, partition.epoch), self.releases[partition.leader])

    def _note_release(self, broker: int, registration: Mapping[str, Any]) -> None:
        self.releases[broker] = Release.PRESENT if registration.get("features") else Release.EARLIER
        self._since_ns[broker] = self._now_ns()

    def _forget_broker(self, path: str) -> None:
        if path.startswith("/brokers/ids/"):
            self.releases.pop(int(path.rpartition("/")[2]), None)

    def _note_finalized(self, levels: Mapping[str, int]) -> None:
        if levels == self.finalized:
            return
        self.finalized = dict(levels)
        long_here = self._now_ns() - LAG_NS
        for broker, release in self.releases.items():
            if release is Release.EARLIER and self._since_ns[broker] < long_here:
                self._watch.note(FINALIZED, f"broker {broker} of {release.value}", f"does not follow {dict(levels)}")


def sound_batches(directory: Directory) -> Iterator[memoryview]:
    """The batches of a log before the first with a wrong checksum.

    After a power loss the log of a broker that has not started again may end with pages that were written in part.
    """
    for piece in batch_views(directory):
        if not _is_sound(piece):
            return
        yield piece


def _is_sound(piece: memoryview) -> bool:
    if piece[MAGIC_POS] == MAGIC_V2:
        return crc_ok(piece, 0, len(piece))
    return zlib.crc32(piece[MAGIC_POS:]) == int.from_bytes(piece[LOG_OVERHEAD:MAGIC_POS])


class LogScan:
    """Looks at the batches of internal topics, and of the topic with an older format, on all brokers."""

    def __init__(self, nodes: Sequence[ClusterNode], ledger: MixedLedger, watch: FormatWatch) -> None:
        self._nodes = nodes
        self._ledger = ledger
        self._watch = watch
        self._reached: dict[tuple[int, Route], int] = {}
        self._settled: dict[Route, int] | None = None
        self.records = 0
        """Records of internal topics that were looked at."""

    def scan_all(self) -> None:
        """Look at everything that was appended since the last call."""
        for route, replicas in self._ledger.replicas.items():
            if route[0] in (OFFSETS, TRANSACTIONS, OLD_FORMAT):
                for node in self._nodes:
                    if node.number in replicas:
                        self._scan_copy(node, route)

    def settle_level(self) -> None:
        """All brokers know that transaction.version is 0: records of transactions have to follow it from here on."""
        self.scan_all()
        self._settled = {}
        for (_, route), reached in self._reached.items():
            self._settled[route] = max(reached, self._settled.get(route, 0))

    def _scan_copy(self, node: ClusterNode, route: Route) -> None:
        topic_id = self._ledger.topic_ids.get(route[0], b"")
        directory = directory_on(node.drives, *route, topic_id)
        reached = self._reached.get((node.number, route), 0)
        for piece in sound_batches(directory) if directory is not None else ():
            offset = int.from_bytes(piece[:8])
            if offset >= reached:
                self._reached[node.number, route] = offset + 1
                self._look_at(node.number, route, offset, piece)

    def _look_at(self, broker: int, route: Route, offset: int, piece: memoryview) -> None:
        who = f"{route[0]}-{route[1]} on broker {broker} at {offset}"
        if route[0] == OLD_FORMAT:
            magic = piece[MAGIC_POS]
            self._watch.note(MESSAGES, who, f"has magic {magic}" if magic > OLD_MAGIC else None)
            return
        header = header_at(piece)
        writer = self._ledger.writers.get((route, header.leader_epoch))
        if writer is None or header.is_control:
            return
        for record in records_of(piece, max_bytes=_BATCH_MAX_BYTES):
            self.records += 1
            problem = find_new_record(route[0], record.key, record.value, self._limits(route, offset, writer))
            self._watch.note(RECORDS, f"{who}, written by {writer.value},", problem)

    def _limits(self, route: Route, offset: int, writer: Release) -> RecordLimits:
        limits = limits_of(writer, self._watch.levels[writer])
        is_settled = self._settled is not None and offset >= self._settled.get(route, 0)
        return limits._replace(transaction=0) if is_settled and writer is Release.PRESENT else limits
