"""Followers fetch from real leaders over a simulated network; the controller is played by hand."""

from __future__ import annotations

import pytest
from tests.replication.brokers import T0, Brokers

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.replication.follower.fetcher_manager import fetch_version
from ottla.sim.machines.machine import Death
from ottla.sim.mutants.ablation import without_safeguard
from ottla.sim.world import MS, SECOND
from ottla.types import TopicPartition

OLD = {"inter.broker.protocol.version": "2.3"}
"""Fetch v11: no divergence in its answers, so OffsetForLeaderEpoch is asked."""
both_protocols = pytest.mark.parametrize("properties", [{}, OLD], ids=["fetch", "offsets-for-epoch"])


@both_protocols
def test_a_follower_copies_old_and_new_records(properties) -> None:
    brokers = Brokers(2, properties=properties)
    brokers.create(1, 2)
    brokers[1].produce(b"a", b"b")
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers[2].values() == [b"a", b"b"]
    before = brokers.timeline.now_ns
    brokers[1].produce(b"c")
    brokers.until(lambda: brokers.same(1, 2) and brokers[1].hw() == 3)
    assert brokers.timeline.now_ns - before < 50 * MS, "an append wakes the fetch that waits"
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers[2].partition().log.start_offset == 0


@pytest.mark.parametrize(
    ("protocol", "version"), [("3.9-IV0", 17), ("3.5", 17), ("3.4", 13), ("2.7-IV1", 12), ("2.3", 11), ("1.0", 10)]
)
def test_the_version_of_fetch_follows_the_protocol_of_the_brokers(protocol: str, version: int) -> None:
    assert fetch_version(protocol) == version


def test_many_partitions_in_small_answers() -> None:
    brokers = Brokers(2, properties={"replica.fetch.response.max.bytes": "2000", "num.replica.fetchers": "2"})
    tps = [TopicPartition("t", index) for index in range(12)]
    for tp in tps:
        brokers.create(1, 2, tp=tp)
        for value in (b"x" * 900, b"y" * 900):
            brokers[1].produce(value, tp=tp)
    brokers.until(lambda: all(brokers.settled(1, 2, tp=tp) for tp in tps))


# -- KIP-101, KIP-279: names of Kafka's EpochDrivenReplicationProtocolAcceptanceTest -----------------------------------


@both_protocols
def test_should_follow_leader_epoch_basic_workflow(properties) -> None:
    brokers = Brokers(2, properties=properties)
    brokers.create(1, 2)
    brokers[1].produce(b"0")
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers[1].epochs() == brokers[2].epochs() == [(0, 0)]
    brokers[2].die()
    brokers.elect(1, isr=(1,))
    brokers[2].boot()
    assert brokers.send_state(2, T0) == [ErrorCode.NONE]
    assert brokers[1].epochs() == [(0, 0), (1, 1)]
    brokers[1].produce(b"1")
    brokers.until(lambda: brokers.settled(1, 2) and brokers.states[T0].isr == (1, 2))
    assert brokers[1].epochs() == brokers[2].epochs() == [(0, 0), (1, 1)]
    brokers[1].die()
    brokers.elect(2, isr=(2,))
    brokers[2].produce(b"2")
    brokers[1].boot()
    brokers.send_state(1, T0)
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers[1].epochs() == brokers[2].epochs() == [(0, 0), (1, 1), (2, 2)]
    assert brokers[1].values() == [b"0", b"1", b"2"]


@both_protocols
def test_should_not_allow_divergent_logs(properties) -> None:
    brokers = Brokers(2, properties=properties)
    brokers.create(1, 2)
    for at in range(10):
        brokers[1].produce(b"old %d" % at)
    brokers.until(lambda: brokers.settled(1, 2))
    brokers[1].turn(lambda: brokers[1].partition().log.flush(lambda _: None))
    brokers.run(500)
    for at in range(5):
        brokers[1].produce(b"only here %d" % at)
    brokers[1].die()
    brokers[2].die()
    brokers[2].boot()
    brokers.elect(2, isr=(2,))
    for at in range(10):
        brokers[2].produce(b"new %d" % at)
    brokers[1].boot()
    brokers.send_state(1, T0)
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers[1].values() == [b"old %d" % at for at in range(10)] + [b"new %d" % at for at in range(10)]
    assert brokers[1].epochs() == brokers[2].epochs()


@both_protocols
def test_should_survive_fast_leader_change(properties) -> None:
    brokers = Brokers(2, properties=properties)
    brokers.create(1, 2)
    brokers[1].produce(b"first")
    brokers.until(lambda: brokers.settled(1, 2))
    for turn in range(5):
        for leader, follower in ((2, 1), (1, 2)):
            brokers[follower].die()
            brokers.elect(leader, isr=(leader,))
            brokers[leader].produce(b"%d from %d" % (turn, leader))
            brokers[follower].boot()
            brokers.send_state(follower, T0)
            brokers.until(lambda: brokers.states[T0].isr == (leader, follower))  # noqa: B023
    brokers.until(lambda: brokers.settled(1, 2))
    assert len(brokers[1].values()) == 11
    assert brokers[1].epochs() == brokers[2].epochs()


@both_protocols
def test_two_elections_before_anybody_fetches(properties) -> None:
    """KIP-279: only 1 has its records of epoch 0; 2 and 3 lead after it, and 3 does not know 2's records."""
    brokers = Brokers(3, properties=properties)
    brokers.create(1, 2, 3)
    brokers[1].produce(b"common")
    brokers.until(lambda: brokers.settled(1, 2, 3))
    brokers.network.path_between("node2", 1).inward_cut_ns = brokers.network.path_between("node3", 1).inward_cut_ns = (
        1 << 62
    )
    brokers.network.path_between("node3", 2).inward_cut_ns = brokers.network.path_between("node1", 2).inward_cut_ns = (
        1 << 62
    )
    brokers.run(600)
    brokers[1].produce(b"only 1", b"only 1")
    brokers.elect(2)
    brokers[2].produce(b"only 2")
    brokers.elect(3)
    brokers[3].produce(b"three", b"three", b"three")
    brokers.network.heal_links()
    brokers.until(lambda: brokers.settled(1, 2, 3))
    assert brokers[1].values() == [b"common", b"three", b"three", b"three"]
    assert brokers[1].epochs() == brokers[2].epochs() == brokers[3].epochs() == [(0, 0), (2, 1)]


def empty_epoch() -> Brokers:
    """Broker 2 led in epoch 1, which 1 never heard of, and wrote nothing; 1 leads again."""
    brokers = Brokers(2)
    brokers.create(1, 2)
    brokers[1].produce(b"a")
    brokers.until(lambda: brokers.settled(1, 2))
    brokers.elect(2, inform=False)
    brokers.send_state(2, T0)
    assert brokers[2].epochs() == [(0, 0), (1, 1)]
    brokers.elect(1)
    brokers[1].produce(b"b")
    return brokers


def test_an_epoch_without_records_does_not_stop_a_follower() -> None:
    """KAFKA-10706."""
    brokers = empty_epoch()
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers[1].epochs() == brokers[2].epochs() == [(0, 0), (2, 1)]


@without_safeguard("replication.empty_epochs_cut")
def test_without_cutting_empty_epochs_it_would() -> None:
    brokers = empty_epoch()
    brokers.run(20_000)
    assert brokers[2].leo() == 1


# -- KIP-320: late answers ---------------------------------------------------------------------------------------------


@both_protocols
def test_an_answer_of_an_earlier_epoch_is_passed_over(properties) -> None:
    """1 answers a fetch in epoch 0; before that arrives, it has lost what it answered and leads in epoch 1."""
    brokers = Brokers(2, properties=properties)
    brokers.create(1, 2)
    brokers[1].produce(b"a")
    brokers.until(lambda: brokers.settled(1, 2))
    path = brokers.network.path_between("node2", 1)
    path.outward_cut_ns = brokers.timeline.now_ns + 2 * SECOND
    brokers[1].produce(b"lost")
    brokers.run(600)
    brokers[1].turn(lambda: setattr(brokers[1].partition(), "is_leader", False))
    brokers[1].turn(lambda: brokers[1].partition().follower_role.truncate_to(1))
    brokers.elect(1)
    brokers[1].produce(b"kept", b"kept")
    brokers.until(lambda: b"lost" in brokers[2].values() or brokers.settled(1, 2))
    assert brokers[2].values() == [b"a", b"kept", b"kept"]


@both_protocols
def test_the_end_of_an_earlier_epoch_does_not_end_the_next_one(properties) -> None:
    """A fetch of 2 waits in epoch 0 while 2 follows in epoch 1; then 1 learns of the epoch, and refuses the fetch."""
    brokers = Brokers(2, properties=properties)
    brokers.create(1, 2)
    brokers[1].produce(b"a")
    brokers.until(lambda: brokers.settled(1, 2))
    brokers.run(600)
    brokers.elect(1, inform=False)
    brokers.send_state(2, T0)
    brokers.run(5)
    brokers.send_state(1, T0)
    brokers[1].produce(b"b")
    brokers.run(5000)
    assert brokers[2].core.replicas.fetchers.failed_partitions == 0
    assert brokers[2].values() == [b"a", b"b"]


def test_after_an_election_a_new_partition_overtakes_a_long_poll() -> None:
    brokers = Brokers(2)
    t1 = TopicPartition("t", 1)
    brokers.create(2, 1)
    brokers.create(1, 2, tp=t1)
    for turn in range(6):
        brokers.run(300 + 70 * turn)
        leader = 1 + turn % 2
        brokers.elect(leader)
        before = brokers.timeline.now_ns
        brokers[leader].produce(b"%d" % turn)
        brokers.until(lambda: brokers[leader].hw() == brokers[leader].leo())  # noqa: B023
        assert brokers.timeline.now_ns - before <= 30 * MS
    brokers[1].produce(b"x", tp=t1)
    brokers.until(lambda: brokers.settled(1, 2) and brokers.settled(1, 2, tp=t1))


def test_the_same_when_the_leader_learns_of_it_later() -> None:
    brokers = Brokers(2)
    t1 = TopicPartition("t", 1)
    brokers.create(2, 1)
    brokers.create(1, 2, tp=t1)
    brokers.run(1000)
    brokers.elect(1, inform=False)
    brokers.send_state(2, T0)
    brokers.run(20)
    brokers.send_state(1, T0)
    before = brokers.timeline.now_ns
    brokers[1].produce(b"a")
    brokers.until(lambda: brokers[1].hw() == 1)
    assert brokers.timeline.now_ns - before <= 80 * MS


# -- positions that the leader does not have ---------------------------------------------------------------------------


@both_protocols
def test_a_leader_that_was_elected_uncleanly_is_shorter(properties) -> None:
    brokers = Brokers(2, properties=properties)
    brokers.create(1, 2)
    brokers.network.path_between("node2", 1).inward_cut_ns = 1 << 62
    brokers.elect(1, isr=(1,))
    brokers[1].produce(b"a", b"b", b"c")
    assert brokers[1].hw() == 3
    brokers.elect(2, isr=(2,))
    brokers.network.heal_links()
    brokers.until(lambda: brokers[1].leo() == 0)
    brokers[2].produce(b"x")
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers[1].values() == [b"x"]


@both_protocols
def test_a_leader_whose_log_begins_above_the_followers_end(properties) -> None:
    brokers = Brokers(2, properties=properties)
    brokers.create(1, 2, isr=(1,))
    brokers[2].die()
    for value in (b"a", b"b", b"c"):
        brokers[1].produce(value)
    brokers[1].turn(lambda: brokers[1].partition().leader_role.raise_start(2))
    brokers[2].boot()
    brokers.send_state(2, T0)
    brokers.until(lambda: brokers[2].leo() == 3 and brokers[2].hw() == 3)
    assert brokers[2].partition().log.start_offset == 2
    assert brokers[2].values() == [b"c"]


def test_a_log_that_begins_in_the_midst_of_a_batch() -> None:
    brokers = Brokers(2)
    brokers.create(1, 2, isr=(1,))
    brokers[2].die()
    brokers[1].produce(b"a", b"b", b"c", b"d")
    brokers[1].turn(lambda: brokers[1].partition().leader_role.raise_start(2))
    brokers[2].boot()
    brokers.send_state(2, T0)
    brokers.until(lambda: brokers.settled(1, 2))
    log = brokers[2].partition().log
    assert (log.start_offset, log.end_offset) == (2, 4)


def test_the_log_start_travels_to_followers() -> None:
    brokers = Brokers(2)
    brokers.create(1, 2)
    for value in (b"a", b"b", b"c"):
        brokers[1].produce(value)
    brokers.until(lambda: brokers.settled(1, 2))
    brokers[1].turn(lambda: brokers[1].partition().leader_role.raise_start(2))
    brokers.until(lambda: brokers[2].partition().log.start_offset == 2, 2000)
    assert brokers[2].hw() == 3


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_leader_that_has_not_heard_of_its_epoch_is_asked_again() -> None:
    brokers = Brokers(2)
    brokers.create(1, 2)
    brokers[1].produce(b"a")
    brokers.until(lambda: brokers.settled(1, 2))
    brokers.elect(1, inform=False)
    brokers.send_state(2, T0)
    brokers.run(700)
    brokers.send_state(1, T0)
    before = brokers.timeline.now_ns
    brokers[1].produce(b"b")
    brokers.until(lambda: brokers.same(1, 2))
    assert brokers.timeline.now_ns - before < 1100 * MS, "never longer than replica.fetch.backoff.ms"


def test_a_follower_of_an_earlier_epoch_stops_until_it_gets_the_next_one() -> None:
    brokers = Brokers(2)
    brokers.create(1, 2)
    brokers.elect(1, inform=False)
    brokers.send_state(1, T0)
    fetchers = brokers[2].core.replicas.fetchers
    brokers.until(lambda: fetchers.failed_partitions == 1)
    brokers[1].produce(b"a")
    brokers.run(5000)
    assert brokers[2].leo() == 0
    brokers.send_state(2, T0)
    assert fetchers.failed_partitions == 0
    brokers.until(lambda: brokers.settled(1, 2))


def test_a_leader_that_dies_and_returns() -> None:
    brokers = Brokers(2)
    brokers.create(1, 2)
    brokers[1].produce(b"a")
    brokers.until(lambda: brokers.settled(1, 2))
    brokers[1].turn(lambda: brokers[1].partition().log.flush(lambda _: None))
    brokers.run(500)
    brokers[1].die()
    brokers.run(3000)
    brokers[1].boot()
    brokers.elect(1)
    brokers[1].produce(b"b")
    brokers.until(lambda: brokers.settled(1, 2))


def test_a_lost_session_is_replaced_at_once() -> None:
    brokers = Brokers(2)
    brokers.create(1, 2)
    brokers[1].produce(b"a")
    brokers.until(lambda: brokers.settled(1, 2))
    sessions = brokers[1].core.fetch.sessions
    brokers[1].turn(lambda: [sessions.close_session(session_id) for session_id in list(sessions._sessions)])
    brokers[1].produce(b"b")
    brokers.until(lambda: brokers.settled(1, 2), 1500)


def damaged() -> Brokers:
    """A bit of the leader's log has turned on its way to the follower, or on the leader's disk."""
    brokers = Brokers(2)
    brokers.create(1, 2)
    brokers.network.path_between("node2", 1).inward_cut_ns = brokers.timeline.now_ns + SECOND
    brokers.run(600)
    brokers[1].produce(b"good")
    brokers[1].produce(b"evil")
    (inode,) = [
        inode for path, inode in brokers[1].drives[0].walk_files() if path.endswith("t-0/00000000000000000000.log")
    ]
    at = inode.data.index(b"evil")
    inode.data[at] ^= 1
    brokers.run(5000)
    return brokers


def test_a_damaged_batch_is_not_appended() -> None:
    brokers = damaged()
    assert brokers[2].values() == [b"good"], "what came before it is"
    assert brokers[2].core.replicas.fetchers.max_lag <= 1


@without_safeguard("replication.replica_crc_check")
def test_without_checksums_it_would_be() -> None:
    assert damaged()[2].leo() == 2


# -- what followers keep -----------------------------------------------------------------------------------------------


def test_followers_know_producers() -> None:
    brokers = Brokers(2)
    brokers.create(1, 2)
    batch = {"producer_id": 7, "producer_epoch": 0}
    brokers[1].produce(b"a", base_sequence=0, **batch)
    brokers[1].produce(b"b", base_sequence=1, **batch)
    brokers.until(lambda: brokers.settled(1, 2))
    brokers.elect(2)
    offset, _, _ = brokers[2].produce(b"b", base_sequence=1, **batch)
    assert offset == 1, "sent again to the new leader, it is the batch that is there already"
    assert brokers[2].leo() == 2


def test_a_follower_begins_with_the_high_watermark_it_had() -> None:
    brokers = Brokers(2)
    brokers.create(1, 2)
    brokers[1].produce(b"a", b"b")
    brokers.until(lambda: brokers.settled(1, 2))
    brokers[2].turn(lambda: brokers[2].partition().log.flush(lambda _: None))
    brokers.run(6000)
    brokers[2].die(Death.POWER_LOSS)
    brokers[1].die()
    brokers[2].boot()
    brokers.send_state(2, T0)
    assert brokers[2].hw() == 2, "from replication-offset-checkpoint: no leader is there"


def test_a_segment_is_filled_and_rolled_as_on_the_leader() -> None:
    brokers = Brokers(2)
    brokers.create(1, 2, config=TopicConfig(segment_bytes=1500, index_interval_bytes=0))
    brokers.network.path_between("node2", 1).inward_cut_ns = brokers.timeline.now_ns + 2 * SECOND
    brokers.run(600)
    for at in range(40):
        brokers[1].produce(b"%d" % at * 60, producer_id=at % 3, producer_epoch=0, base_sequence=at // 3)
    brokers.until(lambda: brokers.settled(1, 2))
    logs = [brokers[node].partition().log for node in (1, 2)]
    assert [each.base_offset for each in logs[0].segments] == [each.base_offset for each in logs[1].segments]
    assert len(list(logs[1].segments)) > 3
    for offset in range(40):
        regions = [log.read(offset, 1 << 20, 40, True, warmed=True) for log in logs]
        assert regions[0][1:3] == regions[1][1:3], "found at the same place through the index"


# -- flush.messages ----------------------------------------------------------------------------------------------------


def synced_mode() -> bool:
    """Whether an acknowledged record survives when the follower loses power just after it was acknowledged."""
    brokers = Brokers(2)
    brokers.create(1, 2, config=TopicConfig(flush_messages=1))
    brokers.run(1000)
    brokers[2].faults[0].sync_mean_ns = 300 * MS
    brokers[1].produce(b"a")
    brokers.until(lambda: brokers[1].hw() == 1)
    brokers[2].die(Death.POWER_LOSS)
    brokers[2].boot()
    brokers.elect(2, isr=(2,), inform=False)
    brokers.send_state(2, T0)
    return brokers[2].leo() == 1


def test_a_follower_acknowledges_durable_records_only() -> None:
    assert synced_mode()


@without_safeguard("replication.follower_sync_before_ack")
def test_without_waiting_for_the_disk_an_acknowledged_record_is_lost() -> None:
    assert not synced_mode()
