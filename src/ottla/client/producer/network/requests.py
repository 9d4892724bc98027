"""The producer's requests, and the values in their answers.

Zone: pure. Converts values to messages and back; `nonblocking_connection` sends them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.client.errors import ClientError, MalformedReplyError, error_code, refused_error
from ottla.client.metadata import ClusterView, TopicView
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.core import BatchResponse, ProduceCall
from ottla.client.producer.partition_queue import ProducerId
from ottla.types import ZERO_UUID
from ottla.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    ProduceRequest,
    ProduceResponse,
)

FIRST_VERSION_WITH_V2_BATCHES = 3
FIRST_VERSION_WITH_SELF_ADDING = 12
"""From this version on a transactional batch adds its partition to the transaction (KIP-890)."""
FIRST_VERSION_WITH_TOPIC_IDS = 13


def topic_id(view: ClusterView, name: str) -> bytes:
    """The topic's id, ZERO_UUID if it is not known."""
    found = view.topics.get(name)
    return found.topic_id if isinstance(found, TopicView) else ZERO_UUID


def highest_produce(call: ProduceCall, view: ClusterView, *, self_adding: bool) -> int:
    """The highest version of Produce that may carry `call`."""
    if not self_adding:
        return FIRST_VERSION_WITH_SELF_ADDING - 1
    identified = all(topic_id(view, batch.tp.topic) != ZERO_UUID for batch in call.batches)
    return 32_767 if identified else FIRST_VERSION_WITH_TOPIC_IDS - 1


def produce_request(call: ProduceCall, view: ClusterView, config: ProducerConfig) -> ProduceRequest:
    """The request for the batches of a call; writes their headers."""
    transactional = bool(config.transactional_id)
    by_topic: dict[str, list[ProduceRequest.PartitionProduceData]] = {}
    for batch in call.batches:
        records = batch.encode_batch(transactional=transactional)
        part = ProduceRequest.PartitionProduceData(index=batch.tp.partition, records=records)
        by_topic.setdefault(batch.tp.topic, []).append(part)
    return ProduceRequest(
        transactional_id=config.transactional_id or None,
        acks=config.acks,
        timeout_ms=config.client.request_timeout_ms,
        topic_data=[
            ProduceRequest.TopicProduceData(name=name, topic_id=topic_id(view, name), partition_data=parts)
            for name, parts in by_topic.items()
        ],
    )


def produce_answers(call: ProduceCall, names: dict[bytes, str], answer: ProduceResponse) -> list[BatchResponse]:
    """The answer for each batch, in the order of `call`. names: topics by the ids in the request.

    Raises MalformedReplyError if the answer has other partitions than the request.
    """
    found: dict[tuple[str, int], BatchResponse] = {}
    for topic in answer.responses:
        name = topic.name or names.get(topic.topic_id, "")
        for part in topic.partition_responses:
            if (name, part.index) in found:
                raise MalformedReplyError(f"a broker answered twice for partition {part.index} of {name!r}")
            detail = [part.error_message, *(error.batch_index_error_message for error in part.record_errors)]
            text = "; ".join(one for one in detail if one)
            code = error_code(part.error_code)
            found[name, part.index] = BatchResponse(code, part.base_offset, part.log_append_time_ms, text)
    wanted = [(batch.tp.topic, batch.tp.partition) for batch in call.batches]
    if set(wanted) != set(found):
        raise MalformedReplyError(f"a broker answered for {sorted(found)}, but the request was for {sorted(wanted)}")
    return [found[one] for one in wanted]


def metadata_request(topics: Sequence[str], version: int, create: bool) -> MetadataRequest:
    """The metadata request for some topics; create: let the broker create missing ones."""
    named = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(topics=named, allow_auto_topic_creation=create or version < 4)


def producer_id_request() -> InitProducerIdRequest:
    """The request for a producer id without transactions."""
    return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)


def producer_id_of(answer: InitProducerIdResponse) -> ProducerId | ClientError:
    """The producer id in an answer, or the error."""
    error = refused_error(answer.error_code, "producer id")
    if error is None and (answer.producer_id < 0 or answer.producer_epoch < 0):
        return MalformedReplyError(f"a broker returned the invalid producer id {answer.producer_id}")
    return error or ProducerId(answer.producer_id, answer.producer_epoch)
