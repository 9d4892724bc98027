"""The topic of definitions: created, read to its end within bounds, and written one record at a time.

Zone: real. A compacted topic of one partition, as Kafka Connect's `config.storage.topic`. Through ordinary requests, so
it may be on any Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import EARLIEST, LATEST, NewTopic, Resource, ResourceType
from ottla.client.cluster import NEW_TOPIC_MS, Cluster
from ottla.client.errors import ClientError, RefusedError, first_error, values_of
from ottla.client.fetching.fetch import fetch_range
from ottla.client.metadata import TopicView
from ottla.client.produce import Sender, new_identity
from ottla.client.records import records_in
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.pipeline.definitions.definition import DefinitionTable, PipelineDefinition, encode_definition
from ottla.record.batch import Record, encode_batch
from ottla.types import TopicPartition

TOPIC: Final = "_ottla-pipelines"
"""The default. Topics whose names begin with `_` hold the state of programs: `ottla apply` deletes none of them."""
SETTINGS: Final[Mapping[str, str]] = {"isolation.level": "read_committed", "acks": "all"}
"""Settings that a client of the topic has, whatever the user's are."""
RECORDS_MAX: Final = 200_000
BYTES_MAX: Final = 64 << 20
"""Of record batches, as they are sent. A topic that was compacted has some kilobytes."""
_BATCH_BYTES_MAX: Final = 16 << 20
_COMPACT: Final = {"cleanup.policy": "compact"}


class DefinitionsTopicError(ClientError):
    """The topic cannot hold definitions, or has more than is read."""


class DefinitionsTopic:
    """Reads and writes the topic with a client that has `SETTINGS`, which stays open."""

    def __init__(self, cluster: Cluster, name: str = TOPIC) -> None:
        self.name = name
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._tp = TopicPartition(name, 0)

    def new_topic(self) -> NewTopic:
        """The topic to create: its replicas are the brokers' default."""
        return NewTopic(self.name, 1, -1, _COMPACT)

    def create_topic(self) -> None:
        """Create the topic if it does not exist. Raises ClientError."""
        # A topic that exists needs no right to create it.
        if not self.check_topic():
            error = first_error(self._admin.create_topics([self.new_topic()]))
            if error is not None and not _has_code(error, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise error
            self._await_topic()

    def _await_topic(self) -> None:
        """Wait until a broker knows the topic, which may have been created just now. Raises ClientError."""
        # Not `Cluster.topic(create=True)`, by which a broker may create a topic of its own settings.
        retries = self._cluster.retries(f"metadata of topic {self.name}", Deadline.after_ms(NEW_TOPIC_MS))
        while isinstance(view := self._admin.describe_topics([self.name])[self.name], ClientError):
            if not view.retriable:
                raise view
            retries.wait_backoff(view)

    def check_topic(self) -> bool:
        """Whether the topic exists. Raises DefinitionsTopicError for one that would lose definitions, ClientError."""
        view = self._admin.describe_topics([self.name])[self.name]
        if not isinstance(view, TopicView):
            if _has_code(view, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                return False
            raise view
        if len(view.partitions) != 1:
            raise DefinitionsTopicError(
                f"the topic {self.name} has {len(view.partitions)} partitions: definitions need the order of one",
                "Name another topic with --pipelines-topic",
            )
        self._check_policy()
        return True

    def _check_policy(self) -> None:
        resource = Resource(ResourceType.TOPIC, self.name)
        settings = self._admin.describe_configs([resource])[resource]
        if isinstance(settings, ClientError):
            raise settings
        policy = next((each.value for each in settings if each.name == "cleanup.policy"), None)
        # By time or by size, brokers would delete the definition of a pipeline that runs.
        if policy != "compact":
            raise DefinitionsTopicError(
                f"the topic {self.name} has cleanup.policy={policy}: its definitions would be deleted",
                f"Set it: ottla config set topic/{self.name} cleanup.policy=compact",
            )

    def read_definitions(self) -> DefinitionTable:
        """The definitions of all records that are committed now.

        Raises DefinitionsTopicError for more than RECORDS_MAX, BYTES_MAX or `default.api.timeout.ms`, ClientError.
        """
        table, deadline = DefinitionTable(), self._cluster.deadline()
        records = sent = 0
        start, end = self._find_offset(EARLIEST, deadline), self._find_offset(LATEST, deadline)
        for fetched in fetch_range(self._cluster, self._tp, start, end) if start < end else ():
            sent += len(fetched.records)
            for record in records_in(fetched, max_batch_bytes=_BATCH_BYTES_MAX):
                records += 1
                table.apply_record(record.key, record.value)
            self._check_bounds(records, sent, deadline)
        return table

    def _find_offset(self, place: int, deadline: Deadline) -> int:
        return values_of(self._admin.list_offsets({self._tp: place}, deadline))[self._tp].offset

    def _check_bounds(self, records: int, sent: int, deadline: Deadline) -> None:
        if records > RECORDS_MAX or sent > BYTES_MAX or deadline.expired:
            raise DefinitionsTopicError(
                f"the topic {self.name} was not read to its end: {records} records and {sent} bytes so far",
                f"Up to {RECORDS_MAX} records and {BYTES_MAX >> 20} MiB are read, within --timeout: is it compacted?",
            )

    def write_definition(self, name: str, definition: PipelineDefinition | None) -> None:
        """Write one definition; None deletes it. Returns when all in-sync replicas have it. Raises ClientError."""
        self._await_topic()
        value = None if definition is None else encode_definition(definition)
        # A producer id, so that brokers recognize the batch of a retry.
        identity = new_identity(self._cluster)
        batch = encode_batch(
            [Record(0, time.time_ns() // 1_000_000, name.encode(), value)],
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=identity.take_sequence(self._tp, 1),
        )
        error = first_error(Sender(self._cluster).send({self._tp: batch}))
        if error is not None:
            raise error


def _has_code(error: ClientError, code: ErrorCode) -> bool:
    return isinstance(error, RefusedError) and error.code is code
