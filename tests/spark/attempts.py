"""Shared by tests of the exactly-once sink: attempts at task batches, which a test runs step by step, or abandons.

An attempt that is never called again is a crash; one that is called later is a zombie.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

import confluent_kafka
import pyarrow as pa
from testbench.spark_chaos.committed import await_markers, committed

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import LATEST
from ottla.client.batch_transaction import ConnectionCache, Prepared
from ottla.client.errors import values_of
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.batch_decision import Batch, commit_batch, parts_base
from ottla.spark.sink.exactly_once import Marker, TaskBatch
from ottla.spark.sink.part_ids import take_part_id
from ottla.spark.sink.sink_options import SinkOptions, sink_options
from ottla.spark.sink.transactional_write import TransactionalWrite, make_markers, write_task_batch
from ottla.spark.sink.whole_batches import BatchCalls, TaskResult
from ottla.spark.source.source_positions import Positions
from ottla.types import TopicPartition

MARKERS_S = 2.0
"""How long the end of a transaction is waited for; after that it counts as open."""


class Bench:
    """A broker, a sink and its attempts."""

    def __init__(self, bootstrap: str, topic: str, query: str) -> None:
        self.topic = topic
        self.query = query
        self.bootstrap = bootstrap
        self.options: SinkOptions = sink_options({"kafka.bootstrap.servers": bootstrap, "topic": topic})
        self._links: list[ConnectionCache] = []
        make_markers(self.links())

    def links(self) -> ConnectionCache:
        """As another process."""
        self._links.append(ConnectionCache(self.options.client))
        return self._links[-1]

    def delete_topic(self, name: str) -> None:
        """And wait until it is gone: Kafka answers before all its brokers know."""
        admin = Admin(self.links().cluster)
        values_of({"deleted": admin.delete_topics([name])[name]})
        while any(each.name == name for each in admin.list_topics(internal=True)):
            time.sleep(0.05)

    def attempt(
        self,
        batch: int = 0,
        partition: int = 0,
        safeguards: SinkSafeguards = ALL_ON,
        kind: type[TransactionalWrite] = TransactionalWrite,
    ) -> TransactionalWrite:
        turn = TaskBatch("ottla-", self.query, "sink", batch, partition)
        return kind(self.links(), self.options, turn, safeguards)

    def prepared(
        self, attempt: TransactionalWrite, values: Sequence[str], sources: Positions | None = None
    ) -> Marker | Prepared | None:
        """All steps but the last. sources: the offsets of the source's groups that count with the rows."""
        found = sources or {}
        return write_task_batch(attempt, [rows(values)], lambda: None, begin_without_rows=False, sources=lambda: found)

    def run(
        self, attempt: TransactionalWrite, values: Sequence[str], sources: Positions | None = None
    ) -> Marker | None:
        """All steps; the marker if the rows were committed already."""
        outcome = self.prepared(attempt, values, sources)
        if isinstance(outcome, Marker):
            return outcome
        assert outcome is not None
        attempt.commit_prepared(outcome)
        return None

    def part(self, partition: int, values: Sequence[str], batch: int = 0, name: str | None = None) -> TaskResult:
        """All steps of a task of a batch that is written as a whole; any partition but 0 is a part."""
        attempt = self.attempt(batch, partition)
        if partition:
            attempt.become_part(name or take_part_id(parts_base(attempt.turn), None, batch))
        outcome = write_task_batch(
            attempt, [rows(values)] if values else [], lambda: None, begin_without_rows=not partition
        )
        if isinstance(outcome, Marker):
            return TaskResult(attempt.turn, None, is_open=False, sources={})
        prepared = attempt.identity() if outcome is None and not partition else outcome
        return TaskResult(attempt.turn, prepared, outcome is not None, {})

    def commit_parts(
        self, results: Sequence[TaskResult], calls: BatchCalls | None = None, safeguards: SinkSafeguards = ALL_ON
    ) -> None:
        """The end of a batch, by a driver of its own. results: that of partition 0 first."""
        first, *others = results
        assert first.part is not None
        batch = Batch(first.turn, 0, tuple(one.part for one in others if one.part is not None))
        calls = calls or self.calls()
        commit_batch(calls, batch, first.part, is_open=first.is_open, safeguards=safeguards)

    def calls(self, kind: type[BatchCalls] = BatchCalls) -> BatchCalls:
        """The requests of another driver."""
        return kind(self.links(), self.options.once.timeout_ms)

    def committed(self) -> Counter[str]:
        """What readers of committed records see. A coordinator answers before the markers of an end are written: they
        are waited for, a while, since a transaction may also be open."""
        await_markers(self.bootstrap, self.topic, MARKERS_S)
        return Counter(committed(self.bootstrap, self.topic))

    def group(self, name: str, topic: str) -> dict[int, int]:
        """The committed offsets of a group for a topic, read with librdkafka."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": name, "isolation.level": "read_uncommitted"}
        )
        try:
            numbers = consumer.list_topics(topic, 10).topics[topic].partitions
            found = consumer.committed([confluent_kafka.TopicPartition(topic, number) for number in numbers], 30)
            return {each.partition: each.offset for each in found if each.offset >= 0}
        finally:
            consumer.close()

    def written(self) -> int:
        """Offsets in use in all partitions: rows, committed or not, and the markers of ends."""
        links = self.links()
        view = links.cluster.topic(self.topic)
        places = {TopicPartition(self.topic, number): LATEST for number in view.partitions}
        return sum(found.offset for found in values_of(Admin(links.cluster).list_offsets(places)).values())

    def close(self) -> None:
        for links in self._links:
            links.close_connections()


def rows(values: Iterable[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(list(values), pa.string())], names=["value"])
