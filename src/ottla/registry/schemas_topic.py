"""The topic `_schemas`: read from its beginning, and written by one instance at a time.

Zone: real. For one thread. Instances share a transactional id: the one that initializes it last is the writer, and each
other finds itself fenced at its next commit. So a writer that reads to the end of the topic after it has initialized
decides by all that was ever written, and nothing is written beside it. A write that fails half way is tried again from
the decision on, which then sees what was committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.client import LATEST, Admin, Cluster, Consumer, NewTopic, Producer
from ottla.client.errors import ClientError, ConfigError, RefusedError, WakeupError, values_of
from ottla.client.settings import ClientConfig
from ottla.errors import ErrorCode
from ottla.registry.errors import RegistryError
from ottla.registry.records import Record
from ottla.registry.registration import Decision
from ottla.types import TopicPartition

TOPIC: Final = "_schemas"
REPLICATION_FACTOR: Final = 3
"""Replicas of the topic, or as many as there are brokers."""
ATTEMPTS: Final = 10
"""How often a write is tried that others fence, or that fails."""
_LOAD_S: Final = 60.0
_logger = logging.getLogger(__name__)


class SchemasTopic:
    """Reads the topic and writes to it."""

    def __init__(self, settings: Mapping[str, Any], apply: Callable[[bytes | None, bytes | None], None]) -> None:
        """settings: of the clients. apply: gets key and value of each record, in order. Raises ClientError."""
        self._settings = dict(settings) | {"isolation.level": "read_committed"}
        self._apply = apply
        self._tp = TopicPartition(TOPIC, 0)
        self._cluster = Cluster(ClientConfig.from_mapping(self._settings))
        self.cluster_id = _create_topic(self._cluster)
        self._consumer = Consumer(self._settings)
        self._consumer.assign([self._tp])
        self._consumer.seek_to_beginning([self._tp])
        self._producer: Producer | None = None
        """None: another instance may be the writer."""
        self._written_to = 0
        """The offset after the last record of this instance. The transaction's marker, and so the record, is seen
        only some time after the commit has been answered."""

    def read_to_end(self, timeout_s: float = _LOAD_S) -> None:
        """Apply all records that are committed now. Raises ClientError, RegistryError: it takes too long."""
        # Not by the consumer, whose next answer may come only with the next record.
        found = values_of(Admin(self._cluster).list_offsets({self._tp: LATEST}))
        end = max(found[self._tp].offset, self._written_to)
        until = time.monotonic() + timeout_s
        while self._consumer.position(self._tp) < end:
            if time.monotonic() > until:
                raise RegistryError(50003, f"the topic {TOPIC} could not be read to its end in {timeout_s:g} s")
            self.read_some(0.5)

    def read_some(self, timeout_s: float) -> None:
        """Wait for records, and apply them. `wake` ends the wait."""
        try:
            for record in self._consumer.poll(timeout_s):
                self._apply(record.key, record.value)
        except WakeupError:
            return

    def wake(self) -> None:
        """End a wait; for any thread."""
        self._consumer.wakeup()

    def write(self, decide: Callable[[], Decision]) -> Decision:
        """Decide by all that is committed, and write. Raises RegistryError, ClientError."""
        for attempt in range(ATTEMPTS):
            try:
                return self._write_once(decide)
            except ClientError as error:
                _logger.info("writing to %s failed, attempt %d of %d: %s", TOPIC, attempt + 1, ATTEMPTS, error)
                self._close_producer()
                failure = error
        raise RegistryError(50001, f"Error in the backend data store: {failure}")

    def _write_once(self, decide: Callable[[], Decision]) -> Decision:
        if self._producer is None:
            self._producer = Producer({"transactional.id": f"{TOPIC}-writer", "linger.ms": 0} | self._settings)
            self._producer.init_transactions()
        self.read_to_end()
        decision = decide()
        if decision.records:
            self._commit(self._producer, decision.records)
            self.read_to_end()
        return decision

    def _commit(self, producer: Producer, records: tuple[Record, ...]) -> None:
        producer.begin_transaction()
        sent = [producer.send(TOPIC, each.value, key=each.key, partition=0) for each in records]
        producer.commit_transaction()
        self._written_to = max(each.result().offset for each in sent) + 1

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.close(5)
            except ClientError as error:
                _logger.info("the producer of %s was closed with: %s", TOPIC, error)

    def close(self) -> None:
        """Close the clients."""
        self._close_producer()
        self._consumer.close()
        self._cluster.close()


def _create_topic(cluster: Cluster) -> str:
    """Create the topic if it does not exist. Returns the cluster's id. Raises ClientError."""
    admin = Admin(cluster)
    description = admin.describe_cluster()
    # A topic that exists needs no right to create it.
    if isinstance(admin.describe_topics([TOPIC])[TOPIC], ClientError):
        replicas = min(REPLICATION_FACTOR, len(description.nodes))
        created = admin.create_topics([NewTopic(TOPIC, 1, replicas, configs={"cleanup.policy": "compact"})])[TOPIC]
        if isinstance(created, ClientError) and not _is_existing(created):
            raise created
    if len(cluster.topic(TOPIC).partitions) != 1:
        raise ConfigError(f"the topic {TOPIC} has several partitions: a registry needs the order of one")
    return description.cluster_id


def _is_existing(error: ClientError) -> bool:
    return isinstance(error, RefusedError) and error.code == ErrorCode.TOPIC_ALREADY_EXISTS
