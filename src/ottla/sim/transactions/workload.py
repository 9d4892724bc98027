"""The clients of a run with transactions.

Zone: deterministic. Two pipelines from one topic into two, mixers, watchers, and readers of both isolation levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from ottla.sim.cluster.admin import ClusterAdmin
from ottla.sim.cluster.readers import ClusterReader, NodeReader
from ottla.sim.cluster.workload import RACKS, ClusterWorkload
from ottla.sim.networks.wire_client import Route
from ottla.sim.transactions.admin import COPIES, INPUT, MIX, SINGLE, TransactionAdmin
from ottla.sim.transactions.copiers import Copier, Pipeline
from ottla.sim.transactions.finding import CoordinatorFinder
from ottla.sim.transactions.history import SeenMarker, SeenRecord, TransactionHistory
from ottla.sim.transactions.members import fetch_positions
from ottla.sim.transactions.mixers import Mixer
from ottla.sim.transactions.polling import parse_row, view_of
from ottla.sim.transactions.steps import Actor, Steps
from ottla.sim.transactions.watchers import Watcher
from ottla.sim.workload.catalog import Role, Topic
from ottla.sim.workload.readers import Cursor
from ottla.sim.world import MS
from ottla.wire.messages import FetchResponse

# Readers of the topics that transactions write, with read_committed and with read_uncommitted. They find leaders and
# followers like all readers of a cluster; `polling` parses the answers.

PAUSE_NS: Final = 150 * MS


class TransactionNodeReader(NodeReader):
    """The part of such a reader that fetches from one broker."""

    def _note_records(self, cursor: Cursor, row: FetchResponse.PartitionData, life: int) -> bool:  # noqa: ARG002  views have no lives
        found = parse_row(row, cursor.position, self.isolation == 1)
        history = self.history
        assert isinstance(history, TransactionHistory), "only runs with transactions have such readers"
        if found.end > cursor.position or found.damage:
            history.views.append(view_of(self._group.client, cursor.log, found, row, self.isolation == 1))
        cursor.high_watermark, cursor.fresh, cursor.broken = row.high_watermark, False, bool(found.damage)
        moved = found.end > cursor.position
        cursor.position = found.end
        return moved


class TransactionReader(ClusterReader):
    """Follows all partitions of the topics that transactions write."""

    part_type: ClassVar[type[NodeReader]] = TransactionNodeReader

    def set_isolation(self, committed: bool) -> None:
        """Set the isolation level, before the start, and limit the reader to a few requests per second."""
        for part in self.parts:
            part.isolation = int(committed)
            part.max_wait_ms, part.pause_ns = 500, max(part.pause_ns, PAUSE_NS)


GROUPS: Final = ("copying", "alone", "watching")
COPYING, ALONE, WATCHING = GROUPS
COPIER_IDS: Final = ("copier-a", "copier-b", "copier-b")
"""Two of the copiers of a group have the same transactional id."""
MIXER_IDS: Final = ("mixer-a", "mixer-b")
WATCHERS: Final = 2
LOOK_NS: Final = 100 * MS
INPUT_NS: Final = 600 * MS
"""Mean time between two batches for the copiers."""


def unread_cursors(cursors: Iterable[tuple[str, Cursor]]) -> list[str]:
    """The cursors that are not at the end of their log: the highest end that any of them has seen.

    A marker that arrives after one cursor has finished moves the end, and only the other cursors see that.
    """
    named, ends = list(cursors), dict[str, int]()
    for _, cursor in named:
        ends[cursor.log] = max(cursor.high_watermark, ends.get(cursor.log, 0))
    return [
        f"{name} on {cursor.log} at {cursor.position} of {ends[cursor.log]}"
        for name, cursor in named
        if not cursor.broken and cursor.position != ends[cursor.log]
    ]


class HistoryJudge(Actor):
    """Fetches the positions of all groups at the end."""

    def __init__(self, workload: TransactionWorkload) -> None:
        super().__init__(workload.make_client("judge"), workload.named_stream("judge"))
        self._history = workload.transaction_history
        self._routes = workload.input_routes()

    def client_steps(self) -> Steps[None]:
        """Fetch the positions of each group."""
        coordinators = CoordinatorFinder(self.client, self.random)
        for group in GROUPS:
            found = yield from fetch_positions(
                self.client, coordinators, self.random, self._history, group, self._routes
            )
            for route, offset in found.items():
                self._history.last_positions[group, route] = offset


class TransactionWorkload(ClusterWorkload):
    """All clients of one run."""

    admin_type: ClassVar[type[ClusterAdmin]] = TransactionAdmin
    producer_kinds: ClassVar[Sequence[tuple[Role, bool]]] = ((Role.INPUT, True),)
    reader_kinds: ClassVar[Sequence[tuple[Role, bool]]] = ((Role.INPUT, True),)
    last_roles: ClassVar[Sequence[Role]] = (Role.INPUT,)

    copiers: Sequence[Copier] = ()
    mixers: Sequence[Mixer] = ()
    watchers: Sequence[Watcher] = ()
    judge: HistoryJudge | None = None
    output_readers: Sequence[TransactionReader] = ()
    last_output_readers: Sequence[TransactionReader] = ()

    @property
    def transaction_history(self) -> TransactionHistory:
        """The history."""
        assert isinstance(self.history, TransactionHistory), "a run with transactions"
        return self.history

    def _topic_named(self, name: str) -> Topic:
        return next(topic for topic in self.catalog.topics if topic.name == name)

    def input_routes(self) -> list[Route]:
        """The partitions that the groups read."""
        return [(INPUT, partition) for partition in range(self._topic_named(INPUT).partitions)]

    # ---- the beginning ----

    def start_clients(self) -> None:
        """Start all clients; copiers, mixers and watchers start when the topics exist."""
        for producer in self.producers:
            producer.interval_ns = INPUT_NS
        super().start_clients()
        self._check_progress()

    def _check_progress(self) -> None:
        if not self.admin.has_all_topics():
            self.network.timeline.schedule_after(LOOK_NS, "are there topics", self._check_progress)
            return
        for topic in self.catalog.topics_of_role(Role.OUTPUT):
            self.transaction_history.ids[topic.name] = topic.topic_id
        self.copiers = list(self._make_copiers())
        self.mixers = [self._make_mixer(number, name) for number, name in enumerate(MIXER_IDS)]
        self.watchers = [self._make_watcher(number) for number in range(WATCHERS)]
        self.output_readers = [
            self._make_output_reader("committed", 0, True, "rack0"),
            self._make_output_reader("committed", 1, True, ""),
            self._make_output_reader("raw", 0, False, f"rack{RACKS - 1}"),
        ]
        for actor in self.all_actors():
            actor.start_steps()
        for reader in self.output_readers:
            reader.start_reading()

    def all_actors(self) -> list[Actor]:
        """Copiers, mixers and watchers."""
        return [*self.copiers, *self.mixers, *self.watchers]

    def _make_copiers(self) -> list[Copier]:
        shared = Pipeline(COPYING, self._topic_named(INPUT), self._topic_named(COPIES), True)
        alone = Pipeline(ALONE, self._topic_named(INPUT), self._topic_named(SINGLE), False)
        copiers = []
        for pipeline, names in ((shared, COPIER_IDS), (alone, (ALONE, ALONE))):
            for number, name in enumerate(names):
                client = self.make_client(f"{pipeline.group}-{number}")
                copiers.append(Copier(client, self.named_stream(client.name), self.transaction_history, pipeline, name))
        return copiers

    def _make_mixer(self, number: int, transactional_id: str) -> Mixer:
        client = self.make_client(f"mixing-{number}")
        return Mixer(
            client, self.named_stream(client.name), self.transaction_history, self._topic_named(MIX), transactional_id
        )

    def _make_watcher(self, number: int) -> Watcher:
        client = self.make_client(f"watching-{number}")
        is_static = self.named_stream(client.name).chance(0.3)
        return Watcher(
            client,
            self.named_stream(client.name),
            self.transaction_history,
            WATCHING,
            self._topic_named(INPUT),
            is_static,
        )

    def _make_output_reader(self, kind: str, number: int, committed: bool, rack: str) -> TransactionReader:
        client = self.make_client(f"{kind}-reader-{number}")
        reader = TransactionReader(
            client, self.catalog, Role.OUTPUT, True, self.named_stream(client.name), self.history, rack
        )
        reader.set_isolation(committed)
        return reader

    # ---- the end ----

    def hurry_actors(self) -> None:
        """Stop deaths, pauses and aborts on purpose, so that the rest is copied.

        Of copiers that fence each other only one continues: two of them might never finish.
        """
        for actor in self.all_actors():
            actor.hurried = True
        going_on: dict[str, Copier] = {}
        for copier in self.copiers:
            copier.working = going_on.setdefault(copier.transactional_id, copier) is copier

    def uncopied_logs(self) -> list[str]:
        """Logs with records above the positions of the groups."""
        reader = self.readers[0]
        found = []
        for cursor in reader.list_cursors():
            route = (cursor.topic.name, cursor.partition)
            for group in GROUPS:
                reached = self._highest_position(group, route)
                if reached < cursor.position or cursor.position != cursor.high_watermark:
                    found.append(f"{group} at {reached} of {cursor.log}, which ends at {cursor.high_watermark}")
        return found

    def _highest_position(self, group: str, route: Route) -> int:
        """The highest position that was reported or acknowledged."""
        history = self.transaction_history
        reached = [one.offset for one in history.commits if one.group == group and one.source == route]
        reached += [one.offset for one in history.positions if one.group == group and one.source == route]
        key = (group, route)
        reached += [txn.positions[key] for txn in history.txns if key in txn.positions and txn.ended_ns >= 0]
        return max([0, *reached])

    def stop_actors(self) -> None:
        """Let all actors finish."""
        for actor in self.all_actors():
            actor.working = False

    def unfinished_actors(self) -> list[str]:
        """Actors that have not finished."""
        return [actor.name for actor in self.all_actors() if not actor.is_done]

    def ask_positions(self) -> None:
        """Fetch the positions of all groups."""
        self.judge = HistoryJudge(self)
        self.judge.start_steps()

    def unanswered_queries(self) -> list[str]:
        """Empty when `ask_positions` is done."""
        return [] if self.judge is not None and self.judge.is_done else ["positions of groups"]

    def read_output(self) -> None:
        """Read the topics that transactions wrote, with both isolation levels."""
        self.last_output_readers = [
            self._make_output_reader("last-committed", 0, True, ""),
            self._make_output_reader("last-raw", 0, False, ""),
        ]
        for reader in self.last_output_readers:
            reader.read_fast()
            reader.start_reading()

    def unread_output(self) -> list[str]:
        """Logs that the last readers have not read; read_committed stops at the last stable offset."""
        return unread_cursors(
            (reader.name, cursor) for reader in self.last_output_readers for cursor in reader.list_cursors()
        )

    def note_output(self) -> None:
        """Add the views of the last readers to the history."""
        history = self.transaction_history
        committed, raw = (reader.name for reader in self.last_output_readers)
        for view in history.views:
            if view.reader == committed:
                found = history.last_committed.setdefault(view.log, {})
                found.update((seen.offset, seen.value) for seen in view.records)
            elif view.reader == raw:
                both: list[SeenRecord | SeenMarker] = [*view.records, *view.markers]
                history.last_raw.setdefault(view.log, []).extend(sorted(both, key=lambda seen: seen.offset))
