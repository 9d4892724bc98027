"""The operator who finalizes levels, and a producer to a topic with an older message format.

Zone: deterministic.
"""

from __future__ import annotations

from typing import Final

from ottla.record.batch import Record, encode_batch
from ottla.sim.cluster.client import ClusterClient
from ottla.sim.faults import Fired
from ottla.sim.networks.wire_client import CONTROLLER
from ottla.sim.world import MS, SECOND, WALL_START_MS
from ottla.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    ProduceRequest,
    ProduceResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.wire.schema import Message
from testbench.mixed.formats import OLD_FORMAT

FEATURE: Final = "transaction.version"
_UPDATE_VERSION: Final = 1
_UPGRADE, _SAFE_DOWNGRADE = 1, 2
_AGAIN_NS: Final = 700 * MS
_TRIES: Final = 20
_LOOK_NS: Final = 300 * MS
_CREATE_VERSION: Final = 5
_PRODUCE_VERSION: Final = 7
_PAUSE_NS: Final = 400 * MS
_VALUE: Final = b"written for a topic whose messages have the format of 0.10.2 "
"""Long enough for a message to be as large as the header of a batch, which readers of logs expect."""


class FeatureOperator:
    """Finalizes levels of transaction.version."""

    def __init__(self, client: ClusterClient, fired: Fired) -> None:
        self._client = client
        self._fired = fired
        self._orders = 0
        """Orders so far: a later one ends the attempts of those before."""

    def try_level(self, level: int) -> None:
        """Send a request that the cluster has to refuse, to the controller that is known by now."""
        self._send_update(self._orders, level, 1)

    def find_controller(self) -> None:
        """Ask who is the controller."""
        self._client.mark_metadata_stale()

    def finalize_level(self, level: int) -> None:
        """Finalize a level, and repeat that until the controller has done it."""
        self._orders += 1
        self._prepare_update(self._orders, level, _TRIES)

    def stop_trying(self) -> None:
        """Send nothing more."""
        self._orders += 1

    def _prepare_update(self, order: int, level: int, tries: int) -> None:
        """Learn who is the controller, then send."""
        if tries > 0 and order == self._orders:
            self._client.mark_metadata_stale()
            self._client.timeline.schedule_after(_LOOK_NS, "operator", self._send_update, order, level, tries)

    def _send_update(self, order: int, level: int, tries: int) -> None:
        # Of the two kinds only one fits, which depends on the level before: each second attempt is a downgrade.
        kind = _UPGRADE if tries % 2 else _SAFE_DOWNGRADE
        update = UpdateFeaturesRequest.FeatureUpdateKey(feature=FEATURE, max_version_level=level, upgrade_type=kind)
        request = UpdateFeaturesRequest(timeout_ms=1000, feature_updates=[update])

        def on_response(response: Message | None, _node: int) -> None:
            code = response.error_code if isinstance(response, UpdateFeaturesResponse) else None
            if code is not None:
                self._fired("level refused" if code else "level finalized")
            if code != 0:
                again = order, level, tries - 1
                self._client.timeline.schedule_after(_AGAIN_NS, "operator", self._prepare_update, *again)

        if order == self._orders:
            self._client.send_request(request, _UPDATE_VERSION, UpdateFeaturesResponse, on_response, CONTROLLER)


class OldFormatProducer:
    """Writes now and then to a topic of its own, whose message format is that of 0.10.2."""

    def __init__(self, client: ClusterClient, replication: int) -> None:
        self._client = client
        self._replication = replication
        self._number = 0

    def start_writing(self) -> None:
        """Create the topic, and write until the run ends."""
        config = CreateTopicsRequest.CreatableTopicConfig(name="message.format.version", value="0.10.2")
        topic = CreateTopicsRequest.CreatableTopic(
            name=OLD_FORMAT, num_partitions=2, replication_factor=self._replication, configs=[config]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        self._client.mark_metadata_stale()
        self._client.send_request(request, _CREATE_VERSION, CreateTopicsResponse, self._on_created, CONTROLLER)

    def _on_created(self, _response: Message | None, _node: int) -> None:
        self._client.mark_metadata_stale()
        known = (OLD_FORMAT, 0) in self._client.view
        self._client.timeline.schedule_after(SECOND, "old format", self._write_batch if known else self.start_writing)

    def _write_batch(self) -> None:
        self._number += 1
        partition = self._number % 2
        wall_ms = WALL_START_MS + self._client.timeline.now_ns // MS
        batch = encode_batch([Record(0, wall_ms, None, _VALUE + b"%d" % self._number)])
        row = ProduceRequest.PartitionProduceData(index=partition, records=bytes(batch))
        topic = ProduceRequest.TopicProduceData(name=OLD_FORMAT, partition_data=[row])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        self._client.send_request(request, _PRODUCE_VERSION, ProduceResponse, self._on_written, (OLD_FORMAT, partition))

    def _on_written(self, response: Message | None, _node: int) -> None:
        failed = not isinstance(response, ProduceResponse) or any(
            row.error_code for topic in response.responses for row in topic.partition_responses
        )
        if failed:
            self._client.mark_metadata_stale()
        self._client.timeline.schedule_after(_PAUSE_NS, "old format", self._write_batch)
