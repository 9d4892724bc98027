"""The rows of bench/hostile.py: single requests with the highest possible cost.

Zone: pure. Values only; `bench/hostile.py` sends and measures them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from bench.filled_requests import Case, cases_of, largest_request
from ottla.record import batch as batches
from ottla.wire import messages as m
from ottla.wire.apis import API_TABLE
from ottla.wire.primitives import uvarint
from ottla.wire.schema import Message

VICTIM: Final = "victim"
MANY: Final = 100_000
MIB: Final = 1 << 20
WIDE: Final = 5_000
"""Partitions of the topic "wide"."""


class EncodedRequest(NamedTuple):
    """A request whose body the codec would not write: it has tagged fields that no version knows."""

    API_KEY: int
    body: bytes


class Hostile(NamedTuple):
    """One row."""

    title: str
    version: int
    request: Callable[[], Message | EncodedRequest]
    count: int = 1
    """How many requests are sent without waiting for an answer."""

    def requests(self) -> list[Message | EncodedRequest]:
        """The request."""
        return [self.request()] * self.count


def array_rows(topic_id: Callable[[str], bytes]) -> Iterator[Hostile]:
    """One row for each array of each request of clients, as long as 1 MiB allows."""
    for api in API_TABLE.values():
        if not api.request.BETWEEN_BROKERS:
            for case in cases_of(api, api.max_version):
                yield Hostile(str(case), case.version, partial(_largest, case, topic_id))


def _largest(case: Case, topic_id: Callable[[str], bytes]) -> Message:
    request: Message = largest_request(case, MIB, topic_id)
    if "validate_only" in type(request).__slots__:
        setattr(request, "validate_only", True)  # noqa: B010  # not every message has it
    return request


def rows() -> list[Hostile]:
    """All other rows, in the order of the report."""
    return [*_reads(), *_group_rows(), *_transaction_rows(), *_admin_rows(), *_decoding_rows()]


def _named(count: int) -> list[str]:
    return [f"a-name-of-some-length-{number:06}" for number in range(count)]


def _metadata(names: list[str] | None) -> Callable[[], Message]:
    topic = m.MetadataRequest.MetadataRequestTopic
    topics = None if names is None else [topic(name=name) for name in names]
    return lambda: m.MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _fetch(topic: str, count: int) -> Callable[[], Message]:
    one = m.FetchRequest.FetchPartition
    asked = [one(partition=number, fetch_offset=0, partition_max_bytes=1000) for number in range(count)]
    topics = [m.FetchRequest.FetchTopic(topic=topic, partitions=asked)]
    return lambda: m.FetchRequest(replica_id=-1, max_bytes=1 << 20, session_epoch=-1, topics=topics)


def _produce(topic: str, count: int) -> Callable[[], Message]:
    batch = bytes(batches.encode_batch([batches.Record(0, 1_700_000_000_000, b"k", b"v" * 20, ())]))
    data = [m.ProduceRequest.PartitionProduceData(index=number, records=batch) for number in range(count)]
    topics = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
    return lambda: m.ProduceRequest(acks=1, timeout_ms=5000, topic_data=topics)


def _partitions(request: Any, topic: Any, partition: Any, name: str, count: int, **values: object) -> Message:
    rows = [partition(partition_index=number, **values) for number in range(count)]
    made: Message = request(topics=[topic(name=name, partitions=rows)])
    return made


def _reads() -> list[Hostile]:
    offsets, records = m.ListOffsetsRequest, m.DeleteRecordsRequest
    by_time = (offsets, offsets.ListOffsetsTopic, offsets.ListOffsetsPartition)
    delete = (records, records.DeleteRecordsTopic, records.DeleteRecordsPartition)
    producers = m.DescribeProducersRequest
    return [
        Hostile(f"Metadata, {MANY:,} unknown topics", 8, _metadata(_named(MANY))),
        Hostile("Metadata, 1,000 × the wide topic", 8, _metadata(["wide"] * 1000)),
        Hostile("Metadata of all, 20 at once", 8, _metadata(None), 20),
        Hostile(f"Fetch, {WIDE:,} partitions", 11, _fetch("wide", WIDE)),
        Hostile(f"Fetch, {MANY:,} unknown partitions", 11, _fetch("nope", MANY)),
        Hostile(f"Produce, {WIDE:,} partitions", 8, _produce("wide", WIDE)),
        Hostile(f"Produce, {MANY:,} unknown partitions", 8, _produce("nope", MANY)),
        Hostile(f"ListOffsets, {MANY:,} unknown partitions", 4, lambda: _partitions(*by_time, "nope", MANY)),
        Hostile(f"ListOffsets by time, {WIDE:,}", 4, lambda: _partitions(*by_time, "wide", WIDE, timestamp=5)),
        Hostile(f"DeleteRecords, {MANY:,} unknown partitions", 1, lambda: _partitions(*delete, "nope", MANY)),
        Hostile(f"DeleteRecords, {WIDE:,} partitions", 1, lambda: _partitions(*delete, "wide", WIDE, offset=0)),
        Hostile(
            f"DescribeProducers, {MANY:,} unknown partitions",
            0,
            lambda: producers(topics=[producers.TopicRequest(name="nope", partition_indexes=list(range(MANY)))]),
        ),
        Hostile("DescribeLogDirs of all, 10 at once", 1, lambda: m.DescribeLogDirsRequest(topics=None), 10),
    ]


def _group_rows() -> list[Hostile]:
    commit, fetch, leave = m.OffsetCommitRequest, m.OffsetFetchRequest, m.LeaveGroupRequest
    row, topic = commit.OffsetCommitRequestPartition, commit.OffsetCommitRequestTopic

    def committed(name: str, count: int, metadata: str) -> Message:
        parts = [
            row(partition_index=number, committed_offset=2, committed_metadata=metadata) for number in range(count)
        ]
        return commit(group_id="g", topics=[topic(name=name, partitions=parts)])

    group, topics = fetch.OffsetFetchRequestGroup, fetch.OffsetFetchRequestTopics
    wide = [topics(name="wide", partition_indexes=list(range(1000)))]
    many = _named(MANY)
    sync = m.SyncGroupRequest
    assigned = [sync.SyncGroupRequestAssignment(member_id=name, assignment=b"x") for name in many]
    left = [leave.MemberIdentity(member_id=name) for name in many]
    join = m.JoinGroupRequest
    protocols = [join.JoinGroupRequestProtocol(name=f"p{number}", metadata=b"x") for number in range(20_000)]
    joined = join(group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols)
    return [
        Hostile(f"OffsetCommit, {MANY:,} unknown partitions", 5, lambda: committed("nope", MANY, "")),
        Hostile(f"OffsetCommit, {WIDE:,} with 3 KB of metadata", 5, lambda: committed("wide", WIDE, "m" * 3000)),
        Hostile(
            "OffsetFetch, 2,000 × all of a group", 8, lambda: fetch(groups=[group(group_id="g", topics=None)] * 2000)
        ),
        Hostile("OffsetFetch, 1,000 × 1,000", 8, lambda: fetch(groups=[group(group_id="g", topics=wide)] * 1000)),
        Hostile(f"DescribeGroups, {MANY:,}", 4, lambda: m.DescribeGroupsRequest(groups=many)),
        Hostile(f"DeleteGroups, {MANY:,}", 1, lambda: m.DeleteGroupsRequest(groups_names=many)),
        Hostile(f"FindCoordinator, {MANY:,} keys", 4, lambda: m.FindCoordinatorRequest(coordinator_keys=many)),
        Hostile(f"LeaveGroup, {MANY:,} members", 4, lambda: leave(group_id="g", members=left)),
        Hostile(f"SyncGroup, {MANY:,} assignments", 3, lambda: sync(group_id="g", assignments=assigned)),
        Hostile("JoinGroup, 20,000 protocols", 3, lambda: joined),
    ]


def _transaction_rows() -> list[Hostile]:
    add, commit, markers = m.AddPartitionsToTxnRequest, m.TxnOffsetCommitRequest, m.WriteTxnMarkersRequest
    every = list(range(MANY))
    named = [add.AddPartitionsToTxnTopic(name="nope", partitions=every)]
    rows = [commit.TxnOffsetCommitRequestPartition(partition_index=number, committed_offset=1) for number in every]
    offsets = [commit.TxnOffsetCommitRequestTopic(name="nope", partitions=rows)]
    marked = [markers.WritableTxnMarkerTopic(name="nope", partition_indexes=every)]
    marker = markers.WritableTxnMarker(producer_id=1, topics=marked)
    return [
        Hostile(
            f"AddPartitionsToTxn, {MANY:,} unknown",
            3,
            lambda: add(v3_and_below_transactional_id="tx", v3_and_below_topics=named),
        ),
        Hostile(
            f"TxnOffsetCommit, {MANY:,} unknown", 2, lambda: commit(transactional_id="tx", group_id="g", topics=offsets)
        ),
        Hostile(f"WriteTxnMarkers, {MANY:,} unknown", 1, lambda: markers(markers=[marker])),
        Hostile(
            f"DescribeTransactions, {MANY:,}",
            0,
            lambda: m.DescribeTransactionsRequest(transactional_ids=_named(MANY)),
        ),
    ]


def _admin_rows() -> list[Hostile]:
    create, grow, alter = m.CreateTopicsRequest, m.CreatePartitionsRequest, m.IncrementalAlterConfigsRequest
    topics = [create.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in _named(4000)]
    one = create.CreatableTopic(name="orders", num_partitions=10_000, replication_factor=1)
    change = alter.AlterableConfig(name="retention.ms", value="1000")
    resource = alter.AlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
    described = m.DescribeConfigsRequest
    asked = [described.DescribeConfigsResource(resource_type=2, resource_name="t")] * 500
    grown = [grow.CreatePartitionsTopic(name=name, count=3) for name in _named(9000)]
    return [
        Hostile("CreateTopics, 4,000 to validate", 7, lambda: create(topics=topics, validate_only=True)),
        Hostile("CreateTopics, 10,000 partitions to validate", 7, lambda: create(topics=[one], validate_only=True)),
        Hostile("DeleteTopics, 4,000 unknown", 5, lambda: m.DeleteTopicsRequest(topic_names=_named(4000))),
        Hostile("CreatePartitions, 9,000 unknown", 3, lambda: grow(topics=grown, validate_only=True)),
        Hostile(
            "DescribeConfigs, 500 × a topic with texts",
            3,
            lambda: described(resources=asked, include_synonyms=True, include_documentation=True),
        ),
        Hostile(
            "IncrementalAlterConfigs, 10,000 × a topic",
            0,
            lambda: alter(resources=[resource] * 10_000, validate_only=True),
        ),
        Hostile("ElectLeaders of all", 1, lambda: m.ElectLeadersRequest(topic_partitions=None)),
        Hostile("ApiVersions, 20,000 at once", 0, m.ApiVersionsRequest, 20_000),
    ]


def _decoding_rows() -> list[Hostile]:
    """Requests that take long to decode, for their number of elements."""
    fetch, describe = m.OffsetFetchRequest, m.DescribeGroupsRequest
    numbers = [fetch.OffsetFetchRequestTopic(name="nope", partition_indexes=range(10 * MANY))]
    texts = ["\udcff" * 32_000] * 500
    return [
        Hostile(f"OffsetFetch, a topic of {10 * MANY:,}", 5, lambda: fetch(group_id="g", topics=numbers)),
        Hostile("DescribeGroups, 500 long names not in UTF-8", 4, lambda: describe(groups=texts)),
        Hostile("DeleteRecords, 100 topics with 10,000 tags", 2, lambda: EncodedRequest(21, _tagged_topics())),
        Hostile("Produce, 300 partitions with 10,000 tags", 9, lambda: EncodedRequest(0, _tagged_partitions())),
    ]


_TAGS: Final = uvarint(10_000) + b"".join(uvarint(tag) + b"\0" for tag in range(10_000))


def _tagged_topics() -> bytes:
    """The body of DeleteRecords 2: topics without partitions, a time-out, no tags."""
    return uvarint(101) + (b"\2t\1" + _TAGS) * 100 + b"\0\0\0\0\0"


def _tagged_partitions() -> bytes:
    """The body of Produce 9: no transactional id, acks 1, a time-out, 3 topics of 100 partitions, no tags."""
    partitions = (b"\0\0\0\0\2x" + _TAGS) * 100
    return b"\0\0\1\0\0\0\7\4" + (b"\2t" + uvarint(101) + partitions + b"\0") * 3 + b"\0"
