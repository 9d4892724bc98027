"""Message sets of old clients, converted to batches: against an encoder of the tests' own, and arbitrary input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messagesets import GZIP, LZ4, SNAPPY, message, message_set, wrapper
from tests.peak import peak_of

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import crc_ok, header_at, records_of
from ottla.record.errors import ExpandsTooFar
from ottla.record.message_set_conversion import TopicRules, convert_job, convert_message_set, is_message_set
from ottla.record.validation import validate_produced

LIMIT = 1 << 20
CODECS = (0, GZIP, SNAPPY, LZ4)
ROWS = st.lists(
    st.tuples(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=300), st.integers(-1, 2**40)),
    min_size=1,
    max_size=20,
)


def rows_of(batch: bytearray) -> list:
    return [(r.offset, r.key, r.value, r.timestamp) for r in records_of(batch, max_bytes=LIMIT)]


def refused(content: bytes, **rules) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        convert_message_set(memoryview(content), TopicRules(**rules), LIMIT)
    return caught.value.code


@given(ROWS, st.sampled_from(CODECS), st.sampled_from([0, 1]), st.booleans(), st.sampled_from([-1, 0, 1, 2, 3, 4]))
def test_every_record_is_in_the_batch(rows, codec: int, magic: int, relative: bool, wanted: int) -> None:
    batch = convert_message_set(memoryview(message_set(magic, codec, rows, relative)), TopicRules(wanted), LIMIT)
    expected = [(at, key, value, stamp if magic else -1) for at, (key, value, stamp) in enumerate(rows)]
    assert rows_of(batch) == expected
    header = validate_produced(memoryview(batch), 0, len(batch), 0, after_max_ms=2**62)
    assert (header[7], header[8]) == (expected[0][3], max(row[3] for row in expected))
    assert header_at(batch).codec == (codec if wanted < 0 else wanted)


@given(ROWS, ROWS, st.sampled_from(CODECS), st.sampled_from([0, 1]))
def test_sets_of_several_wrappers_and_plain_messages_keep_their_order(first, second, codec: int, magic: int) -> None:
    both = message_set(magic, codec, first) + message_set(magic, 0, second)
    found = rows_of(convert_message_set(memoryview(both), TopicRules(), LIMIT))
    assert [row[1:3] for row in found] == [row[:2] for row in first + second]


def test_lz4_of_format_v0_comes_with_either_checksum() -> None:
    inner = message(0, b"k", b"v" * 100)
    for broken in (True, False):
        batch = convert_message_set(memoryview(wrapper(0, LZ4, inner, broken=broken)), TopicRules(), LIMIT)
        assert rows_of(batch) == [(0, b"k", b"v" * 100, -1)]


GOOD = message(1, b"k", b"value", timestamp=5)
BAD_CHECKSUM = GOOD[:-1] + b"\0"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (BAD_CHECKSUM, ErrorCode.CORRUPT_MESSAGE),
        (wrapper(1, GZIP, BAD_CHECKSUM), ErrorCode.CORRUPT_MESSAGE),
        (wrapper(1, GZIP, wrapper(1, GZIP, GOOD)), ErrorCode.CORRUPT_MESSAGE),
        (wrapper(1, GZIP, message(0, b"k", b"v")), ErrorCode.CORRUPT_MESSAGE),
        (wrapper(1, GZIP, b""), ErrorCode.CORRUPT_MESSAGE),
        (wrapper(1, GZIP, GOOD[:-1]), ErrorCode.CORRUPT_MESSAGE),
        (message(1, None, b"no gzip", attributes=GZIP), ErrorCode.CORRUPT_MESSAGE),
        (message(1, None, None, attributes=LZ4), ErrorCode.CORRUPT_MESSAGE),
        (GOOD + GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
        (GOOD + GOOD[:5], ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:16] + b"\x03" + GOOD[17:], ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (message(1, None, b"zstd", attributes=4), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (message(0, None, b"?", attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (message(1, b"k", b"v", attributes=8, timestamp=5), ErrorCode.INVALID_TIMESTAMP),
        (message(1, b"k", b"v", timestamp=-2), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_each_kind_of_damage_has_its_error(content: bytes, code: ErrorCode) -> None:
    assert refused(content) == code


def test_each_broken_topic_rule_has_its_error() -> None:
    assert refused(GOOD, earliest_ms=6) == ErrorCode.INVALID_TIMESTAMP
    assert refused(GOOD, latest_ms=4) == ErrorCode.INVALID_TIMESTAMP
    assert refused(message(1, None, b"v"), need_keys=True) == ErrorCode.INVALID_RECORD
    assert refused(GOOD, max_bytes=len(GOOD) - 1) == ErrorCode.MESSAGE_TOO_LARGE
    many = message_set(1, 0, [(b"k", b"v" * 50, 5)] * 100)
    assert refused(many, max_bytes=1000) == ErrorCode.MESSAGE_TOO_LARGE, "each is small enough, the batch is not"
    packed = message_set(1, GZIP, [(b"k", b"v" * 50, 5)] * 100)
    assert refused(packed, max_bytes=1000, codec=0) == ErrorCode.MESSAGE_TOO_LARGE
    assert rows_of(convert_message_set(memoryview(message(1, b"k", b"v")), TopicRules(earliest_ms=6), LIMIT)), (
        "no time is not too old"
    )


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = wrapper(1, GZIP, message(1, b"k", bytes(50_000_000), timestamp=5))
    assert len(bomb) < 300_000
    with pytest.raises(ExpandsTooFar):
        convert_message_set(memoryview(bomb), TopicRules(), 10_000)
    assert peak_of(lambda: refused(bomb)) < 8 * LIMIT


def test_the_number_of_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.record.message_set_conversion.RECORDS_MAX", 100)
    assert rows_of(convert_message_set(memoryview(message_set(1, GZIP, [(b"k", b"v", 5)] * 100)), TopicRules(), LIMIT))
    assert refused(message_set(1, GZIP, [(b"k", b"v", 5)] * 101)) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_job_answers_with_the_batch_or_with_the_error() -> None:
    batch = convert_job(GOOD, tuple(TopicRules()))
    assert isinstance(batch, bytes)
    assert crc_ok(memoryview(batch), 0, len(batch))
    code, text = convert_job(BAD_CHECKSUM, tuple(TopicRules()))
    assert code == ErrorCode.CORRUPT_MESSAGE
    assert "checksum" in text


@given(st.binary(max_size=300), st.sampled_from([0, 1]), st.integers(0, 3))
def test_arbitrary_bytes_are_a_batch_or_a_typed_error(data: bytes, magic: int, codec: int) -> None:
    for content in (data, message(magic, None, data, attributes=codec)):
        if not is_message_set(memoryview(content)):
            continue
        try:
            batch = convert_message_set(memoryview(content), TopicRules(), LIMIT)
        except ApiError:
            continue
        assert rows_of(batch)


@given(ROWS, st.sampled_from(CODECS), st.sampled_from([0, 1]), st.data())
def test_a_flipped_bit_never_becomes_another_record(rows, codec: int, magic: int, data) -> None:
    """Offsets are outside the checksum, and producers' offsets are ignored."""
    content = bytearray(message_set(magic, codec, rows))
    at = data.draw(st.integers(0, len(content) * 8 - 1))
    content[at // 8] ^= 1 << at % 8
    try:
        found = rows_of(convert_message_set(memoryview(content), TopicRules(), LIMIT))
    except ApiError:
        return
    assert [row[1:] for row in found] == [(key, value, stamp if magic else -1) for key, value, stamp in rows]
