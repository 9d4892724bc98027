"""Topics of another cluster, taken in by an empty metadata store: their logs lie in this broker's directories.

Zone: deterministic. One script, which can be repeated; it runs where `ottla.adopt.logs` asks for it, before the store
knows its cluster. What the logs do not tell is chosen so that nothing is lost: nothing is deleted by age or size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from ottla.cluster.image import CONSUMER_OFFSETS, TRANSACTION_STATE, PartitionImage, TopicImage
from ottla.cluster.store.layout import PRODUCER_ID_BLOCK, TOPICS, BlockNode, encode_block
from ottla.cluster.store.workflow import Workflow, children, get, submit
from ottla.cluster.topics import STEP_PARTITIONS, creation_head, state_ops
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Op
from ottla.storage.recovery.found_logs import FoundLog
from ottla.types import ZERO_UUID

LANE: Final = "adoption"
SPARE_PRODUCER_IDS: Final = 1_000_000
"""So many ids after the largest one in a snapshot may have been given out since."""
KEPT: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of a topic whose own are not known: nothing goes by age or size until somebody says so."""
COMPACTED: Final = {"cleanup.policy": "compact", "compression.type": "producer"}

logger = logging.getLogger(__name__)


def adopt(found: Sequence[FoundLog], config: BrokerConfig, new_id: Callable[[], bytes]) -> Workflow[None]:
    """Write the nodes of all topics that have logs here, each with this broker as its only replica.

    Raises ApiError INCONSISTENT_TOPIC_ID when the logs of one name are of different topics.
    """
    present = yield from children(TOPICS)
    for topic in _topics(found, config, new_id):
        if topic.name in present:
            continue
        logger.warning(
            "topic %s is adopted with %d partitions and the settings %s; its own are not in its logs",
            topic.name, len(topic.partitions), dict(topic.overrides),
        )  # fmt: skip
        yield from submit(LANE, creation_head(topic, has_config=False, controller_epoch=0))
        for start in range(STEP_PARTITIONS, len(topic.partitions), STEP_PARTITIONS):
            yield from submit(LANE, state_ops(topic.name, topic.partitions[start : start + STEP_PARTITIONS], 0))
    yield from _skip_producer_ids(max((log.producer_id for log in found), default=-1), config.node_id)


def _skip_producer_ids(largest: int, node_id: int) -> Workflow[None]:
    """A new producer must not get an id under which the logs know another one."""
    node = yield from get(PRODUCER_ID_BLOCK)
    if largest < 0 or (node is not None and node.data):
        return
    content = encode_block(BlockNode(node_id, 0, largest + SPARE_PRODUCER_IDS))
    op = Op("create", PRODUCER_ID_BLOCK, content) if node is None else Op("put", PRODUCER_ID_BLOCK, content)
    yield from submit(LANE, [op])


def _topics(found: Sequence[FoundLog], config: BrokerConfig, new_id: Callable[[], bytes]) -> Iterator[TopicImage]:
    for name, group in groupby(found, key=lambda log: log.tp.topic):
        logs = {log.tp.partition: log for log in group}
        ids = {log.topic_id for log in logs.values()} - {ZERO_UUID}
        if len(ids) > 1:
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"the logs of {name} are of {len(ids)} different topics")
        count = max(logs) + 1
        if len(logs) < count:  # other brokers had the rest; of an internal topic there may be more behind the last one
            count = max(count, _partitions_of(name, config))
        if len(logs) < count:
            logger.warning("topic %s: %d of its partitions have no log here and begin empty", name, count - len(logs))
        partitions = tuple(_partition(number, logs.get(number), config.node_id) for number in range(count))
        yield TopicImage(name, next(iter(ids), None) or new_id(), partitions, _settings(name), TopicConfig())


def _partition(number: int, log: FoundLog | None, node_id: int) -> PartitionImage:
    epoch = 0 if log is None else max(log.leader_epoch, 0)
    return PartitionImage(number, node_id, epoch, (node_id,), (node_id,))


def _partitions_of(name: str, config: BrokerConfig) -> int:
    """How many partitions an internal topic has by configuration: the keys in it lie where that says."""
    if name == CONSUMER_OFFSETS:
        return config.offsets_topic_num_partitions
    return config.transaction_state_log_num_partitions if name == TRANSACTION_STATE else 0


def _settings(name: str) -> Mapping[str, str]:
    return COMPACTED if name in (CONSUMER_OFFSETS, TRANSACTION_STATE) else KEPT
