"""A replica whose log has lost records: it leads only as the last one in sync, and else fetches the log again."""

from __future__ import annotations

import logging

import pytest
from tests.replication.brokers import T0, TOPIC_ID, Brokers

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.replication.replica_manager import StopOrder
from ottla.sim.machines.machine import Death
from ottla.storage.log_loss import IncompleteLog

SMALL = TopicConfig(segment_bytes=400, index_interval_bytes=100)


def remove_first(member) -> None:
    """The first segment is gone."""
    directory = member.drives[0].root.names["t-0"]
    for kind in ("log", "index", "timeindex"):
        del directory.names[f"{0:020d}.{kind}"]


def cut_end(member) -> None:
    """What was durable is cut to a few batches: the later segments are gone."""
    directory = member.drives[0].root.names["t-0"]
    for name in sorted(directory.names):
        if name[:20].isdigit() and int(name[:20]) > 3:
            del directory.names[name]


@pytest.fixture
def pair() -> Brokers:
    """Both replicas have 12 records in several segments, durable; 1 leads."""
    brokers = Brokers(2)
    brokers.create(1, 2, config=SMALL)
    for number in range(12):
        brokers[1].produce(b"%d" % number)
    brokers.until(lambda: brokers.settled(1, 2))
    assert len(brokers[2].partition().log.segments) > 2
    for node_id in (1, 2):
        member = brokers[node_id]
        member.turn(lambda member=member: member.partition().log.flush(lambda _: None))
        brokers.run(100)
        member.turn(member.core.logs.dirs[0].offsets.checkpoint_recovery_points)
        brokers.run(100)
    return brokers


def back(brokers: Brokers, harm) -> None:
    """Broker 2 dies, its log is harmed, it comes back."""
    brokers[2].die(Death.KILL)
    harm(brokers[2])
    brokers[2].boot()


def state(brokers: Brokers, leader: int, isr: tuple[int, ...]) -> None:
    before = brokers.states[T0]
    epochs = {"leader_epoch": before.leader_epoch + 1, "partition_epoch": before.partition_epoch + 1}
    brokers.states[T0] = before._replace(leader=leader, isr=isr, **epochs)


@pytest.mark.parametrize("harm", [remove_first, cut_end])
def test_it_neither_leads_nor_is_in_sync_while_others_have_more(pair, harm, caplog) -> None:
    back(pair, harm)
    assert pair[2].core.logs.incomplete_partitions({"t": TOPIC_ID}) == [T0]
    for leader in (2, 1):
        state(pair, leader, (1, 2))
        with caplog.at_level(logging.ERROR):
            assert pair.send_state(2, T0) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert "t-0 lost records that in-sync brokers [1] have" in caplog.text
        assert not pair[2].partition().is_leader


@pytest.mark.parametrize("harm", [remove_first, cut_end])
def test_out_of_sync_it_is_fetched_until_it_is_whole(pair, harm) -> None:
    back(pair, harm)
    pair.elect(1, isr=(1,))
    pair.until(lambda: pair.settled(1, 2))
    assert pair[2].partition().log.start_offset == 0
    assert pair[2].values() == [b"%d" % number for number in range(12)]
    assert pair[2].core.logs.incomplete_partitions({"t": TOPIC_ID}) == []
    assert "incomplete" not in pair[2].drives[0].root.names["t-0"].names


@pytest.mark.parametrize("harm", [remove_first, cut_end])
def test_as_the_last_one_in_sync_it_leads_with_the_rest(pair, harm, caplog) -> None:
    back(pair, harm)
    left = pair[2].core.logs.get_log(T0).end_offset
    with caplog.at_level(logging.ERROR):
        state(pair, 2, (2,))
        assert pair.send_state(2, T0) == [ErrorCode.NONE]
    assert "leading with the rest of the log" in caplog.text
    assert pair[2].leo() == left
    assert pair[2].core.logs.incomplete_partitions({"t": TOPIC_ID}) == []


def test_it_is_remembered_until_it_is_settled(pair) -> None:
    """The second start finds nothing wrong any more, but for the mark."""
    back(pair, remove_first)
    for _ in range(2):
        pair[2].die(Death.POWER_LOSS)
        pair[2].boot()
        assert pair[2].core.logs.get_log(T0).metadata.loss is IncompleteLog.WITHIN
    state(pair, -1, (1,))
    assert pair.send_state(2, T0) == [ErrorCode.NONE]
    assert pair[2].core.logs.get_log(T0).metadata.loss is IncompleteLog.WITHIN, (
        "without a leader it is kept: it may be the only copy"
    )
    pair.elect(1, isr=(1,))
    pair.until(lambda: pair.settled(1, 2))


def test_a_log_that_was_deleted_by_stop_replica_does_not_count_as_whole_at_the_next_start(pair) -> None:
    stopped = pair[2].turn(lambda: pair[2].core.replicas.stop_replicas({T0: StopOrder(99, True)}))
    assert stopped in (None, {T0: ErrorCode.NONE})
    pair[2].turn(pair[2].core.logs.dirs[0].offsets.checkpoint_recovery_points)
    pair.run(100)
    pair[2].die(Death.KILL)
    pair[2].boot()
    assert pair[2].core.logs.get_log(T0) is None
    assert pair[2].core.logs.incomplete_partitions({"t": TOPIC_ID}) == [T0]
    state(pair, 1, (1, 2))
    assert pair.send_state(2, T0) == [ErrorCode.KAFKA_STORAGE_ERROR], "the controller takes it out of the ISR"


def test_a_log_that_was_deleted_by_stop_replica_does_not_count_as_whole_at_once(pair) -> None:
    pair[2].turn(lambda: pair[2].core.replicas.stop_replicas({T0: StopOrder(99, True)}))
    state(pair, 1, (1, 2))
    assert pair.send_state(2, T0) == [ErrorCode.KAFKA_STORAGE_ERROR]
    pair.elect(1, isr=(1,))
    pair.until(lambda: pair.settled(1, 2))


def test_a_topic_that_is_deleted_leaves_nothing_that_is_missed(pair) -> None:
    logs = pair[2].core.logs
    pair[2].turn(lambda: pair[2].core.replicas.stop_replicas({T0: StopOrder(-2, True)}))
    assert logs.incomplete_partitions({"t": TOPIC_ID}) == [T0]
    logs.forget_topics(["t"])
    assert logs.incomplete_partitions({"t": TOPIC_ID}) == []
    assert logs.topic_names() == []
