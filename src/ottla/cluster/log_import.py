"""Imports topics of another cluster, whose logs are in this broker's directories, into an empty metadata store.

Zone: deterministic. One workflow, which can be repeated. It runs if `ottla.adopt.logs` is set, before the store has a
cluster id. Settings that the logs do not contain are chosen so that no record is deleted by age or size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from ottla.cluster.image import CONSUMER_OFFSETS, TRANSACTION_STATE, PartitionImage, TopicImage
from ottla.cluster.store.layout import PRODUCER_ID_BLOCK, TOPICS, BlockNode, encode_block
from ottla.cluster.store.workflow import Workflow, read_children, read_node, submit_multi
from ottla.cluster.topics import STEP_PARTITIONS, creation_head, state_ops
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Op
from ottla.storage.recovery.found_logs import FoundLog
from ottla.types import ZERO_UUID

LANE: Final = "adoption"
SPARE_PRODUCER_IDS: Final = 1_000_000
"""Ids after the largest one in a snapshot that may have been allocated since."""
KEPT: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of a topic whose own are not known: no record is deleted by age or size until they are set."""
COMPACTED: Final = {"cleanup.policy": "compact", "compression.type": "producer"}

logger = logging.getLogger(__name__)


def import_logs(found: Sequence[FoundLog], config: BrokerConfig, new_id: Callable[[], bytes]) -> Workflow[None]:
    """Create the nodes of all topics that have logs here, with this broker as the only replica of each partition.

    Raises ApiError INCONSISTENT_TOPIC_ID when the logs of one name are of different topics.
    """
    present = yield from read_children(TOPICS)
    for topic in _found_topics(found, config, new_id):
        if topic.name in present:
            continue
        logger.warning(
            "importing topic %s with %d partitions and the settings %s; its logs do not contain its own settings",
            topic.name, len(topic.partitions), dict(topic.overrides),
        )  # fmt: skip
        yield from submit_multi(LANE, creation_head(topic, has_config=False, controller_epoch=0))
        for start in range(STEP_PARTITIONS, len(topic.partitions), STEP_PARTITIONS):
            yield from submit_multi(LANE, state_ops(topic.name, topic.partitions[start : start + STEP_PARTITIONS], 0))
    yield from _skip_producer_ids(max((log.producer_id for log in found), default=-1), config.node_id)


def _skip_producer_ids(largest: int, node_id: int) -> Workflow[None]:
    """Mark ids as allocated up to the largest in the logs, so that no new producer gets an id that the logs contain."""
    node = yield from read_node(PRODUCER_ID_BLOCK)
    if largest < 0 or (node is not None and node.data):
        return
    content = encode_block(BlockNode(node_id, 0, largest + SPARE_PRODUCER_IDS))
    op = Op("create", PRODUCER_ID_BLOCK, content) if node is None else Op("put", PRODUCER_ID_BLOCK, content)
    yield from submit_multi(LANE, [op])


def _found_topics(found: Sequence[FoundLog], config: BrokerConfig, new_id: Callable[[], bytes]) -> Iterator[TopicImage]:
    for name, group in groupby(found, key=lambda log: log.tp.topic):
        logs = {log.tp.partition: log for log in group}
        # Logs of old versions have no id. All others must agree, or the directories mix two topics of one name.
        ids = {log.topic_id for log in logs.values()} - {ZERO_UUID}
        if len(ids) > 1:
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"the logs of {name} are of {len(ids)} different topics")
        count = max(logs) + 1
        # Other brokers had the missing partitions. An internal topic may have more of them after the last log here.
        if len(logs) < count:
            count = max(count, _configured_partitions(name, config))
        if len(logs) < count:
            logger.warning(
                "importing topic %s: %d of its partitions have no log here and start empty", name, count - len(logs)
            )
        partitions = tuple(_initial_partition(number, logs.get(number), config.node_id) for number in range(count))
        yield TopicImage(name, next(iter(ids), None) or new_id(), partitions, _import_settings(name), TopicConfig())


def _initial_partition(number: int, log: FoundLog | None, node_id: int) -> PartitionImage:
    # Not below the epoch of the newest records: leader epochs do not decrease within a log.
    epoch = 0 if log is None else max(log.leader_epoch, 0)
    return PartitionImage(number, node_id, epoch, (node_id,), (node_id,))


def _configured_partitions(name: str, config: BrokerConfig) -> int:
    """The configured number of partitions of an internal topic, which decides the partition of each key in it."""
    if name == CONSUMER_OFFSETS:
        return config.offsets_topic_num_partitions
    return config.transaction_state_log_num_partitions if name == TRANSACTION_STATE else 0


def _import_settings(name: str) -> Mapping[str, str]:
    return COMPACTED if name in (CONSUMER_OFFSETS, TRANSACTION_STATE) else KEPT
