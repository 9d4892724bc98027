"""Fetches of followers, and of consumers from followers, over the wire."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.replication.conftest import Replicated

from ottla.cluster.image import BrokerImage
from ottla.config.rows import ConfigError
from ottla.errors import ErrorCode
from ottla.replication.fetch.replica_selector import ReplicaView, rack_aware, selector_named
from ottla.replication.partition.replica_state import IsrOutcome
from ottla.replication.partition.sequence_gaps import NEW_LEADER_NS
from ottla.replication.throttle import Throttle
from ottla.types import Endpoint
from ottla.wire.messages import FetchRequest

DEBUGGING_CONSUMER = -2
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def other_peer(node):
    return type(node.peer)()


def with_neighbour(node, rack: str | None = None) -> None:
    """Broker 2 is alive."""
    image = node.broker.cluster.image
    two = BrokerImage(2, (Endpoint("PLAINTEXT", "there", 9093),), rack, 7)
    node.broker.cluster.image = replace(image, brokers={**image.brokers, 2: two})


@pytest.mark.parametrize("version", [4, 9, 12, 13, 15, 18])
def test_a_replica_reads_uncommitted_records(node, version: int, records_in) -> None:
    node.send_state(1, (1, 2))
    node.produce("t", b"a", acks=1)
    assert node.values("t") == []
    request = {"topic_id": node.topic_id("t")}
    seen = node.replicate("t", 0, version, **request)
    assert [record.value for record in records_in(seen.records)] == [b"a"]
    assert (seen.error_code, seen.high_watermark) == (0, 0)


def test_the_fetch_offset_acknowledges_and_the_answer_knows_it(node) -> None:
    partition = node.send_state(1, (1, 2))
    waiting = node.send(node.produce_request("t", b"a", acks=-1), 9)
    assert not waiting.answered
    node.replicate("t", 0)
    assert not waiting.answered
    seen = node.replicate("t", 1)
    assert waiting.answered, "in the turn of the follower's fetch"
    assert node.answer(waiting).responses[0].partition_responses[0].error_code == 0
    assert seen.high_watermark == partition.high_watermark == 1


def test_a_produce_wakes_the_follower_and_its_next_fetch_the_consumer(node, records_in) -> None:
    node.send_state(1, (1, 2))
    consumer = node.send(node.fetch_request("t", 0, max_wait_ms=5000), 12, peer=other_peer(node))
    follower = node.send(node.replica_request("t", 0, max_wait_ms=500), 12, peer=other_peer(node))
    node.send(node.produce_request("t", b"a", acks=-1), 9)
    assert (follower.answered, consumer.answered) == (True, False)
    node.send(node.replica_request("t", 1, max_wait_ms=500), 12, peer=other_peer(node))
    assert consumer.answered
    row = node.answer(consumer).responses[0].partitions[0]
    assert [record.value for record in records_in(row.records)] == [b"a"]


def test_a_log_that_parts_is_answered_with_the_place(node) -> None:
    partition = node.send_state(1, (1, 2))
    node.produce("t", b"a", b"b", acks=1)
    first = partition.leader_epoch
    node.send_state(1, (1, 2))
    node.produce("t", b"c", acks=1)
    seen = node.replicate("t", 3, last_epoch=first)
    assert (seen.diverging_epoch.epoch, seen.diverging_epoch.end_offset) == (first, 2)
    assert (seen.error_code, bytes(seen.records)) == (0, b"")
    assert partition.leader_role.in_sync.replicas[2].end_offset == -1, "no acknowledgement"
    agreed = node.replicate("t", 2, last_epoch=first)
    assert agreed.diverging_epoch.end_offset == -1
    assert len(agreed.records) > 0


def test_a_diverging_epoch_ends_the_wait_of_a_fetch(node) -> None:
    partition = node.send_state(1, (1, 2))
    node.produce("t", b"a", acks=1)
    first = partition.leader_epoch
    node.send_state(1, (1, 2))
    place = node.send(node.replica_request("t", 1, last_epoch=first + 1, max_wait_ms=500), 12)
    assert not place.answered, "its last epoch is ours, and it has everything"
    strange = node.send(node.replica_request("t", 2, last_epoch=first, max_wait_ms=500), 12, peer=other_peer(node))
    assert strange.answered


@pytest.mark.parametrize(("shift", "code"), [(-1, "FENCED_LEADER_EPOCH"), (1, "UNKNOWN_LEADER_EPOCH")])
def test_a_replica_of_another_epoch_is_fenced(node, shift: int, code: str) -> None:
    partition = node.send_state(1, (1, 2))
    seen = node.replicate("t", 0, leader_epoch=partition.leader_epoch + shift)
    assert ErrorCode(seen.error_code).name == code


@pytest.mark.parametrize("version", [12, 16])
def test_a_fetch_at_a_follower_gets_the_current_leader(node, version: int) -> None:
    with_neighbour(node, "r2")
    partition = node.send_state(2, (1, 2))
    answer = node.ask(node.replica_request("t", 0, version, topic_id=node.topic_id("t")), version)
    row = answer.responses[0].partitions[0]
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version < 16:
        assert (row.current_leader.leader_id, answer.node_endpoints) == (-1, [])
        return
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, partition.leader_epoch)
    (endpoint,) = answer.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack) == (2, "there", 9093, "r2")


def test_leadership_loss_ends_a_waiting_fetch(node) -> None:
    node.send_state(1, (1, 2))
    waiting = node.send(node.replica_request("t", 0, max_wait_ms=500), 12)
    node.send_state(2, (1, 2))
    assert waiting.answered
    row = node.answer(waiting).responses[0].partitions[0]
    assert row.error_code == ErrorCode.FENCED_LEADER_EPOCH


class ReplicaSession:
    """A follower's incremental session of one partition."""

    def __init__(self, node: Replicated) -> None:
        self.node = node
        self.session_id = self.epoch = 0
        self.broker_epoch = 7

    def send(self, offset: int | None = None, max_wait_ms: int = 0):
        if offset is None:
            request = FetchRequest(min_bytes=1, max_bytes=1 << 20, topics=[])
            request.replica_state.replica_id, request.replica_state.replica_epoch = 2, self.broker_epoch
        else:
            request = self.node.replica_request("t", offset, 15, topic_id=self.node.topic_id("t"))
        request.max_wait_ms = max_wait_ms
        request.session_id, request.session_epoch = self.session_id, self.epoch
        self.epoch += 1
        return self.node.send(request, 15, peer=other_peer(self.node))

    def rows(self, place):
        answer = self.node.answer(place)
        self.session_id = answer.session_id
        return [row for topic in answer.responses for row in topic.partitions]

    def fetch(self, offset: int | None = None):
        return self.rows(self.send(offset))


def test_fetches_of_an_idle_session_keep_a_follower_in_sync(node) -> None:
    partition = node.send_state(1, (1, 2))
    session = ReplicaSession(node)
    session.fetch(0)
    for _ in range(8):
        node.pass_ms(10_000)
        assert session.fetch() == []
    node.produce("t", b"a", acks=1)
    partition.leader_role.shrink_if_lagging(node.process.clock.now())
    assert not node.proposals
    assert [row.partition_index for row in session.fetch()] == [0]


def test_a_new_broker_epoch_reaches_partitions_without_news(node) -> None:
    partition = node.send_state(1, (1,))
    session = ReplicaSession(node)
    session.fetch(0)
    (proposal,) = node.proposals
    assert proposal.broker_epochs[-1] == 7
    partition.leader_role.on_alter_partition_response(IsrOutcome(proposal, ErrorCode.INELIGIBLE_REPLICA))
    node.proposals.clear()
    session.broker_epoch = 9
    assert session.fetch() == []
    partition.leader_role.shrink_if_lagging(node.process.clock.now())
    (proposal,) = node.proposals
    assert proposal.broker_epochs[-1] == 9


def test_a_late_request_of_an_earlier_session_is_corrected_by_the_one_that_lives(node) -> None:
    """The connection of the first session is gone, and the last request on it arrives after those of the next."""
    partition = node.send_state(1, (1, 2))
    for value in (b"a", b"b"):
        node.produce("t", value, acks=1)
    former, living = ReplicaSession(node), ReplicaSession(node)
    former.fetch(0)
    living.fetch(2)
    assert partition.high_watermark == 2
    former.broker_epoch = -1
    former.fetch(1)
    node.produce("t", b"c", acks=1)
    living.fetch(3)
    living.fetch()
    former.fetch(1)
    for _ in range(8):
        node.pass_ms(10_000)
        living.fetch()
    partition.leader_role.shrink_if_lagging(node.process.clock.now())
    assert not node.proposals, "a replica that fetches and has all records stays in the ISR"
    assert partition.leader_role.in_sync.replicas[2].end_offset == 3
    assert partition.leader_role.in_sync.replicas[2].broker_epoch == 7


def test_an_unnamed_partition_in_a_session_acknowledges_nothing_new(node) -> None:
    partition = node.send_state(1, (1, 2))
    session = ReplicaSession(node)
    session.fetch(0)
    node.produce("t", b"a", acks=1)
    assert len(session.fetch()) == 1
    assert len(session.fetch()) == 1, "not taken, sent again"
    assert partition.high_watermark == 0
    session.fetch(1)
    assert partition.high_watermark == 1


def test_a_fetch_without_records_returns_the_latest_high_watermark(node) -> None:
    node.send_state(1, (1, 2, 3), (1, 2, 3))
    node.produce("t", b"a", acks=1)
    session = ReplicaSession(node)
    session.fetch(0)
    waiting = session.send(1, max_wait_ms=500)
    third = node.replica_request("t", 1)
    third.replica_id = 3
    node.send(third, 12, peer=other_peer(node))
    assert node.partition().high_watermark == 1
    assert not waiting.answered, "it asked for records"
    node.pass_ms(505)
    assert [row.high_watermark for row in session.rows(waiting)] == [1]


def test_a_throttled_follower_that_catches_up_gets_nothing_for_a_while(node) -> None:
    throttle = Throttle(1, 11, 1)
    throttle.set_rate(1000)
    throttle.mark_topic("t", ["0:1"])
    node.broker._fetch._completion._reader._throttle = throttle
    node.send_state(1, (1,))
    for _ in range(3):
        node.produce("t", b"x" * 2000)
    assert len(node.replicate("t", 0, partition_max_bytes=1).records) > 2000
    held = node.replicate("t", 1, partition_max_bytes=1)
    assert (held.error_code, len(held.records)) == (0, 0)
    node.pass_ms(3000)
    assert len(node.replicate("t", 1, partition_max_bytes=1).records) > 2000
    assert len(node.replicate("t", 2, partition_max_bytes=1).records) == 0
    node.send_state(1, (1, 2))
    assert len(node.replicate("t", 2, partition_max_bytes=1).records) > 2000, "in sync, it is never held back"


def test_a_moved_log_start_is_sent_at_once(node) -> None:
    partition = node.send_state(1, (1, 2))
    node.produce("t", b"a", acks=1)
    session = ReplicaSession(node)
    session.fetch(0)
    session.fetch(1)
    waiting = session.send(1, max_wait_ms=500)
    assert not waiting.answered
    node.process.post_turn(0, "trim", lambda: (partition.leader_role.raise_start(1), node.broker.end_turn()))
    node.pass_ms(0)
    assert waiting.answered
    assert [row.log_start_offset for row in session.rows(waiting)] == [1]


def test_a_consumer_that_names_its_last_epoch_also_detects_a_truncation(node) -> None:
    partition = node.send_state(1, (1,))
    node.produce("t", b"a")
    first = partition.leader_epoch
    node.send_state(1, (1,))
    node.produce("t", b"b")
    request = node.fetch_request("t", 2)
    request.topics[0].partitions[0].last_fetched_epoch = first
    row = node.ask(request, 12).responses[0].partitions[0]
    assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset, bytes(row.records)) == (first, 1, b"")


# -- KIP-392 -----------------------------------------------------------------------------------------------------------


def test_a_consumer_reads_committed_records_from_a_follower(node, records_in) -> None:
    for value in (b"a", b"b", b"c"):
        node.produce("t", value)
    partition = node.send_state(2, (1, 2))
    partition.high_watermark = partition.log.high_watermark = 2
    seen = node.fetch("t", 0, 11)
    assert [record.value for record in records_in(seen.records)] == [b"a", b"b"]
    assert (seen.error_code, seen.high_watermark) == (0, 2)
    assert node.fetch("t", 0, 10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    above = node.fetch("t", 3, 11)
    assert (above.error_code, bytes(above.records)) == (0, b""), "here, and perhaps not committed"
    assert node.fetch("t", 4, 11).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert node.fetch("t", 0, 12, leader_epoch=partition.leader_epoch - 1).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_consumer_at_a_follower_is_woken_when_that_learns_of_a_commit(node) -> None:
    node.send_state(1, (1, 2))
    node.produce("t", b"0", b"1", acks=1)
    follower = node.send_state(2, (1, 2)).follower_role
    waiting = node.send(node.fetch_request("t", 0, max_wait_ms=5000), 12, peer=other_peer(node))
    assert not waiting.answered
    node.process.post_turn(0, "answer", lambda: (follower.take_from_leader(9, 0), node.broker.end_turn()))
    node.pass_ms(0)
    assert waiting.answered
    assert node.answer(waiting).responses[0].partitions[0].high_watermark == 2, "not 9: it has two"


# -- consumers that compare replicas -----------------------------------------------------------------------------------


def debugging_request(node, offset: int, version: int, **more) -> FetchRequest:
    request = node.fetch_request("t", offset, topic_id=node.topic_id("t"), **more)
    if version < 15:
        request.replica_id = DEBUGGING_CONSUMER
    else:
        request.replica_state.replica_id = DEBUGGING_CONSUMER
    return request


@pytest.mark.parametrize("leader", [1, 2])
@pytest.mark.parametrize("version", [0, 2, 3, 4, 7, 10, 11, 12, 15, 18])
def test_a_debugging_consumer_reads_committed_records_of_any_replica(
    node, version: int, leader: int, records_in
) -> None:
    for value in (b"a", b"b", b"c"):
        node.produce("t", value)
    partition = node.send_state(leader, (1, 2))
    partition.high_watermark = partition.log.high_watermark = 2
    answer = node.ask(debugging_request(node, 0, version), version)
    seen = answer.responses[0].partitions[0]
    assert [record.value for record in records_in(seen.records)] == [b"a", b"b"], "up to the high watermark"
    assert (seen.error_code, seen.high_watermark) == (0, 2)
    if leader == 1:
        assert partition.leader_role.in_sync.replicas[2].end_offset == -1, "no acknowledgement"


@pytest.mark.parametrize("version", [9, 10, 17])
def test_a_large_request_of_a_debugging_consumer(node, version: int, records_in) -> None:
    node.produce("t", b"a")
    partition = node.send_state(2, (1, 2))
    partition.high_watermark = partition.log.high_watermark = 1
    request = debugging_request(node, 0, version)
    missing = [FetchRequest.FetchPartition(partition=number) for number in range(1, 1_300)]
    request.topics[0].partitions += missing
    answer = node.ask(request, version)
    rows = {row.partition_index: row for topic in answer.responses for row in topic.partitions}
    assert [record.value for record in records_in(rows[0].records)] == [b"a"]
    assert (rows[0].error_code, len(rows)) == (0, 1_300)


@pytest.fixture
def racks() -> Replicated:
    made = Replicated({"replica.selector.class": RACK_AWARE, "broker.rack": "r1"})
    made.create("t")
    with_neighbour(made, "r2")
    made.send_state(1, (1, 2))
    made.produce("t", b"a", acks=1)
    return made


def test_a_consumer_is_sent_to_the_replica_in_its_rack_if_that_has_the_offset(racks) -> None:
    assert racks.fetch("t", 0, rack_id="r2").preferred_read_replica == -1, "it is not known to have offset 0"
    racks.replicate("t", 0)
    sent = racks.fetch("t", 0, rack_id="r2")
    assert (sent.error_code, sent.preferred_read_replica, bytes(sent.records)) == (0, 2, b"")
    assert racks.fetch("t", 1, rack_id="r2").preferred_read_replica == -1, "it has not asked for offset 1 yet"
    racks.replicate("t", 1)
    for rack in ("r1", "r9", ""):
        here = racks.fetch("t", 0, rack_id=rack)
        assert (here.preferred_read_replica, len(here.records) > 0) == (-1, True)


def test_no_consumer_is_redirected_to_a_dead_or_lagging_replica(racks) -> None:
    racks.replicate("t", 1)
    racks.send_state(1, (1,))
    racks.replicate("t", 1)
    assert racks.fetch("t", 0, rack_id="r2").preferred_read_replica == -1
    racks.send_state(1, (1, 2))
    racks.replicate("t", 1)
    assert racks.fetch("t", 0, rack_id="r2").preferred_read_replica == 2
    image = racks.broker.cluster.image
    racks.broker.cluster.image = replace(image, brokers={1: image.brokers[1]})
    assert racks.fetch("t", 0, rack_id="r2").preferred_read_replica == -1


def test_where_followers_serve_consumers_they_learn_of_a_commit_at_once(racks) -> None:
    session = ReplicaSession(racks)
    session.fetch(0)
    moves = session.send(1, max_wait_ms=500)
    assert moves.answered, "its own fetch has moved the high watermark"
    assert [row.high_watermark for row in session.rows(moves)] == [1]
    assert not session.send(1, max_wait_ms=500).answered


def test_rack_aware_takes_the_leader_or_the_replica_with_the_largest_end() -> None:
    views = [ReplicaView(1, 9, 5, "a"), ReplicaView(2, 7, 5, "b"), ReplicaView(3, 8, 4, "b"), ReplicaView(4, 8, 5, "b")]
    assert rack_aware(1, views, "b") == 4
    assert rack_aware(1, views, "a") == 1
    assert rack_aware(2, views, "b") == 2
    assert rack_aware(1, views, "c") == 1
    assert rack_aware(1, [*views, ReplicaView(5, 8, 5, None)], "") == 1


def test_unknown_selectors_are_named() -> None:
    assert selector_named(None) is None
    assert selector_named(RACK_AWARE) is rack_aware
    with pytest.raises(ConfigError, match="RackAwareReplicaSelector"):
        selector_named("com.example.Mine")


def gap(node) -> ErrorCode:
    """The error for a producer whose batch 1 is missing; batch 0 was written here."""
    return ErrorCode(node.produce("t", b"x", acks=1, producer_id=7, producer_epoch=0, base_sequence=2).error_code)


def led_for_long(node) -> None:
    """Broker 1 leads, and has led for longer than gaps may be what lay at an old leader."""
    node.send_state(1, (1, 2))
    node.produce("t", b"a", acks=1, producer_id=7, producer_epoch=0, base_sequence=0)
    node.pass_ms(NEW_LEADER_NS // 1_000_000 + 1)


@pytest.mark.parametrize("version", [12, 15])
def test_a_follower_without_a_session_confirms_a_gap_by_its_second_fetch(node, version: int) -> None:
    led_for_long(node)
    named = {"topic_id": node.topic_id("t")}
    for _ in range(2):
        assert gap(node) is ErrorCode.LEADER_NOT_AVAILABLE
        node.pass_ms(10)
        node.replicate("t", 1, version, **named)
    assert gap(node) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_fetches_without_a_session_confirm_nothing_over_several_connections(node) -> None:
    """The first may have been given up, and the second have been on its way all the time."""
    led_for_long(node)
    assert gap(node) is ErrorCode.LEADER_NOT_AVAILABLE
    for _ in range(3):
        node.pass_ms(10)
        node.answer(node.send(node.replica_request("t", 1), 12, peer=other_peer(node)))
    assert gap(node) is ErrorCode.LEADER_NOT_AVAILABLE


def test_fetches_of_another_replica_on_the_connection_confirm_nothing(node) -> None:
    led_for_long(node)
    assert gap(node) is ErrorCode.LEADER_NOT_AVAILABLE
    node.pass_ms(10)
    third = node.replica_request("t", 1)
    third.replica_id = 3
    node.ask(third, 12)
    node.replicate("t", 1)
    assert gap(node) is ErrorCode.LEADER_NOT_AVAILABLE


def test_state_of_a_connection_ends_with_it(node) -> None:
    node.send_state(1, (1, 2))
    node.replicate("t", 0)
    assert node.broker._fetch._setup._sessionless
    node.process.post_turn(0, "gone", node.broker.on_gone, node.peer)
    node.pass_ms(0)
    assert not node.broker._fetch._setup._sessionless
