"""The requests of restricted clients, each with the permissions that Apache Kafka's protocol asks for it.

Zone: deterministic. `NEEDS` was written from Kafka's documentation of ACLs, not from the product's handlers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.record.batch import Record, encode_batch
from ottla.sim.security.rules import (
    ALTER,
    ANY_TOPIC,
    CLUSTER,
    DESCRIBE,
    GROUP,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Need,
)
from ottla.sim.world import WALL_START_MS
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    EndTxnRequest,
    EndTxnResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from ottla.wire.schema import Message, Struct

TIMEOUT_MS: Final = 2000
TRANSACTION_TIMEOUT_MS: Final = 5000
MAX_BYTES: Final = 4000


class Place(NamedTuple):
    """The resources of one request."""

    topic: str
    group: str
    transactional_id: str


class Identity(NamedTuple):
    """A producer: its id, its epoch, and the next sequence number."""

    producer_id: int
    epoch: int
    sequence: int


class Sending(NamedTuple):
    """A request that is about to be sent."""

    message: Message
    version: int
    response: type[Message]


_TOPIC_WRITE: Final = ("topic", WRITE, TOPIC)
_TOPIC_READ: Final = ("topic", READ, TOPIC)
_TOPIC_DESCRIBE: Final = ("topic", DESCRIBE, TOPIC)
_GROUP_READ: Final = ("group", READ, GROUP)
_GROUP_DESCRIBE: Final = ("group", DESCRIBE, GROUP)
_TXN_WRITE: Final = ("transactional_id", WRITE, TRANSACTIONAL_ID)
NEEDS: Final[dict[str, tuple[tuple[str, int, int], ...]]] = {
    "produce": (_TOPIC_WRITE,),
    "fetch": (_TOPIC_READ,),
    "list offsets": (_TOPIC_DESCRIBE,),
    "metadata": (_TOPIC_DESCRIBE,),
    "find group": (_GROUP_DESCRIBE,),
    "find transaction": (("transactional_id", DESCRIBE, TRANSACTIONAL_ID),),
    "commit offsets": (_GROUP_READ, _TOPIC_READ),
    "fetch offsets": (_GROUP_DESCRIBE, _TOPIC_DESCRIBE),
    "init": (_TXN_WRITE,),
    "add partitions": (_TXN_WRITE, _TOPIC_WRITE),
    "produce in transaction": (_TXN_WRITE, _TOPIC_WRITE),
    "add offsets": (_TXN_WRITE, _GROUP_READ),
    "commit offsets in transaction": (_TXN_WRITE, _GROUP_READ, _TOPIC_READ),
    "end": (_TXN_WRITE,),
}
"""By request: the resource, the operation and the type of the resource."""
TRANSACTION: Final = (
    "init",
    "add partitions",
    "produce in transaction",
    "add offsets",
    "commit offsets in transaction",
    "end",
)
"""The requests of a transaction, in their order (KIP-98)."""
COORDINATED: Final = frozenset({"add partitions", "add offsets", "end"})
"""Requests about which the coordinator of the transactional id decides, so that it compares the producer id."""
WRITING: Final = frozenset({"produce", "produce in transaction", "commit offsets"})
"""Requests whose effect is looked for at the end."""
SINGLE: Final = (*NEEDS, "init without transaction", "create acls")


def needs_of(api: str, place: Place) -> tuple[tuple[Need, ...], ...]:
    """What the request needs: all of these; of each, one alternative is enough."""
    if api == "init without transaction":
        return ((Need(IDEMPOTENT_WRITE, CLUSTER, "kafka-cluster"), Need(WRITE, TOPIC, ANY_TOPIC)),)
    if api == "create acls":
        return ((Need(ALTER, CLUSTER, "kafka-cluster"),),)
    return tuple((Need(operation, kind, getattr(place, field)),) for field, operation, kind in NEEDS[api])


def codes_in(message: Struct) -> Iterator[int]:
    """All error codes in a response."""
    for name in (field.name for field in message.FIELDS):
        value = getattr(message, name)
        # Codes at the top and in rows alike: a denial may be in either.
        if name.endswith("error_code") and value:
            yield value
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Struct):
                    yield from codes_in(each)


def request_of(api: str, place: Place, identity: Identity, number: int) -> Sending:
    """The request; records and positions contain the number of the attempt."""
    return _MAKERS[api](place, identity, number)


def _produce(place: Place, identity: Identity | None, number: int) -> Sending:
    record = [Record(0, WALL_START_MS, None, str(number).encode())]
    # Without a producer the number of the attempt is the only content: it is looked for in the log at the end.
    if identity is None:
        batch, transactional_id = encode_batch(record), None
    else:
        transactional_id = place.transactional_id
        batch = encode_batch(
            record,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=identity.sequence,
            transactional=True,
        )
    rows = [ProduceRequest.PartitionProduceData(index=0, records=bytes(batch))]
    topics = [ProduceRequest.TopicProduceData(name=place.topic, partition_data=rows)]
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=topics)
    return Sending(request, 9, ProduceResponse)


def _fetch(place: Place, _identity: Identity, _number: int) -> Sending:
    row = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MAX_BYTES)
    topics = [FetchRequest.FetchTopic(topic=place.topic, partitions=[row])]
    return Sending(FetchRequest(max_wait_ms=0, max_bytes=MAX_BYTES, topics=topics), 11, FetchResponse)


def _list_offsets(place: Place, _identity: Identity, _number: int) -> Sending:
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=place.topic, partitions=[row])]
    return Sending(ListOffsetsRequest(replica_id=-1, topics=topics), 5, ListOffsetsResponse)


def _metadata(place: Place, _identity: Identity, _number: int) -> Sending:
    topics = [MetadataRequest.MetadataRequestTopic(name=place.topic)]
    return Sending(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9, MetadataResponse)


def find_coordinator(key_type: int, key: str) -> Sending:
    """FindCoordinator of a group (0) or a transactional id (1)."""
    return Sending(FindCoordinatorRequest(key=key, key_type=key_type), 2, FindCoordinatorResponse)


def _commit_offsets(place: Place, _identity: Identity, number: int) -> Sending:
    row = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=number, committed_metadata=str(number)
    )
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=place.topic, partitions=[row])]
    return Sending(OffsetCommitRequest(group_id=place.group, topics=topics), 5, OffsetCommitResponse)


def fetch_offsets(group: str, topics: tuple[str, ...]) -> Sending:
    """OffsetFetch of the first partitions of topics."""
    rows = [OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in topics]
    return Sending(OffsetFetchRequest(group_id=group, topics=rows), 5, OffsetFetchResponse)


def _init(transactional_id: str | None) -> Sending:
    timeout_ms = TRANSACTION_TIMEOUT_MS
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    return Sending(request, 1, InitProducerIdResponse)


def _add_partitions(place: Place, identity: Identity, _number: int) -> Sending:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=place.topic, partitions=[0])
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=place.transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[topic],
    )
    return Sending(request, 2, AddPartitionsToTxnResponse)


def _add_offsets(place: Place, identity: Identity, _number: int) -> Sending:
    request = AddOffsetsToTxnRequest(
        transactional_id=place.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=place.group,
    )
    return Sending(request, 2, AddOffsetsToTxnResponse)


def _commit_in_transaction(place: Place, identity: Identity, number: int) -> Sending:
    row = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=number, committed_metadata=f"transaction {number}"
    )
    request = TxnOffsetCommitRequest(
        transactional_id=place.transactional_id,
        group_id=place.group,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=place.topic, partitions=[row])],
    )
    return Sending(request, 2, TxnOffsetCommitResponse)


def _end(place: Place, identity: Identity, number: int) -> Sending:
    request = EndTxnRequest(
        transactional_id=place.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        # One of four transactions aborts.
        committed=number % 4 > 0,
    )
    return Sending(request, 2, EndTxnResponse)


def _create_acls(_place: Place, _identity: Identity, number: int) -> Sending:
    """An ACL about a resource that no other request names."""
    row = CreateAclsRequest.AclCreation(
        resource_type=GROUP,
        resource_name=f"nothing-{number % 5}",
        principal="User:zoe",
        host="*",
        operation=READ,
        permission_type=3,
    )
    return Sending(CreateAclsRequest(creations=[row]), 1, CreateAclsResponse)


_MAKERS: Final = {
    "produce": lambda place, _identity, number: _produce(place, None, number),
    "fetch": _fetch,
    "list offsets": _list_offsets,
    "metadata": _metadata,
    "find group": lambda place, _identity, _number: find_coordinator(0, place.group),
    "find transaction": lambda place, _identity, _number: find_coordinator(1, place.transactional_id),
    "commit offsets": _commit_offsets,
    "fetch offsets": lambda place, _identity, _number: fetch_offsets(place.group, (place.topic,)),
    "init": lambda place, _identity, _number: _init(place.transactional_id),
    "init without transaction": lambda _place, _identity, _number: _init(None),
    "add partitions": _add_partitions,
    "produce in transaction": _produce,
    "add offsets": _add_offsets,
    "commit offsets in transaction": _commit_in_transaction,
    "end": _end,
    "create acls": _create_acls,
}
