"""Copiers: copy each record of a topic into another one exactly once, in transactions that also commit the position.

Zone: deterministic. Copiers of a group share the partitions by its generations (KIP-447). Copiers of a pipeline without
members all take all partitions, with one transactional id, so that each fences the others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.networks.wire_client import Route
from ottla.sim.transactions.finding import CoordinatorFinder
from ottla.sim.transactions.history import Copied, Fate, SeenRecord, TransactionHistory
from ottla.sim.transactions.members import Member, fetch_positions, pause_a_moment
from ottla.sim.transactions.polling import HURRIED_BYTES, MAX_BYTES, poll_partition
from ottla.sim.transactions.producers import Abortable, Evicted, Fenced, Membership, TransactionalProducer
from ottla.sim.transactions.steps import Actor, Steps, pause_client
from ottla.sim.workload.catalog import Topic
from ottla.sim.world import MS, SECOND

RECORDS_MAX: Final = 12
"""Maximum of records in one transaction."""
LOOK_BACK: Final = 0.1
"""Chance that a copier fetches its position right after a commit, when the marker may not be written yet."""


class Died(Exception):
    """The process of the client ends; requests that it has sent may still arrive."""


class Pipeline(NamedTuple):
    """Source, target and group of copies."""

    group: str
    source: Topic
    target: Topic
    shared: bool
    """True: the copiers are members of the group. False: one of them at a time has all partitions."""


class Copier(Actor):
    """One copier."""

    def __init__(
        self,
        client: ClusterClient,
        random: Stream,
        history: TransactionHistory,
        pipeline: Pipeline,
        transactional_id: str,
    ) -> None:
        super().__init__(client, random)
        self.history = history
        self.pipeline = pipeline
        self.transactional_id = transactional_id
        self.version = random.choice((1, 1, 2))
        self._count = 0

    def client_steps(self) -> Steps[None]:
        """One life after the other."""
        while self.working:
            try:
                yield from self._run_life()
            except Died:
                yield from pause_client(self.random.between(300, 4000) * MS)

    def _run_life(self) -> Steps[None]:
        coordinators = CoordinatorFinder(self.client, self.random)
        producer = TransactionalProducer(
            self.client, coordinators, self.random, self.history, self.transactional_id, self.version
        )
        one = _Life(self, producer, coordinators)
        try:
            yield from one.run_life()
        finally:
            producer.abandon_transaction()

    def new_value(self, source: Route, offset: int) -> bytes:
        """Make a new value, and note of which record it is the copy."""
        self._count += 1
        value = f"{self.name} {self._count} {source[0]}-{source[1]} {offset}".encode()
        self.history.copies[value] = Copied(self.pipeline.group, source, offset)
        return value


class _Life:
    """A copier from its start to its death."""

    def __init__(self, copier: Copier, producer: TransactionalProducer, coordinators: CoordinatorFinder) -> None:
        self._copier = copier
        self._client = copier.client
        self._random = copier.random
        self._history = copier.history
        self._pipeline = copier.pipeline
        self._producer = producer
        self._coordinators = coordinators
        self._member: Member | None = None
        if copier.pipeline.shared:
            pipeline = copier.pipeline
            self._member = Member(
                copier.client, coordinators, copier.random, copier.history, pipeline.group, pipeline.source
            )

    def run_life(self) -> Steps[None]:
        """Take the transactional id; then copy until the end of the run. Raises Died."""
        yield from self._producer.init_producer_id()
        while self._copier.working:
            try:
                yield from self._run_session()
            except Evicted as evicted:
                if self._member is not None:
                    self._member.on_evicted(evicted.code)
            except Fenced:
                yield from self._come_back()
        if self._member is not None and self._random.chance(0.5):
            yield from self._member.leave_group()

    def _come_back(self) -> Steps[None]:
        """Take the id again: the transaction timed out, or another copier has the id and gets time to work."""
        try:
            yield from self._producer.init_producer_id()
        except Fenced:
            yield from pause_client(self._random.between(500, 5000) * MS)
            yield from self._producer.init_producer_id()

    def _run_session(self) -> Steps[None]:
        """One generation. Raises Evicted, Fenced, Died."""
        if self._member is None:
            source = self._pipeline.source
            routes: tuple[Route, ...] = tuple((source.name, partition) for partition in range(source.partitions))
        else:
            routes = yield from self._member.join_group()
        positions = yield from self._fetch_positions(routes, stable=True) if routes else _no_positions()
        while self._copier.working:
            if self._member is not None:
                yield from self._member.send_heartbeat()
            if not routes:
                yield from pause_client(300 * MS)
                continue
            if self._random.chance(0.03):
                yield from self._fetch_positions(routes, stable=False)
            if not (yield from self._copy_some(positions)):
                return

    def _fetch_positions(self, routes: tuple[Route, ...], stable: bool) -> Steps[dict[Route, int]]:
        return fetch_positions(
            self._client, self._coordinators, self._random, self._history, self._pipeline.group, routes, stable
        )

    # ---- one transaction ----

    def _copy_some(self, positions: dict[Route, int]) -> Steps[bool]:
        """Copy new records of one partition. False: it is unknown whether the transaction committed."""
        route = self._random.choice(sorted(positions))
        most = HURRIED_BYTES if self._copier.hurried else MAX_BYTES
        polled = yield from poll_partition(
            self._client, self._random, self._pipeline.source, route[1], positions[route], most
        )
        if polled is None or not polled.records:
            yield from pause_a_moment(self._random)
            return True
        records = polled.records
        if not self._copier.hurried:
            records = records[: 1 + self._random.random_below(RECORDS_MAX)]
        txn = self._producer.begin_transaction()
        after = {route: records[-1].offset + 1}
        try:
            yield from self._write_copies(route, records, after)
        except Abortable:
            yield from self._producer.abort_transaction()
        except Evicted:
            yield from self._producer.abort_transaction()
            yield from self._producer.renew_epoch()
            raise
        yield from self._producer.renew_epoch()
        if not self._copier.hurried:
            yield from pause_client(self._random.random_below(150 * MS))
        if txn.fate is Fate.COMMITTED:
            positions.update(after)
            if self._random.chance(LOOK_BACK):
                yield from self._fetch_positions(tuple(after), stable=True)
        return txn.fate is not Fate.OPEN

    def _write_copies(self, route: Route, records: list[SeenRecord], after: dict[Route, int]) -> Steps[None]:
        """The transaction: copies and position, in either order, and the end."""
        # Every order that a client may choose: positions before or after the values, pauses in between, an abort that
        # does not wait for the last Produce, an end whose answer is never read.
        member: Membership = self._member or Membership()
        positions_first = self._random.chance(0.2)
        if positions_first:
            yield from self._producer.commit_offsets(self._pipeline.group, member, after)
        yield from self._maybe_stall()
        for target, values in self._spread_records(route, records).items():
            if self._is_hasty(0.03):
                yield from self._producer.send_values(target, values, wait=False)
                yield from self._producer.abort_transaction()
                return
            yield from self._producer.send_values(target, values)
        yield from self._maybe_stall()
        if not positions_first:
            yield from self._producer.commit_offsets(self._pipeline.group, member, after)
        yield from self._maybe_stall()
        commit = not self._is_hasty(0.1)
        if self._is_hasty(0.02):
            yield from self._producer.end_without_waiting(commit)
            raise Died
        yield from self._producer.end_transaction(commit)

    def _spread_records(self, route: Route, records: list[SeenRecord]) -> dict[Route, list[bytes]]:
        target = self._pipeline.target
        spread: dict[Route, list[bytes]] = {}
        for record in records:
            place = (target.name, self._random.random_below(target.partitions))
            spread.setdefault(place, []).append(self._copier.new_value(route, record.offset))
        return spread

    def _is_hasty(self, probability: float) -> bool:
        return not self._copier.hurried and self._random.chance(probability)

    def _maybe_stall(self) -> Steps[None]:
        """Sometimes pause for longer than the timeouts of others, or die."""
        if self._copier.hurried:
            return
        if self._random.chance(0.015):
            raise Died
        if self._random.chance(0.025):
            yield from pause_client(int(self._random.between(1, 6) * SECOND))


def _no_positions() -> Steps[dict[Route, int]]:
    yield from ()
    return {}
