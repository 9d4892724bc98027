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
from ottla.sim.transactions.polling import poll_partition
from ottla.sim.transactions.producers import Abortable, Fenced, TransactionalProducer
from ottla.sim.transactions.steps import Actor, Steps, pause_client
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

    def client_steps(self) -> Steps[None]:
        """One life after the other."""
        while self.working:
            coordinators = CoordinatorFinder(self.client, self.random)
            producer = TransactionalProducer(
                self.client, coordinators, self.random, self.history, self.transactional_id, self.version
            )
            try:
                yield from self._run_life(producer)
            except Died:
                yield from pause_client(self.random.between(300, 4000) * MS)
            finally:
                producer.abandon_transaction()

    def _run_life(self, producer: TransactionalProducer) -> Steps[None]:
        yield from producer.init_producer_id()
        while self.working:
            yield from pause_client(self.random.random_below(700 * MS))
            try:
                yield from self._run_transaction(producer)
            except Fenced:
                yield from self._come_back(producer)

    def _come_back(self, producer: TransactionalProducer) -> Steps[None]:
        try:
            yield from producer.init_producer_id()
        except Fenced:
            yield from pause_client(self.random.between(500, 4000) * MS)
            yield from producer.init_producer_id()

    def _run_transaction(self, producer: TransactionalProducer) -> Steps[None]:
        txn = producer.begin_transaction()
        try:
            yield from self._write_values(producer, txn)
        except Abortable:
            yield from producer.abort_transaction()
        yield from producer.renew_epoch()

    def _write_values(self, producer: TransactionalProducer, txn: Txn) -> Steps[None]:
        for _ in range(self.random.between(1, 3)):
            if self._is_hasty(0.08):
                yield from producer.send_values(self._pick_partition(), self._new_values(), wait=False)
                yield from producer.abort_transaction()
                return
            yield from producer.send_values(self._pick_partition(), self._new_values())
            if self.random.chance(0.5):
                yield from self._read_committed(txn)
            yield from self._maybe_stall()
        commit = not self._is_hasty(0.2)
        if self._is_hasty(0.02):
            yield from producer.end_without_waiting(commit)
            raise Died
        yield from producer.end_transaction(commit)

    def _read_committed(self, txn: Txn) -> Steps[None]:
        route = self._pick_partition()
        position = self._positions.get(route, 0)
        polled = yield from poll_partition(self.client, self.random, self.topic, route[1], position)
        if polled is not None:
            txn.read.extend(record.value for record in polled.records)
            self._positions[route] = polled.end
            self.history.views.append(polled.view)

    def _pick_partition(self) -> Route:
        return self.topic.name, self.random.random_below(self.topic.partitions)

    def _new_values(self) -> list[bytes]:
        values = []
        for _ in range(1 + self.random.random_below(3)):
            self._count += 1
            values.append(f"{self.name} {self._count} {self.topic.name}".encode())
        return values

    def _is_hasty(self, probability: float) -> bool:
        return not self.hurried and self.random.chance(probability)

    def _maybe_stall(self) -> Steps[None]:
        if self._is_hasty(0.01):
            raise Died
        if self._is_hasty(0.02):
            yield from pause_client(self.random.between(1, 5) * SECOND)
