"""A leader and its followers: acknowledgements, the ISR, fences. Each safeguard is also switched off."""

from __future__ import annotations

import pytest
from tests.replication.members import DURABLE, TWO, bounds_hold, led, refusal

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition.replica_state import EpochEnd, PartitionState, effective_min_isr
from ottla.sim.machines.machine import Death

# -- acknowledgements ----------------------------------------------------------------------------------------------


def test_an_append_is_committed_when_every_member_has_asked_for_what_follows() -> None:
    cluster = led(3, isr=(1, 2, 3))
    leader, b, c = cluster.members.values()
    _, _, required = leader.produce(b"m0", acks=-1)
    assert not leader.partition.leader_role.is_settled(required, -1)
    b.fetch(2)
    assert not leader.partition.leader_role.is_settled(required, -1), "the slowest member counts"
    c.fetch()
    leader.checked.clear()
    c.fetch()
    assert leader.checked == [leader.partition], "operations that wait for the high watermark are checked"
    assert leader.partition.leader_role.is_settled(required, -1)
    assert leader.partition.leader_role.is_settled(required + 1, 1), "acks=1 does not wait for replicas"


def test_an_append_wakes_followers_and_only_a_commit_wakes_consumers() -> None:
    leader, follower = led().members.values()
    seen: list[str] = []

    class Waiting:
        def __init__(self, name: str) -> None:
            self.name = name

        def wake(self) -> None:
            seen.append(self.name)

    leader.partition.end_watchers[Waiting("follower")] = None
    leader.partition.watchers[Waiting("consumer")] = None
    leader.produce(b"m0")
    assert seen == ["follower"]
    follower.fetch(2)
    assert seen == ["follower", "consumer"]


def test_leadership_lost_ends_the_wait_of_a_producer() -> None:
    cluster = led()
    leader = cluster.members[1]
    _, _, required = leader.produce(b"m0", acks=-1)
    leader.checked.clear()
    cluster.elect(2)
    assert leader.checked == [leader.partition]
    assert refusal(leader.partition.leader_role.is_settled, required, -1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refusal(leader.produce, b"m1") is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_replica_out_of_service_names_the_reason() -> None:
    leader = led().members[1]
    leader.partition.go_offline()
    assert refusal(leader.produce, b"m1") is ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(leader.partition.leader_role.is_settled, 1, -1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(leader.partition.check_reader, -1, True) is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("guarded", [None, "replication.ack_needs_isr_min"], indirect=True)
def test_acks_all_needs_min_insync_replicas_before_and_after_the_append(guarded: bool) -> None:
    cluster = led(config=TWO)
    leader = cluster.members[1]
    _, _, required = leader.produce(b"m0", acks=-1)
    cluster.pass_seconds(31)
    leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    cluster.decide()
    assert leader.partition.isr == (1,)
    assert leader.produce(b"acks 1 goes on", acks=1)[0] == 1
    if not guarded:
        assert leader.produce(b"m2", acks=-1)[0] == 2, "a leader alone acknowledges acks=all"
        assert not leader.partition.leader_role.is_settled(required, -1)
        return
    assert refusal(lambda: leader.produce(b"m2", acks=-1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert refusal(leader.partition.leader_role.is_settled, required, -1) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_smaller_min_insync_replicas_lets_the_high_watermark_move_at_once() -> None:
    leader = led(2, isr=(1,), config=TWO).members[1]
    leader.produce(b"m0")
    assert leader.hw == 0
    leader.partition.apply_config(TopicConfig())
    assert leader.hw == 1


def test_min_insync_replicas_counts_at_most_the_replicas_that_there_are() -> None:
    leader = led(1, isr=(1,), config=TWO).members[1]
    _, _, required = leader.produce(b"m0", acks=-1)
    assert leader.partition.leader_role.is_settled(required, -1)
    assert (leader.hw, leader.partition.spare_in_sync, leader.partition.leader_role.isr_too_small) == (1, 0, False)


def test_a_reassignment_does_not_raise_the_number_of_replicas_that_acks_all_needs() -> None:
    cluster = led(2, isr=(1,), config=TWO)
    leader = cluster.members[1]
    state = PartitionState(1, 2, (1,), 9, (2, 1), (2,), (1,))
    leader.partition.make_leader(state, leader.clock.now())
    leader.produce(b"m0", acks=-1)
    assert leader.hw == 1
    leader.partition.make_leader(PartitionState(1, 2, (1,), 10, (2, 1)), leader.clock.now())
    assert refusal(lambda: leader.produce(b"m1", acks=-1)) is ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize(
    ("configured", "replicas", "adding", "needed"),
    [(2, (1,), (), 1), (2, (1, 2, 3), (), 2), (9, (1, 2, 3), (), 3), (2, (1, 2, 3), (2, 3), 1), (1, (1, 2), (), 1)],
)
def test_the_effective_min_isr(
    configured: int, replicas: tuple[int, ...], adding: tuple[int, ...], needed: int
) -> None:
    assert effective_min_isr(configured, replicas, adding) == needed


# -- KIP-966: last replica standing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("guarded", "committed"), [(None, 0), ("replication.min_isr_on_hw", 1)], indirect=["guarded"])
def test_the_high_watermark_does_not_move_while_the_isr_is_too_small(guarded: bool, committed: int) -> None:
    cluster = led(3, isr=(1,), config=TWO)
    leader, b, _ = cluster.members.values()
    leader.produce(b"only here")
    assert leader.hw == committed
    b.fetch(2)
    if guarded:
        cluster.decide()
        assert (leader.partition.isr, leader.hw) == ((1, 2), 1)


def test_three_two_one_and_power_loss_of_the_last_takes_nothing_that_was_committed() -> None:
    cluster = led(3, isr=(1, 2, 3), config=TWO)
    leader, b, c = cluster.members.values()
    leader.produce(b"m0")
    for each in (b, c, b, c):
        each.fetch()
    assert leader.hw == 1
    c.die()
    cluster.elect(1, isr=(1, 2))
    leader.produce(b"m1")
    b.fetch(2)
    assert leader.hw == 2
    b.die()
    cluster.elect(1, isr=(1,))
    leader.produce(b"m2")
    assert leader.hw == 2, "m2 is on one broker only: consumers must not see it"
    leader.die(Death.POWER_LOSS)
    cluster.restart(2)
    cluster.elect(2, isr=(2,))
    assert b.values() == [b"m0", b"m1"]


# -- flush before acknowledgement --------------------------------------------------------------------------------------


def test_with_flush_messages_the_leader_counts_what_is_durable() -> None:
    cluster = led(config=DURABLE)
    leader, follower = cluster.members.values()
    _, _, required = leader.produce(b"m0", acks=-1)
    follower.fetch(2)
    assert (leader.remote(follower), leader.hw) == (1, 0), "the follower has it, the leader's disk does not"
    cluster.settle()
    assert leader.hw == 1
    assert leader.partition.leader_role.is_settled(required, -1)


def test_with_flush_messages_power_loss_of_all_brokers_takes_nothing_committed() -> None:
    cluster = led(config=DURABLE)
    leader, follower = cluster.members.values()
    leader.produce(b"m0", acks=-1)
    follower.fetch()
    follower.save()  # a follower's next fetch waits for its disk
    follower.fetch()
    cluster.settle()
    assert leader.hw == 1
    for each in (leader, follower):
        each.die(Death.POWER_LOSS)
    for node_id in (1, 2):
        cluster.restart(node_id)
    cluster.elect(2)
    assert leader.values() == follower.values() == [b"m0"]


def test_recovered_records_are_committed_once_they_are_durable() -> None:
    cluster = led(1, isr=(1,), config=TopicConfig(flush_messages=1))
    leader = cluster.members[1]
    leader.produce(b"m0")
    leader.die()
    leader.boot()
    cluster.elect(1)
    assert leader.leo == 1
    cluster.settle()
    assert (leader.hw, leader.log.recovery_point) == (1, 1)


# -- fences (KIP-320) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [None, "replication.epoch_fencing"], indirect=True)
def test_a_fetch_of_another_leader_epoch_acknowledges_nothing(guarded: bool) -> None:
    cluster = led()
    leader, follower = cluster.members.values()
    leader.produce(b"m0")
    follower.fetch()
    cluster.elect(1)
    old = follower.ask(leader, leader_epoch=0)
    assert old.error is (ErrorCode.FENCED_LEADER_EPOCH if guarded else ErrorCode.NONE)
    assert leader.hw == int(not guarded)
    early = follower.ask(leader, leader_epoch=2)
    assert early.error is (ErrorCode.UNKNOWN_LEADER_EPOCH if guarded else ErrorCode.NONE)


def test_acknowledgements_of_an_older_epoch_are_forgotten() -> None:
    cluster = led()
    leader, follower = cluster.members.values()
    leader.produce(b"m0")
    follower.fetch()
    cluster.elect(1)
    assert leader.remote(follower) == -1
    leader.produce(b"m1")
    assert leader.hw == 0


def test_a_fetch_of_an_unassigned_replica_is_refused() -> None:
    leader, follower = led().members.values()
    follower.node_id = 9
    assert follower.ask(leader).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert follower.ask(leader, leader_epoch=-1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_offset_beyond_the_leaders_end_does_not_acknowledge() -> None:
    leader, follower = led().members.values()
    leader.produce(b"m0")
    assert follower.ask(leader, offset=2, last_epoch=-1).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert leader.remote(follower) == -1
    leader.partition.follower_role.take_from_leader(0, 0)
    assert leader.hw == 0


# -- diverging logs (KIP-101, KIP-279, KIP-595) ------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [None, "replication.divergence_in_fetch"], indirect=True)
def test_a_diverging_log_gets_the_diverging_epoch_only(guarded: bool) -> None:
    cluster = led()
    a, b = cluster.members.values()
    a.produce(b"m0")
    b.fetch(2)
    a.produce(b"only at a")
    a.die()
    cluster.elect(2, isr=(2,))
    b.produce(b"m1")
    cluster.restart(1)
    answer = a.ask(b)
    if guarded:
        assert answer.parts_at == EpochEnd(0, 1)
        assert not len(answer.records)
        assert b.remote(a) == -1, "it is no acknowledgement"
    a.take(answer)
    a.fetch(2)
    assert (a.values() == b.values()) is guarded
    assert bounds_hold(a)


def test_should_follow_leader_epoch_basic_workflow() -> None:
    cluster = led()
    a, b = cluster.members.values()
    a.produce(b"m0")
    b.fetch(2)
    a.produce(b"m1")
    b.fetch(2)
    a.die()
    cluster.elect(2, isr=(2,))
    b.produce(b"m2")
    cluster.restart(1)
    a.fetch(2)
    assert a.log.epochs.entries == b.log.epochs.entries == ((0, 0), (1, 2))
    b.die()
    cluster.elect(1, isr=(1,))
    a.produce(b"m3")
    cluster.restart(2)
    b.fetch(2)
    assert a.log.epochs.entries == b.log.epochs.entries == ((0, 0), (1, 2), (2, 3))
    assert a.values() == b.values() == [b"m0", b"m1", b"m2", b"m3"]


def test_should_not_allow_divergent_logs() -> None:
    """Ten records on both, ten on A alone; A loses power, B leads and writes others; A copies B's."""
    cluster = led()
    a, b = cluster.members.values()
    for _ in range(10):
        a.produce(b"both")
    b.fetch(2)
    a.save()
    b.save()
    for _ in range(10):
        a.produce(b"a alone")
    a.save()
    a.die(Death.POWER_LOSS)
    cluster.elect(2, isr=(2,))
    for _ in range(15):
        b.produce(b"b")
    cluster.restart(1)
    a.fetch(3)
    assert a.values() == b.values() == [b"both"] * 10 + [b"b"] * 15


def test_should_survive_fast_leader_change() -> None:
    """Elections without writes, one after the other, with a fetch of the first epoch in flight (KIP-279)."""
    cluster = led()
    a, b = cluster.members.values()
    a.produce(b"m0")
    b.fetch(2)
    a.produce(b"m1")
    under_way = b.ask(a)
    cluster.elect(2)
    cluster.elect(1)
    cluster.elect(2)
    with pytest.raises(ApiError, match="NOT_LEADER_OR_FOLLOWER"):
        b.partition.follower_role.append(under_way.records, 0)
    b.produce(b"m2")
    a.fetch(4)
    assert a.values() == b.values() == [b"m0", b"m2"]
    cluster.elect(1)
    a.produce(b"m3")
    b.fetch(3)
    assert a.values() == b.values() == [b"m0", b"m2", b"m3"]
    assert bounds_hold(a)
    assert bounds_hold(b)


def test_an_epoch_without_records_does_not_diverge_for_ever() -> None:
    """KAFKA-10706: the follower's last epoch has no record, and the leader has never heard of it."""
    cluster = led()
    a, b = cluster.members.values()
    a.produce(b"m0")
    b.fetch(2)
    cluster.members[1].alive = False
    cluster.elect(2, isr=(2,))  # b leads in epoch 1, writes nothing, and a never hears of it
    cluster.members[1].alive = True
    cluster.elect(1, isr=(1,))
    a.produce(b"m1")
    b.fetch(3)
    assert a.values() == b.values() == [b"m0", b"m1"]
    assert b.log.epochs.entries == a.log.epochs.entries == ((0, 0), (2, 1))


# -- offsets keep their order ------------------------------------------------------------------------------------------


def test_log_start_high_watermark_and_log_end_keep_their_order() -> None:
    cluster = led()
    a, b = cluster.members.values()
    for _ in range(10):
        a.produce(b"m")
    b.fetch(2)
    a.partition.leader_role.raise_start(8)
    b.fetch()
    assert (b.log.start_offset, b.hw, b.leo) == (8, 10, 10)
    cluster.elect(2)
    a.partition.follower_role.truncate_to(3)
    assert (a.log.start_offset, a.hw, a.leo) == (3, 3, 3), "cut below its own start"
    a.partition.follower_role.restart_at(20)
    assert (a.log.start_offset, a.hw, a.leo) == (20, 20, 20)
    a.partition.follower_role.truncate_to(0)
    assert (a.log.start_offset, a.hw, a.leo) == (0, 0, 0)
    a.partition.follower_role.take_from_leader(10, 8)
    assert bounds_hold(a)
    a.fetch(2)
    assert bounds_hold(a)
    assert bounds_hold(b)


def test_a_followers_high_watermark_does_not_go_back_with_a_new_leader() -> None:
    """What was committed stays committed, even if the new leader has yet to learn of it."""
    cluster = led()
    a, b = cluster.members.values()
    a.produce(b"m0")
    b.fetch(2)
    assert b.hw == 1
    b.partition.follower_role.take_from_leader(0, 0)
    assert b.hw == 1
    b.partition.follower_role.take_from_leader(5, 0)
    assert b.hw == b.leo == 1, "never above what is here"


# -- leader epochs on the disk -----------------------------------------------------------------------------------------


def test_an_epoch_in_which_nothing_was_written_is_not_believed_once_others_have_written_there() -> None:
    cluster = led()
    first, second = cluster.members.values()
    first.produce(b"m0")
    second.fetch(2)
    first.produce(b"m1")
    cluster.elect(2)  # it lacks m1, and writes nothing in its epoch
    cluster.settle()
    second.logs.stop_logs(lambda _: None)
    cluster.settle()
    second.die()
    cluster.elect(1)
    cluster.restart(2)
    second.fetch()  # m1 of epoch 0, after the offset where epoch 1 had begun
    assert second.log.epochs.entries == ((0, 0),)
    second.logs.stop_logs(lambda _: None)
    cluster.settle()
    second.die()
    cluster.restart(2)
    assert second.leo == 2
    assert second.log.epochs.entries == ((0, 0),)
