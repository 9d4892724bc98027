"""The compiled codec: every message in every version goes there and back, and bad bytes are refused by name."""

from __future__ import annotations

import contextlib
import random
import struct
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.peak import peak_of

from ottla.seams import Region
from ottla.wire import codec
from ottla.wire.codec import decode, encode, encode_bytes
from ottla.wire.errors import FieldNotInVersion, MalformedMessage, UnknownVersion
from ottla.wire.limits import ALLOWANCE, AMPLIFICATION, MAX_ELEMENTS, MAX_TAGS
from ottla.wire.messages import (
    ApiVersionsRequest,
    ControlledShutdownRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ProduceRequest,
    ProduceResponse,
    SaslAuthenticateRequest,
    StopReplicaRequest,
)
from ottla.wire.primitives import uvarint
from ottla.wire.schema import Message

SEEDS = 4


def test_round_trip(grammar: ModuleType, message_class: type[Message]) -> None:
    for version in message_class.VERSIONS:
        for seed in range(SEEDS):
            rng = random.Random(f"{message_class.__name__} {version} {seed}")
            message = grammar.message(rng, message_class, version)
            data = encode_bytes(message, version)
            again, end = decode(message_class, version, b"xyz" + data + b"more", 3)
            assert (again, end) == (message, 3 + len(data))


def test_defaults_round_trip(message_class: type[Message]) -> None:
    for version in message_class.VERSIONS:
        data = encode_bytes(message_class(), version)
        assert decode(message_class, version, memoryview(data)) == (message_class(), len(data))


@pytest.mark.slow
def test_every_truncation_is_malformed(grammar: ModuleType, message_class: type[Message]) -> None:
    for version in message_class.VERSIONS:
        message = grammar.message(random.Random(f"{message_class.__name__} {version}"), message_class, version)
        data = encode_bytes(message, version)[:400]
        complete = len(encode_bytes(message, version))
        for cut in range(min(len(data), complete - 1)):
            with pytest.raises(MalformedMessage):
                decode(message_class, version, memoryview(data)[:cut])


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_mutated_bytes_decode_or_are_malformed(grammar: ModuleType, rng: random.Random) -> None:
    cls, version = grammar.EVERY[rng.randrange(len(grammar.EVERY))]
    data = grammar.mutate(rng, encode_bytes(grammar.message(rng, cls, version), version))
    try:
        message, end = decode(cls, version, memoryview(data))
    except MalformedMessage:
        return
    assert end <= len(data)
    again = encode_bytes(message, version)  # what was decoded can be encoded again, to the same meaning
    assert decode(cls, version, again)[0] == message


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10_000), st.binary(max_size=200))
def test_noise_decodes_or_is_malformed(grammar: ModuleType, choice: int, data: bytes) -> None:
    cls, version = grammar.EVERY[choice % len(grammar.EVERY)]
    try:
        _, end = decode(cls, version, data)
    except MalformedMessage:
        return
    assert end <= len(data)


# What the bytes may not say, one by one.


def test_string_lengths() -> None:
    assert decode(FindCoordinatorRequest, 0, b"\0\2ab")[0].key == "ab"
    for wrong in (b"\xff\xff", b"\xff\xfe", b"\0\3ab", b"\x7f\xffab", b"\0", b""):
        with pytest.raises(MalformedMessage):
            decode(FindCoordinatorRequest, 0, wrong)


def test_compact_string_may_not_be_longer_than_an_int16_allows() -> None:
    for length, fine in ((0x7FFF, True), (0x8000, False)):
        body = uvarint(length + 1) + b"a" * length + b"\0" + b"\0"
        if fine:
            assert len(decode(FindCoordinatorRequest, 3, body)[0].key) == length
        else:
            with pytest.raises(MalformedMessage, match="32767"):
                decode(FindCoordinatorRequest, 3, body)


def test_null_where_null_is_not_allowed() -> None:
    with pytest.raises(MalformedMessage, match=r"ApiVersionsRequest\.client_software_name"):
        decode(ApiVersionsRequest, 3, b"\0\2a\0")
    with pytest.raises(MalformedMessage, match=r"MetadataRequest\.topics"):
        decode(MetadataRequest, 0, b"\xff\xff\xff\xff")
    assert decode(MetadataRequest, 1, b"\xff\xff\xff\xff")[0].topics is None
    with pytest.raises(MalformedMessage, match="auth_bytes"):
        decode(SaslAuthenticateRequest, 2, b"\0\0")


def test_array_counts() -> None:
    for count in (-2, 1, 2**30, 2**31 - 1, -(2**31)):
        with pytest.raises(MalformedMessage):
            decode(DescribeGroupsRequest, 0, struct.pack(">i", count))
    for count in (2, 2**20, 2**31 - 1):
        with pytest.raises(MalformedMessage):
            decode(DescribeGroupsRequest, 5, uvarint(count + 1))


def test_array_of_more_elements_than_kafka_reads() -> None:
    """A frame large enough for all of them makes no difference."""
    response = struct.pack(">i", 0) + struct.pack(">i", MAX_ELEMENTS + 1) + bytes(20 * (MAX_ELEMENTS + 1))
    with pytest.raises(MalformedMessage, match=str(MAX_ELEMENTS + 1)):
        decode(MetadataResponse, 3, response)


@pytest.mark.parametrize(
    "varint", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10", b"\x80" * 9 + b"\1"]
)
def test_varints_of_more_than_an_int32(varint: bytes) -> None:
    with pytest.raises(MalformedMessage, match="varint"):
        decode(DescribeGroupsRequest, 5, varint + bytes(10))


@pytest.mark.parametrize("version", FindCoordinatorRequest.VERSIONS)
def test_text_that_is_not_utf8_is_kept_byte_for_byte(version: int) -> None:
    odd = "caf\udce9"
    keys = {"key": odd} if version < 4 else {"coordinator_keys": [odd, "fine"]}
    request = FindCoordinatorRequest(**keys)  # type: ignore[arg-type]
    data = encode_bytes(request, version)
    assert b"caf\xe9" in data
    assert decode(FindCoordinatorRequest, version, data) == (request, len(data))
    with pytest.raises(MalformedMessage):
        decode(FindCoordinatorRequest, version, data[:-3])


def test_unknown_tagged_fields_are_passed_over() -> None:
    plain = encode_bytes(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    tagged = plain[:-1] + b"\2" + b"\5\3abc" + b"\xe8\x07\1z"
    message, end = decode(ApiVersionsRequest, 3, tagged)
    assert (message.client_software_name, end) == ("a", len(tagged))


@pytest.mark.parametrize(
    ("section", "why"),
    [
        (b"\2\5\1a\5\1b", "tag 5 after 5"),
        (b"\2\5\1a\4\1b", "tag 4 after 5"),
        (b"\1\5\4abc", "claims 4 of 3"),
        (b"\5\5\1a", "5 of them in 3 bytes"),
        (uvarint(MAX_TAGS + 1) + bytes(2 * MAX_TAGS + 2), "of them"),
        (uvarint(2**31 - 1), "of them"),
    ],
)
def test_tag_sections_that_are_wrong(section: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why):
        decode(ApiVersionsRequest, 3, b"\2a\2b" + section)


def test_tagged_value_must_fill_its_size() -> None:
    request = encode_bytes(FetchRequest(cluster_id="abc"), 12)
    at = request.index(b"\4abc")
    assert decode(FetchRequest, 12, request)[0].cluster_id == "abc"
    with pytest.raises(MalformedMessage, match="cluster_id"):
        decode(FetchRequest, 12, request[:at] + b"\3" + request[at + 1 :])


# Memory: what is received decides what may be taken.


def test_bytes_that_claim_arrays_take_no_memory() -> None:
    for cls, version, body in (
        (MetadataRequest, 0, struct.pack(">i", 2**31 - 1)),
        (MetadataRequest, 12, uvarint(2**31 - 1) + bytes(64)),
        (ListOffsetsRequest, 1, struct.pack(">iih", -1, 1, 0) + struct.pack(">i", 2**30)),
        (StopReplicaRequest, 0, struct.pack(">ii?i", 1, 1, True, 2**31 - 1)),
    ):
        codec.warm_codec(cls, version)
        assert _peak(cls, version, body) < 8 * 1024


BOMBS = [
    (MetadataRequest, 0, lambda n: struct.pack(">i", n // 2) + bytes(n)),
    (MetadataRequest, 9, lambda n: uvarint(n // 2 + 1) + b"\1\0" * (n // 2)),
    (DescribeGroupsRequest, 5, lambda n: uvarint(n + 1) + b"\1" * n),
    (DescribeGroupsRequest, 0, lambda n: struct.pack(">i", n // 4) + b"\0\2ab" * (n // 4)),
    (DeleteTopicsRequest, 4, lambda n: uvarint(n // 3 + 1) + b"\3ab" * (n // 3)),
    (OffsetFetchRequest, 8, lambda n: uvarint(n // 3 + 1) + b"\1\1\0" * (n // 3)),
    (OffsetFetchRequest, 8, lambda n: b"\2\1" + uvarint(n // 3 + 1) + b"\1\1\0" * (n // 3)),
    (CreateTopicsRequest, 5, lambda n: uvarint(n // 10 + 1) + (b"\1" + b"\1" * 6 + b"\1\1\0") * (n // 10)),
    (FetchRequest, 12, lambda n: bytes(25) + uvarint(n // 3 + 1) + b"\1\1\0" * (n // 3)),
    (ProduceRequest, 9, lambda n: b"\0\0\1\0\0\0\0\2\1" + uvarint(n // 6 + 1) + b"\1\0\0\0\1\0" * (n // 6)),
]
"""Arrays of the smallest elements there are, `n` bytes of them: each would take 30 to 60 times its bytes."""


@pytest.mark.slow
@pytest.mark.parametrize("size", [3_000, 300_000])
@pytest.mark.parametrize("bomb", range(len(BOMBS)))
def test_memory_is_bounded_by_the_bytes_received(bomb: int, size: int) -> None:
    cls, version, make = BOMBS[bomb]
    body = make(size)
    codec.warm_codec(cls, version)
    assert _peak(cls, version, body) <= AMPLIFICATION * len(body) + ALLOWANCE


@pytest.mark.slow
def test_nested_arrays_share_one_allowance() -> None:
    """Many inner arrays that are each small enough are not small together."""
    inner = b"\1\1\0" * 200
    topics = uvarint(400 + 1) + (b"\1" + uvarint(200 + 1) + inner + b"\0") * 400
    codec.warm_codec(OffsetFetchRequest, 8)
    assert _peak(OffsetFetchRequest, 8, topics) <= AMPLIFICATION * len(topics) + ALLOWANCE
    with pytest.raises(MalformedMessage, match="too many small elements"):
        decode(OffsetFetchRequest, 8, topics)


def test_a_thousand_topics_with_short_names_are_fine() -> None:
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(topics=[topic(name=f"t{n}", num_partitions=3) for n in range(1000)])
    for version in CreateTopicsRequest.VERSIONS:
        data = encode_bytes(request, version)
        assert decode(CreateTopicsRequest, version, data)[0].topics == request.topics


def _peak(cls: type[Message], version: int, body: bytes) -> int:
    def read() -> None:
        with contextlib.suppress(MalformedMessage):
            decode(cls, version, body)

    return peak_of(read)


# What the two sides promise each other.


def test_record_data_is_a_slice_of_the_frame() -> None:
    partition = ProduceRequest.PartitionProduceData(records=b"batch")
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[partition])])
    frame = bytearray(encode_bytes(request, 9))
    records = decode(ProduceRequest, 9, memoryview(frame))[0].topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"batch")] = ord("B")
    assert records == b"Batch"


def test_regions_stay_parts_of_their_own() -> None:
    region = Region(None, 4096, 100, 0)  # type: ignore[arg-type]  # the file is not looked at
    partitions = [FetchResponse.PartitionData(records=region), FetchResponse.PartitionData(records=b"")]
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)])
    for version in FetchResponse.VERSIONS:
        head, kept, tail = encode(response, version)
        assert kept is region
        assert isinstance(head, bytes)
        assert isinstance(tail, bytes)
        data = head + bytes(100) + tail
        assert decode(FetchResponse, version, data)[0].responses[0].partitions[0].records == bytes(100)


def test_unknown_versions_are_not_guessed() -> None:
    with pytest.raises(UnknownVersion):
        encode(ProduceRequest(), 14)
    with pytest.raises(UnknownVersion):
        decode(FetchRequest, -1, b"")


def test_a_request_does_not_drop_fields_that_are_not_ignorable() -> None:
    """validate_only would create topics in earnest if v0 dropped it."""
    with pytest.raises(FieldNotInVersion, match=r"CreateTopicsRequest\.validate_only"):
        encode(CreateTopicsRequest(validate_only=True), 0)
    encode(CreateTopicsRequest(validate_only=True), 1)
    encode(FetchRequest(session_id=0, rack_id="r1"), 4)  # a rack is only a hint


def test_responses_drop_what_the_version_lacks() -> None:
    answer = ProduceResponse.PartitionProduceResponse(log_start_offset=7, error_message="no")
    topic = ProduceResponse.TopicProduceResponse(name="t", partition_responses=[answer])
    data = encode_bytes(ProduceResponse(responses=[topic], throttle_time_ms=5), 0)
    assert decode(ProduceResponse, 0, data)[0].responses[0].partition_responses[0].log_start_offset == -1


def test_tagged_defaults_are_not_written() -> None:
    leader = ProduceResponse.LeaderIdAndEpoch(leader_id=3)
    answer = ProduceResponse.PartitionProduceResponse()
    plain = encode_bytes(ProduceResponse(responses=[_topic(answer)]), 10)
    answer.current_leader = leader
    assert len(encode_bytes(ProduceResponse(responses=[_topic(answer)]), 10)) == len(plain) + 11


def _topic(answer: ProduceResponse.PartitionProduceResponse) -> ProduceResponse.TopicProduceResponse:
    return ProduceResponse.TopicProduceResponse(name="t", partition_responses=[answer])


def test_nullable_struct() -> None:
    cursor = DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=4)
    for value in (None, cursor):
        data = encode_bytes(DescribeTopicPartitionsRequest(cursor=value), 0)
        assert decode(DescribeTopicPartitionsRequest, 0, data)[0].cursor == value


def test_warm_compiles_once() -> None:
    codec.warm_codec(ControlledShutdownRequest, 2)
    decoder, encoder = ControlledShutdownRequest.DECODERS[2], ControlledShutdownRequest.ENCODERS[2]
    codec.warm_codec(ControlledShutdownRequest, 2)
    encode_bytes(ControlledShutdownRequest(broker_id=1), 2)
    assert ControlledShutdownRequest.DECODERS[2] is decoder
    assert ControlledShutdownRequest.ENCODERS[2] is encoder


def test_defaults_are_not_shared() -> None:
    one, other = MetadataRequest(), MetadataRequest()
    assert one.topics is not None
    one.topics.append(MetadataRequest.MetadataRequestTopic(name="x"))
    assert other == MetadataRequest()
    assert one != other
    assert "name='x'" in repr(one)


@pytest.mark.parametrize("version", [0, 8])
def test_the_pieces_of_long_arrays_are_joined_as_they_come(version):
    """Each small piece costs some forty bytes besides its content: many times the answer."""
    response = OffsetFetchResponse
    if version < 8:
        topic, partition = response.OffsetFetchResponseTopic, response.OffsetFetchResponsePartition
        answer = response(topics=[topic(name="t", partitions=[partition(partition_index=n) for n in range(20_000)])])
    else:
        topic, partition = response.OffsetFetchResponseTopics, response.OffsetFetchResponsePartitions
        parts = [partition(partition_index=n) for n in range(20_000)]
        group = response.OffsetFetchResponseGroup(group_id="g", topics=[topic(name="t", partitions=parts)])
        answer = response(groups=[group])
    whole = encode_bytes(answer, version)
    assert decode(response, version, memoryview(whole))[0] == answer
    most, pieces, parts = 0, [], []

    def put(piece):
        nonlocal most
        pieces.append(piece)
        most = max(most, len(pieces))

    response.ENCODERS[version](answer, parts, pieces, put)
    assert most < 2_100
    assert b"".join([*parts, *pieces]) == whole
