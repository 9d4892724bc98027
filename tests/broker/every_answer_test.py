"""Every answer of every API, in every version, can be decoded and leaves no byte: random requests to a broker by hand.

Zone: real. A longer run: REQUESTS=20 .venv/bin/python -m pytest tests/broker/every_answer_test.py; `make explore` draws
new seeds. Fetch beside changing logs is in decodable_test.py; over sockets it is bench/fuzz.py.
"""

from __future__ import annotations

import os
import random

import pytest
from tests.handnode import Asker, Place
from tests.wire import grammar

from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import decode
from ottla.wire.header import response_body_pos

pytestmark = pytest.mark.slow
REQUESTS = int(os.environ.get("REQUESTS", "1"))
"""Of each API and version."""
SEED = random.SystemRandom().randrange(2**32) if "EXPLORE" in os.environ else 1
ORDERS = {ApiKey.CONTROLLED_SHUTDOWN, ApiKey.STOP_REPLICA, ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA}
"""Orders of a controller: they would stop the broker."""
FRAME_MAX = 256 * 1024


def known(node):
    """Names and numbers that mean something to the broker."""
    values = {
        "topic": ["t", "u", "absent"], "topics": ["t", "u"], "name": ["t", "u", "absent"], "topic_name": ["t"],
        "topic_id": [node.topic_id("t"), bytes(16)], "partition": [0, 1], "partition_index": [0, 1], "index": [0, 1],
        "partitions": [0, 1], "group_id": ["g"], "groups": ["g"], "key": ["g"], "coordinator_keys": ["g"],
        "transactional_id": ["x"], "max_wait_ms": [0, 5], "timeout_ms": [0, 5], "session_id": [0],
        "session_epoch": [-1, 0], "member_id": [""], "resource_type": [2, 4], "resource_name": ["t", "1"],
        "acks": [1, -1], "num_partitions": [1], "replication_factor": [1], "count": [2],
    }  # fmt: skip
    return lambda rng, field: rng.choice(values[field]) if field in values else None


def send(node, key: int, version: int, frame: bytes) -> Place:
    place = Place(Asker(), key, version)
    node.process.post_turn(0, "frame", lambda: node.broker.on_frame(place, memoryview(bytearray(frame))))
    node.pass_ms(1)
    return place


def test_every_answer_can_be_decoded(node) -> None:
    node.create("u", 2)
    node.produce("t", b"here")
    rng = random.Random(SEED)
    style = grammar.Style(extreme=True, known=known(node))
    places = []
    for key, (low, high) in sorted(node.broker._dispatch.version_ranges().items()):
        for version in range(low, high + 1) if key not in ORDERS else ():
            for _ in range(REQUESTS):
                frame = grammar.request_frame(rng, key, version, style)
                if len(frame) < FRAME_MAX:
                    places.append(send(node, key, version, frame))
    node.pass_ms(60_000)
    answered = [place for place in places if place.answered and place.parts]
    for place in answered:
        content = memoryview(b"".join(place.parts))
        pos = response_body_pos(place.key, place.version, content)
        _, end = decode(API_TABLE[place.key].response, place.version, content, pos)
        assert end == len(content), (place.key, place.version, place.parts)
    assert not node.broker._dispatch.containment.counts
    silent = {place.key for place in places} - {place.key for place in answered}
    assert silent == set(), "APIs of which no request was answered"
    assert len(answered) > 0.7 * len(places)
