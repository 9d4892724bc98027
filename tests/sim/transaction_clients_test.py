"""The parts of clients with transactions: sequential steps, and the parsing of answers.

Zone: real.
"""

from __future__ import annotations

from ottla.record.batch import Record, encode_batch
from ottla.record.control import Marker, marker_batch
from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Streams
from ottla.sim.networks.network import Network
from ottla.sim.transactions.polling import Parsed
from ottla.sim.transactions.steps import Actor, pause_client, request_broker, send_later
from ottla.sim.transactions.workload import unread_cursors
from ottla.sim.workload.catalog import Role, Topic
from ottla.sim.workload.readers import Cursor
from ottla.sim.world import SECOND, Timeline
from ottla.wire.messages import MetadataRequest, MetadataResponse


def written(offset: int, producer_id: int, *values: bytes) -> bytes:
    records = [Record(offset + at, 0, None, value) for at, value in enumerate(values)]
    return bytes(
        encode_batch(
            records,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )


def ended(offset: int, producer_id: int, commit: bool) -> bytes:
    batch = marker_batch(producer_id, 0, Marker(commit, 0), 0)
    batch[:8] = offset.to_bytes(8, "big")
    return bytes(batch)


LOG = b"".join(
    [
        written(0, 1, b"a", b"b"),
        written(2, 2, b"c"),
        ended(3, 2, commit=False),
        ended(4, 1, commit=False),
        written(5, 1, b"d"),
        ended(6, 1, commit=True),
    ]
)


def test_a_reader_of_committed_records_leaves_out_what_was_aborted():
    found = Parsed(memoryview(LOG), 0, [(1, 0), (2, 2)], committed=True)
    assert [record.value for record in found.records] == [b"d"]
    assert [(marker.offset, marker.commit) for marker in found.markers] == [(3, False), (4, False), (6, True)]
    assert (found.end, found.damage) == (7, "")


def test_nobody_is_through_while_another_was_told_of_more():
    topic = Topic("mix", Role.OUTPUT, 1, bytes(16))
    raw = Cursor(topic, 0, position=181, high_watermark=181)
    committed = Cursor(topic, 0, position=182, high_watermark=182)  # a marker came in between
    assert len(unread_cursors([("raw", raw), ("committed", committed)])) == 1
    raw.position = raw.high_watermark = 182
    assert unread_cursors([("raw", raw), ("committed", committed)]) == []
    assert len(unread_cursors([("new", Cursor(topic, 0))])) == 1


def test_a_reader_of_everything_sees_all_from_its_position_on():
    found = Parsed(memoryview(LOG), 1, [], committed=False)
    assert [(record.offset, record.value) for record in found.records] == [(1, b"b"), (2, b"c"), (5, b"d")]


def test_a_list_of_aborted_transactions_that_is_not_sorted_misleads_a_reader():
    found = Parsed(memoryview(LOG), 0, [(2, 2), (1, 0)], committed=True)
    assert b"a" in [record.value for record in found.records]


def test_bytes_that_were_changed_are_damage():
    changed = bytearray(LOG)
    changed[70] ^= 1
    found = Parsed(memoryview(changed), 0, [], committed=False)
    assert "checksum" in found.damage
    assert found.records == []


class Told(Actor):
    """Sends to a node where no broker listens, pauses, and notes each step."""

    def __init__(self, client: ClusterClient, streams: Streams) -> None:
        super().__init__(client, streams.named_stream("told"))
        self.story: list[object] = []

    def client_steps(self):
        node, request = 9, MetadataRequest(topics=None)
        self.story.append((yield from request_broker(node, request, 12, MetadataResponse)))
        yield from pause_client(SECOND)
        self.story.append(self.timeline.now_ns)
        yield from send_later(node, request, 12, MetadataResponse, SECOND)
        self.story.append("on")


def test_an_actor_does_one_thing_after_the_other_and_does_not_wait_for_what_it_only_sends():
    timeline, streams = Timeline(), Streams(1)
    network = Network(timeline, streams.named_stream("net"))
    client = ClusterClient(network, "told", [9], streams.named_stream("client"), lambda _response, _node: None)
    actor = Told(client, streams)
    actor.start_steps()
    timeline.run_until(30 * SECOND)
    assert actor.is_done
    answer, at_ns, last = actor.story
    assert answer is None, "no broker listens"
    assert at_ns > SECOND
    assert last == "on"
