"""Watchers: members of a group that process records and commit their positions, without transactions.

Zone: deterministic. At least once: every record below the position of the group was processed.
"""

from __future__ import annotations

from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.networks.wire_client import Route
from ottla.sim.transactions.copiers import Died
from ottla.sim.transactions.finding import CoordinatorFinder
from ottla.sim.transactions.history import Processed, TransactionHistory
from ottla.sim.transactions.members import Member, fetch_positions, pause_a_moment
from ottla.sim.transactions.polling import HURRIED_BYTES, MAX_BYTES, poll_partition
from ottla.sim.transactions.producers import Evicted
from ottla.sim.transactions.steps import Actor, Steps, pause_client
from ottla.sim.workload.catalog import Topic
from ottla.sim.world import MS, SECOND


class Watcher(Actor):
    """One member."""

    def __init__(
        self,
        client: ClusterClient,
        random: Stream,
        history: TransactionHistory,
        group: str,
        topic: Topic,
        is_static: bool,
    ) -> None:
        super().__init__(client, random)
        self.history = history
        self.group = group
        self.topic = topic
        self._instance_id = f"{client.name} static" if is_static else None

    def client_steps(self) -> Steps[None]:
        """One life after the other."""
        while self.working:
            coordinators = CoordinatorFinder(self.client, self.random)
            member = Member(
                self.client, coordinators, self.random, self.history, self.group, self.topic, self._instance_id
            )
            try:
                yield from self._run_life(member, coordinators)
            except Died:
                yield from pause_client(self.random.between(300, 4000) * MS)

    def _run_life(self, member: Member, coordinators: CoordinatorFinder) -> Steps[None]:
        while self.working:
            routes = yield from member.join_group()
            try:
                yield from self._run_generation(member, coordinators, routes)
            except Evicted as evicted:
                member.on_evicted(evicted.code)
        yield from member.leave_group()

    def _run_generation(
        self, member: Member, coordinators: CoordinatorFinder, routes: tuple[Route, ...]
    ) -> Steps[None]:
        """One generation. Raises Evicted, Died."""
        positions: dict[Route, int] = {}
        if routes:
            positions = yield from fetch_positions(
                self.client, coordinators, self.random, self.history, self.group, routes, self.random.chance(0.5)
            )
        while self.working:
            yield from member.send_heartbeat()
            if positions:
                yield from self._process_records(member, positions)
            else:
                yield from pause_client(300 * MS)
            if not self.hurried and self.random.chance(0.004):
                yield from member.leave_group()
                return

    def _process_records(self, member: Member, positions: dict[Route, int]) -> Steps[None]:
        route = self.random.choice(sorted(positions))
        first = positions[route]
        most = HURRIED_BYTES if self.hurried else MAX_BYTES
        polled = yield from poll_partition(self.client, self.random, self.topic, route[1], first, most)
        if polled is None or not polled.records:
            yield from pause_a_moment(self.random)
            return
        end = polled.records[-1].offset + 1
        self.history.processed.append(Processed(self.group, route, first, end))
        yield from self._maybe_stall()
        yield from member.commit_positions({route: end})
        positions[route] = end
        yield from pause_client(self.random.random_below(300 * MS))

    def _maybe_stall(self) -> Steps[None]:
        if self.hurried:
            return
        if self.random.chance(0.01):
            raise Died
        if self.random.chance(0.03):
            yield from pause_client(self.random.between(1, 7) * SECOND)
