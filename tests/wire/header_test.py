"""Headers of requests and responses, and the table of APIs."""

from __future__ import annotations

import contextlib
import random
import struct
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.wire import hot, messages
from ottla.wire.apis import API_TABLE, ApiKey, warm_up
from ottla.wire.codec import decode
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import (
    UNKNOWN_BODY,
    decode_request_header,
    encode_request_header,
    response_body_pos,
    response_correlation_id,
    response_header,
)

KNOWN = st.sampled_from(
    [(api.key, version) for api in API_TABLE.values() for version in range(api.min_version, api.max_version + 1)]
)
CLIENTS = st.none() | st.text(max_size=20)


@given(KNOWN, st.integers(-(2**31), 2**31 - 1), CLIENTS, st.binary(max_size=5))
def test_request_header_round_trip(
    known: tuple[ApiKey, int], correlation: int, client: str | None, body: bytes
) -> None:
    key, version = known
    data = encode_request_header(key, version, correlation, client)
    header = decode_request_header(memoryview(bytearray(data + body)))
    named = client if known != (ApiKey.CONTROLLED_SHUTDOWN, 0) else None
    assert header == (key, version, correlation, named, len(data))


def test_layouts() -> None:
    assert encode_request_header(ApiKey.METADATA, 1, 7, "me") == struct.pack(">hhih2s", 3, 1, 7, 2, b"me")
    assert encode_request_header(ApiKey.METADATA, 9, 7, "me") == struct.pack(">hhih2sB", 3, 9, 7, 2, b"me", 0)
    assert encode_request_header(ApiKey.METADATA, 9, 7, None) == struct.pack(">hhihB", 3, 9, 7, -1, 0)
    assert encode_request_header(ApiKey.CONTROLLED_SHUTDOWN, 0, 7, "me") == struct.pack(">hhi", 7, 0, 7)
    assert encode_request_header(ApiKey.CONTROLLED_SHUTDOWN, 1, 7, "me") == struct.pack(">hhih2s", 7, 1, 7, 2, b"me")


def test_tagged_fields_of_a_header_are_passed_over() -> None:
    frame = encode_request_header(ApiKey.PRODUCE, 9, 7, "me")[:-1] + b"\2\0\1a\4\3abc" + b"body"
    assert decode_request_header(frame).body_pos == len(frame) - 4


@pytest.mark.parametrize(("key", "version"), [(-1, 0), (32767, 0), (0, -1), (0, 32767), (18, 99), (52, 0), (3, 14)])
def test_unknown_api_or_version_gives_what_is_sure(key: int, version: int) -> None:
    frame = struct.pack(">hhi", key, version, 1234)
    for tail in (b"", b"\xff", b"\xff\xff\0", b"\x7f\xff" + bytes(50)):
        assert decode_request_header(frame + tail) == (key, version, 1234, None, UNKNOWN_BODY)


@pytest.mark.parametrize("size", range(8))
def test_less_than_the_fixed_fields(size: int) -> None:
    with pytest.raises(MalformedMessage):
        decode_request_header(bytes(size))


def test_truncated_at_every_byte() -> None:
    for key, version in ((ApiKey.METADATA, 1), (ApiKey.METADATA, 9), (ApiKey.CONTROLLED_SHUTDOWN, 1)):
        data = encode_request_header(key, version, 7, "console")
        for cut in range(len(data)):
            with pytest.raises(MalformedMessage):
                decode_request_header(memoryview(data)[:cut])


@pytest.mark.parametrize(
    "tail",
    [
        struct.pack(">h", -2),
        struct.pack(">h", 32767),
        struct.pack(">h", 0) + b"\xff\xff\xff\xff\x0f",  # 2^32 - 1 tags
        struct.pack(">h", 0) + b"\xff\xff\xff\xff\xff\xff\1",
        struct.pack(">h", 0) + b"\x91\x4e" + b"\0\0" * 10_001,
        struct.pack(">h", 0) + b"\2\1\0\1\0",
        struct.pack(">h", 0) + b"\1\1\7ab",
    ],
)
def test_wrong_client_ids_and_tags(tail: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_request_header(struct.pack(">hhi", ApiKey.PRODUCE, 9, 7) + tail)


def test_client_ids_with_nul_and_reused_correlation_ids_are_accepted() -> None:
    frame = encode_request_header(ApiKey.METADATA, 1, -1, "a\0b")
    assert decode_request_header(frame)[2:4] == (-1, "a\0b")


def test_api_versions_is_answered_with_the_oldest_header() -> None:
    for version in (0, 3, 4, 99):
        assert response_header(ApiKey.API_VERSIONS, version, 5) == b"\0\0\0\5"
        assert response_body_pos(ApiKey.API_VERSIONS, version, b"\0\0\0\5\7") == 4


@given(KNOWN, st.integers(-(2**31), 2**31 - 1))
def test_response_header_round_trip(known: tuple[ApiKey, int], correlation: int) -> None:
    key, version = known
    data = response_header(key, version, correlation)
    flexible = version >= API_TABLE[key].flexible_from and key != ApiKey.API_VERSIONS
    assert len(data) == (5 if flexible else 4)
    assert response_body_pos(key, version, data + b"body") == len(data)
    assert response_correlation_id(data) == correlation


def test_response_headers_cut_short_or_with_tags() -> None:
    for key, version, data in ((3, 1, b"\0\0\0"), (3, 9, b"\0\0\0\0"), (3, 9, b"\0\0\0\0\1\1")):
        with pytest.raises(MalformedMessage):
            response_body_pos(key, version, data)
    with pytest.raises(MalformedMessage):
        response_correlation_id(b"\0\0\0")
    assert response_body_pos(3, 9, b"\0\0\0\0\1\1\2ab" + b"body") == 9


def test_the_table_has_every_message_once() -> None:
    found = [message.__name__ for api in API_TABLE.values() for message in (api.request, api.response)]
    assert sorted(found) == sorted(messages.__all__)
    assert sorted(API_TABLE) == sorted(ApiKey)


def test_requests_and_responses_have_the_same_versions() -> None:
    for api in API_TABLE.values():
        assert api.request.VERSIONS == api.response.VERSIONS == range(api.min_version, api.max_version + 1)
        assert api.request.FLEXIBLE == api.response.FLEXIBLE


def test_old_versions_are_kept() -> None:
    """Clients older than Kafka 4 depend on them."""
    keys = (
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.JOIN_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.CREATE_TOPICS,
    )
    assert [API_TABLE[key].min_version for key in keys] == [0] * len(keys)
    assert (API_TABLE[ApiKey.PRODUCE].max_version, API_TABLE[ApiKey.FETCH].max_version) == (13, 18)


def test_warm_up_compiles_what_is_served() -> None:
    assert list(warm_up([(ApiKey.UNREGISTER_BROKER, 0, 9), (ApiKey.END_TXN, 1, 2)])) == [64, 26, 26]
    api = API_TABLE[ApiKey.END_TXN]
    assert {1, 2} <= set(api.request.DECODERS)
    assert {1, 2} <= set(api.response.ENCODERS)
    list(warm_up([(ApiKey.END_TXN, 3, 3)], client=True))
    assert 3 in api.request.ENCODERS
    assert 3 in api.response.DECODERS


def read_frame(frame: bytes) -> None:
    """What a broker does with a frame, up to the handler."""
    view = memoryview(frame)
    header = decode_request_header(view)
    if header.body_pos == UNKNOWN_BODY:
        return
    if header.api_key == ApiKey.PRODUCE:
        hot.decode_produce(header.api_version)(view, header.body_pos)
    elif header.api_key == ApiKey.FETCH:
        hot.decode_fetch(header.api_version)(view, header.body_pos)
    else:
        decode(API_TABLE[header.api_key].request, header.api_version, view, header.body_pos)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.randoms(use_true_random=False))
def test_mutated_frames_are_read_or_malformed(grammar: ModuleType, rng: random.Random) -> None:
    frame = grammar.request_frame(rng)
    read_frame(frame)
    with contextlib.suppress(MalformedMessage):
        read_frame(grammar.mutate(rng, frame))


def test_a_client_id_that_is_not_utf8_is_kept_byte_for_byte() -> None:
    data = encode_request_header(ApiKey.PRODUCE, 9, 7, "caf\udce9")
    assert b"caf\xe9" in data
    assert decode_request_header(data).client_id == "caf\udce9"
