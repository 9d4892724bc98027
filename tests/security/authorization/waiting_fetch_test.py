"""A Fetch that waits for records gets none that its client may not read any more when they come; one that compares
replicas gets what its client may read.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.security.authorization.guarded import Guarded

from ottla.errors import ErrorCode
from ottla.wire.messages import ListOffsetsRequest

ANN = "User:ann"
FETCH_VERSION = 12


@pytest.fixture
def node() -> Guarded:
    made = Guarded()
    made.create("t")
    made.grant("Topic t", ANN, "Read")
    return made


@pytest.mark.parametrize("session", [{"session_id": 0, "session_epoch": -1}, {"session_id": 0, "session_epoch": 0}])
def test_a_waiting_fetch_gets_nothing_after_the_right_was_taken_away(node: Guarded, session: dict[str, int]) -> None:
    request = node.fetch_request("t", 0, max_wait_ms=60_000, **session)
    place = node.send(request, FETCH_VERSION, node.connection_of(ANN))
    node.pass_ms(100)
    assert not place.answered
    node.revoke(ANN)
    node.pass_ms(100)
    assert node.produce("t", b"secret").error_code == 0
    node.pass_ms(100)
    answer = node.answer(place)
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not partition.records


def test_an_incremental_fetch_gets_nothing_after_the_right_was_taken_away(node: Guarded) -> None:
    ann = node.connection_of(ANN)
    assert node.produce("t", b"known").error_code == 0
    first = node.answer(node.send(node.fetch_request("t", 0, session_id=0, session_epoch=0), FETCH_VERSION, ann))
    assert first.responses[0].partitions[0].records
    again = node.fetch_request("t", 1, max_wait_ms=60_000, session_id=first.session_id, session_epoch=1)
    place = node.send(again, FETCH_VERSION, ann)
    node.pass_ms(100)
    assert not place.answered
    node.revoke(ANN)
    assert node.produce("t", b"secret").error_code == 0
    node.pass_ms(100)
    (partition,) = node.answer(place).responses[0].partitions
    assert partition.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not partition.records
    # The right comes back: the session continues where it was.
    node.grant("Topic t", ANN, "Read")
    request = node.fetch_request("t", 1, session_id=first.session_id, session_epoch=2)
    (partition,) = node.answer(node.send(request, FETCH_VERSION, ann)).responses[0].partitions
    assert partition.error_code == 0
    assert partition.records


def test_a_debugging_consumer_needs_the_rights_of_a_consumer(node: Guarded) -> None:
    assert node.produce("t", b"known").error_code == 0
    ann, bob = node.connection_of(ANN), node.connection_of("User:bob")
    fetch = node.fetch_request("t", 0, replica_id=-2)
    one = ListOffsetsRequest.ListOffsetsPartition(timestamp=-1)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[one])
    offsets = ListOffsetsRequest(replica_id=-2, topics=[topic])
    for peer, code in ((ann, ErrorCode.NONE), (bob, ErrorCode.TOPIC_AUTHORIZATION_FAILED)):
        (partition,) = node.answer(node.send(fetch, FETCH_VERSION, peer)).responses[0].partitions
        assert (partition.error_code, bool(partition.records)) == (code, not code)
        assert node.answer(node.send(offsets, 7, peer)).topics[0].partitions[0].error_code == code
