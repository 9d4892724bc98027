"""The nodes of delegation tokens: as Apache Kafka 3.9 writes them, older versions, and content that is none.

Zone: pure.
"""

from __future__ import annotations

import json

import pytest

from ottla.znodes.token_nodes import TokenInfo, decode_token, encode_token

INFO = TokenInfo("id", "User:ann", "User:boss", ("User:bob", "User:CN=c,O=d e"), 1, 3, 2)
KAFKA = (
    '{"version":3,"owner":"User%3Aann","tokenRequester":"User%3Aboss",'
    '"renewers":["User%3Abob","User%3ACN%3Dc%2CO%3Dd%20e"],'
    '"issueTimestamp":1,"maxTimestamp":3,"expiryTimestamp":2,"tokenId":"id"}'
)


def test_a_node_is_that_of_kafka() -> None:
    assert encode_token(INFO).decode() == KAFKA
    assert decode_token("id", KAFKA.encode()) == INFO


def test_older_versions_have_no_requester() -> None:
    content = json.loads(KAFKA)
    del content["tokenRequester"]
    for version in (1, 2):
        old = json.dumps({**content, "version": version}).encode()
        assert decode_token("id", old) == INFO._replace(requester="User:ann")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0}, {"version": 4}, {"version": "3"}, {"owner": "ann"}, {"owner": 1}, {"owner": "User:"},
        {"renewers": None}, {"renewers": [1]}, {"maxTimestamp": -1}, {"maxTimestamp": True}, {"maxTimestamp": 1.5},
        {"issueTimestamp": 2**63}, {"tokenId": "other"}, {"tokenRequester": None},
    ],
    ids=str,
)  # fmt: skip
def test_other_content_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"node|time"):
        decode_token("id", json.dumps({**json.loads(KAFKA), **change}).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b"[" * 100_000, b"\xff"], ids=lambda data: repr(data[:5]))
def test_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"node|Expecting|codec|JSON"):
        decode_token("id", data)
