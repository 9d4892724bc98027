"""Mixers: transactions that write into partitions of one topic, and read committed values of others there.

Zone: deterministic. A transaction depends on those whose values it reads before its end. These dependencies must not
form a cycle.
"""

from __future__ import annotations

from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.networks.wire_client import Route
from ottla.sim.transactions.copiers import Died
from ottla.sim.transactions.finding import CoordinatorFinder
from ottla.sim.transactions.history import TransactionHistory, Txn
from ottla.sim.transactions.polling import poll
from ottla.sim.transactions.producers import Abortable, Fenced, TransactionalProducer
from ottla.sim.transactions.steps import Actor, Steps, pause
from ottla.sim.workload.catalog import Topic
from ottla.sim.world import MS, SECOND


class Mixer(Actor):
    """One mixer; several may have the same transactional id."""

    def __init__(
        self,
        client: ClusterClient,
        random: Stream,
        history: TransactionHistory,
        topic: Topic,
        transactional_id: str,
    ) -> None:
        super().__init__(client, random)
        self.history = history
        self.topic = topic
        self.transactional_id = transactional_id
        self.version = random.choice((1, 1, 2))
        self._count = 0
        self._positions: dict[Route, int] = {}

    def steps(self) -> Steps[None]:
        """One life after the other."""
        while self.working:
            coordinators = CoordinatorFinder(self.client, self.random)
            producer = TransactionalProducer(
                self.client, coordinators, self.random, self.history, self.transactional_id, self.version
            )
            try:
                yield from self._live(producer)
            except Died:
                yield from pause(self.random.between(300, 4000) * MS)
            finally:
                producer.abandon()

    def _live(self, producer: TransactionalProducer) -> Steps[None]:
        yield from producer.init()
        while self.working:
            yield from pause(self.random.below(700 * MS))
            try:
                yield from self._mix(producer)
            except Fenced:
                yield from self._come_back(producer)

    def _come_back(self, producer: TransactionalProducer) -> Steps[None]:
        try:
            yield from producer.init()
        except Fenced:
            yield from pause(self.random.between(500, 4000) * MS)
            yield from producer.init()

    def _mix(self, producer: TransactionalProducer) -> Steps[None]:
        txn = producer.begin_transaction()
        try:
            yield from self._write(producer, txn)
        except Abortable:
            yield from producer.abort()
        yield from producer.settle()

    def _write(self, producer: TransactionalProducer, txn: Txn) -> Steps[None]:
        for _ in range(self.random.between(1, 3)):
            if self._is_hasty(0.08):
                yield from producer.send(self._somewhere(), self._values(), wait=False)
                yield from producer.abort()
                return
            yield from producer.send(self._somewhere(), self._values())
            if self.random.chance(0.5):
                yield from self._read(txn)
            yield from self._hesitate()
        commit = not self._is_hasty(0.2)
        if self._is_hasty(0.02):
            yield from producer.end_without_waiting(commit)
            raise Died
        yield from producer.end(commit)

    def _read(self, txn: Txn) -> Steps[None]:
        route = self._somewhere()
        position = self._positions.get(route, 0)
        polled = yield from poll(self.client, self.random, self.topic, route[1], position)
        if polled is not None:
            txn.read.extend(record.value for record in polled.records)
            self._positions[route] = polled.end
            self.history.views.append(polled.view)

    def _somewhere(self) -> Route:
        return self.topic.name, self.random.below(self.topic.partitions)

    def _values(self) -> list[bytes]:
        values = []
        for _ in range(1 + self.random.below(3)):
            self._count += 1
            values.append(f"{self.name} {self._count} {self.topic.name}".encode())
        return values

    def _is_hasty(self, probability: float) -> bool:
        return not self.hurried and self.random.chance(probability)

    def _hesitate(self) -> Steps[None]:
        if self._is_hasty(0.01):
            raise Died
        if self._is_hasty(0.02):
            yield from pause(self.random.between(1, 5) * SECOND)
