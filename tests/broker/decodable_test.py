"""Every answer can be decoded in its version and leaves no byte, while logs grow, are cut, move and are deleted.

Zone: real. Three brokers by hand, and requests drawn from a seed. `make explore` draws new seeds; a longer run of one
seed: FETCHES=5000 .venv/bin/python -m pytest tests/broker/decodable_test.py. Over sockets: bench/fuzz.py --brokers 3.
"""

from __future__ import annotations

import importlib
import io
import os
import random
from collections import Counter

import pytest
from kio.serial import entity_reader, entity_writer
from tests.handcluster import HandCluster
from tests.handnode import Asker, Caller

from ottla.errors import ErrorCode
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode
from ottla.wire.header import response_body_pos
from ottla.wire.messages import DeleteRecordsRequest, FetchRequest, WriteTxnMarkersRequest

pytestmark = pytest.mark.slow
FETCHES = int(os.environ.get("FETCHES", "105"))
SEEDS = [random.SystemRandom().randrange(2**32)] if "EXPLORE" in os.environ else [1]
TOPICS = {"all": (1, 2, 3), "two": (2, 3), "one": (3,)}
PARTITIONS = 3
KIO_MAX = 4096
"""Bytes of an answer that the other decoder reads as well; it takes its time."""
ABSENT = bytes(range(16))


def read_strictly(place) -> object:
    """The answer in that place, by our decoder and by kio's; nothing is left over."""
    content = b"".join(place.parts)
    api = API_TABLE[place.key]
    pos = response_body_pos(place.key, place.version, memoryview(content))
    answer, end = decode(api.response, place.version, memoryview(content), pos)
    assert end == len(content), f"{len(content) - end} bytes are left"
    if place.version >= 4 and len(content) <= KIO_MAX:
        theirs = importlib.import_module(f"kio.schema.fetch.v{place.version}.response").FetchResponse
        entity, size = entity_reader(theirs)(content, pos)
        assert pos + size == len(content)
        out = io.BytesIO()
        entity_writer(theirs)(out, entity)
        assert out.getvalue() == content[pos:]
    return answer


class Reading:
    """Random fetches, and what happens to the logs meanwhile."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        unverified = {"transaction.partition.verification.enable": "false"}
        self.cluster = HandCluster({"min.insync.replicas": "1", "log.retention.check.interval.ms": "200", **unverified})
        for name, replicas in TOPICS.items():
            rows = [replicas[at % len(replicas) :] + replicas[: at % len(replicas)] for at in range(PARTITIONS)]
            self.cluster.create(name, *rows, segment_bytes="1000", retention_bytes="8000", file_delete_delay_ms="50")
        self.ids = {name: self.cluster[1].topic_id(name) for name in TOPICS}
        self.sessions: list[tuple[int, int]] = []
        self.seen: Counter[str] = Counter()
        self.producer = 0

    # -- what happens meanwhile --------------------------------------------------------------------------------------

    def place(self):
        """A partition, and the broker that leads it."""
        name, index = self.rng.choice(list(TOPICS)), self.rng.randrange(PARTITIONS)
        return name, index, self.cluster.leader(name, index)

    def append(self) -> None:
        name, index, leader = self.place()
        leader.produce(name, *[b"s" * self.rng.randrange(300)] * self.rng.randint(1, 5), partition=index)

    def abort(self) -> None:
        name, index, leader = self.place()
        self.producer += 1
        batch = {"producer_id": self.producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        leader.produce(name, b"gone", partition=index, **batch)
        m = WriteTxnMarkersRequest
        marker = m.WritableTxnMarker(producer_id=self.producer, transaction_result=False)
        marker.topics = [m.WritableTxnMarkerTopic(name=name, partition_indexes=[index])]
        leader.answer(leader.send(m(markers=[marker]), 1, peer=Caller("")))

    def trim(self) -> None:
        name, index, leader = self.place()
        m = DeleteRecordsRequest
        row = m.DeleteRecordsPartition(partition_index=index, offset=-1)
        leader.ask(m(topics=[m.DeleteRecordsTopic(name=name, partitions=[row])], timeout_ms=100), 2)

    def remake(self) -> None:
        """Delete the topic of one replica each, and make it once more under another id."""
        self.cluster.delete("one")
        self.cluster.until(lambda: not any(each.partition("one") for each in self.cluster), "it is deleted")
        self.cluster.create("one", *[TOPICS["one"]] * PARTITIONS, segment_bytes="1000")
        self.ids["one"] = self.cluster[3].topic_id("one")

    def wait(self) -> None:
        self.cluster.pass_ms(self.rng.choice((1, 20, 300)))

    def move(self) -> None:
        """A broker dies and comes back: its partitions have other leaders, its log is cut."""
        gone = self.cluster[self.rng.randint(1, 3)]
        gone.kill()
        self.cluster.pass_ms(3_000)
        gone.start()
        self.cluster.until(lambda: gone.up, "it is back")
        self.cluster.until(lambda: all(self.cluster.leader(name, at) for name in TOPICS for at in range(3)), "leaders")

    # -- fetches -----------------------------------------------------------------------------------------------------

    def request(self, version: int, *, large: bool) -> FetchRequest:
        rng = self.rng
        request = FetchRequest(max_wait_ms=rng.choice((0, 0, 5)), min_bytes=rng.choice((0, 1, 100_000)))
        request.topics = [self.topic(version) for _ in range(rng.choice((0, 1, 2, 4)) + 2 * large)]
        if large:
            absent = self.topic(version)
            absent.topic, absent.topic_id = "absent", ABSENT
            absent.partitions *= -(-1_500 // len(absent.partitions))
            request.topics.insert(rng.randrange(len(request.topics) + 1), absent)
        request.max_bytes = rng.choice((-(2**31), -1, 0, 1, 1000, 2**20, 2**31 - 1))
        request.isolation_level = rng.randrange(2)
        if version >= 7:
            request.session_id, request.session_epoch = rng.choice([(0, -1), (0, 0), (0, 0), *self.sessions[-3:]])
            if rng.random() < 0.3:
                gone = self.topic(version)
                forgotten = FetchRequest.ForgottenTopic(topic=gone.topic, topic_id=gone.topic_id, partitions=[0, 1])
                request.forgotten_topics_data = [forgotten]
        return request

    def topic(self, version: int) -> FetchRequest.FetchTopic:
        rng = self.rng
        name = rng.choice([*TOPICS, *TOPICS, *TOPICS, "absent"])
        rows = []
        for _ in range(rng.choice((1, 2, 5))):
            row = FetchRequest.FetchPartition(partition=rng.choice((0, 1, 2, 2, PARTITIONS)))
            row.fetch_offset = rng.choice((0, 0, 3, 8, 30, -1, 10**6))
            row.partition_max_bytes = rng.choice((-(2**31), -1, 0, 1, 400, 2**20, 2**31 - 1))
            if version >= 9:
                row.current_leader_epoch = rng.choice((*[-1] * 6, 0, 1, 9))
            if version >= 12:
                row.last_fetched_epoch = rng.choice((-1, 0, 0))
            rows.append(row)
        return FetchRequest.FetchTopic(topic=name, topic_id=self.ids.get(name, ABSENT), partitions=rows)

    def fetch(self, version: int, *, large: bool) -> None:
        member = self.cluster[self.rng.randint(1, 3)]
        request = self.request(version, large=large)
        place = member.send(request, version, Asker())
        if not place.answered:
            self.rng.choice([self.append, self.trim, self.abort, self.wait])()
        closed = len(member.network.closed)
        self.cluster.until(lambda: place.answered or len(member.network.closed) > closed, "an answer")
        self.note(read_strictly(place), request, large=large)

    def note(self, answer, request: FetchRequest, *, large: bool) -> None:
        rows = [row for topic in answer.responses for row in topic.partitions]
        self.seen.update(ErrorCode(row.error_code).name for row in rows)
        self.seen["records"] += sum(bool(row.records) for row in rows)
        self.seen["aborted"] += sum(bool(row.aborted_transactions) for row in rows)
        diverging = sum(row.diverging_epoch.epoch >= 0 for row in rows)
        moved = sum(row.current_leader.leader_id >= 0 for row in rows)
        self.seen.update({"diverging": diverging, "moved": moved, ErrorCode(answer.error_code).name: 1})
        self.seen["large and rare"] += large and diverging + moved > 0
        self.seen["sessions"] += answer.session_id > 0 and request.session_epoch > 0
        if answer.session_id:
            self.sessions.append((answer.session_id, max(0, request.session_epoch) + 1))

    def run(self, count: int) -> None:
        for at in range(count):
            happens = self.move if at % 100 == 99 else self.remake if at % 100 == 49 else None
            (happens or self.rng.choice([self.append, self.append, self.abort, self.trim, self.wait]))()
            self.fetch(4 + at % 15, large=at % 7 == 6)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_fetch_answer_can_be_decoded(seed: int) -> None:
    reading = Reading(seed)
    reading.run(FETCHES)
    for member in reading.cluster:
        assert not member.broker._dispatch.containment.counts
    if seed == 1:
        wanted = {"records", "aborted", "diverging", "moved", "large and rare", "sessions"}
        wanted |= {"OFFSET_OUT_OF_RANGE", "UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER"}
        wanted |= {"FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "FETCH_SESSION_TOPIC_ID_ERROR"}
        assert wanted <= {kind for kind, count in reading.seen.items() if count}, reading.seen
