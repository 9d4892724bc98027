"""Records of internal topics: those that Apache Kafka wrote are written again to the byte; damage is named."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.batch import batches_of, records_of
from ottla.record.errors import CorruptRecord
from ottla.record.internal.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.record.internal.groups import GROUP_RECORDS, GroupMetadataValue, OffsetCommitValue
from ottla.record.internal.parsing import RecordTypes, UnknownType, parse_record, parse_versioned
from ottla.record.internal.transactions import TRANSACTION_RECORDS
from ottla.wire.codec import encode_bytes

TOPICS = [("consumer-offsets", GROUP_RECORDS), ("transaction-state", TRANSACTION_RECORDS)]


def internal_records(golden: Callable, case: str) -> list[tuple[bytes | None, bytes | None]]:
    rows = []
    for path in sorted(golden(case).directory.glob("__*/*.log")):
        log = path.read_bytes()
        for pos, header in batches_of(log):
            if not header.is_control:
                rows += [(record.key, record.value) for record in records_of(log, pos, max_bytes=1 << 20)]
    return rows


@pytest.mark.parametrize(("case", "types"), TOPICS)
def test_kafkas_records_there_and_back(golden: Callable, case: str, types: RecordTypes) -> None:
    rows = internal_records(golden, case)
    assert len(rows) > 30
    for key, value in rows:
        record = parse_record(types, key, value)
        assert struct.pack(">h", record.type) + encode_bytes(record.key, 0) == key
        if record.value is None:
            assert value is None
        else:
            ours = struct.pack(">h", record.version) + encode_bytes(record.value, record.version)
            assert ours == (_without_null_tag(value) if record.type == 5 else value)


def _without_null_tag(value: bytes) -> bytes:
    """Kafka writes a member's missing classic metadata as a tag that holds null; we leave the tag out."""
    assert value.endswith(b"\1\0\1\0")
    return value[:-4] + b"\0"


def test_what_members_embedded_there_and_back(golden: Callable) -> None:
    seen = 0
    for key, value in internal_records(golden, "consumer-offsets"):
        record = parse_record(GROUP_RECORDS, key, value)
        if isinstance(record.value, GroupMetadataValue):
            for member in record.value.members:
                for raw, cls in (
                    (member.subscription, ConsumerProtocolSubscription),
                    (member.assignment, ConsumerProtocolAssignment),
                ):
                    version, message = parse_versioned(cls, raw)
                    assert struct.pack(">h", version) + encode_bytes(message, version) == raw
                    seen += 1
    assert seen > 4


def test_a_newer_embedded_version_is_read_as_the_newest_known() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"], rack_id="r")
    data = struct.pack(">h", 9) + encode_bytes(subscription, 3)
    assert parse_versioned(ConsumerProtocolSubscription, data) == (9, subscription)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, b"", "the key of an internal record"),
        (b"\0", b"", "the key of an internal record"),
        (b"\0\1\0", b"", "OffsetCommitKey v0"),
        (b"\0\2\0\1g", b"\0", "the value of an internal record"),
        (b"\0\2\0\1g", b"\0\x09", "GroupMetadataValue of version 9"),
        (b"\0\2\0\1g", b"\xff\xff", "GroupMetadataValue of version -1"),
        (b"\0\2\0\1g", b"\0\3\0", "GroupMetadataValue v3"),
    ],
)
def test_damage_is_named(key: bytes | None, value: bytes, why: str) -> None:
    with pytest.raises(CorruptRecord, match=why):
        parse_record(GROUP_RECORDS, key, value)


def test_a_type_of_the_future_is_not_damage() -> None:
    with pytest.raises(UnknownType) as caught:
        parse_record(GROUP_RECORDS, b"\0\x63", b"\0\0")
    assert caught.value.number == 99


def test_an_expiry_of_old_brokers() -> None:
    value = struct.pack(">hqH4sqq", 1, 20, 4, b"meta", 5, 86_400_005)
    record = parse_record(GROUP_RECORDS, b"\0\0\0\1g\0\1t\0\0\0\1", value)
    assert record.value == OffsetCommitValue(
        offset=20, metadata="meta", commit_timestamp=5, expire_timestamp=86_400_005
    )


@given(
    st.binary(max_size=40), st.none() | st.binary(max_size=60), st.sampled_from([GROUP_RECORDS, TRANSACTION_RECORDS])
)
def test_any_bytes_are_a_record_or_a_named_error(key: bytes, value: bytes | None, types: RecordTypes) -> None:
    with suppress(CorruptRecord, UnknownType):
        parse_record(types, key, value)
