"""Kafka's published scenarios with real partitions: high watermarks, leader epochs, elections."""

from __future__ import annotations

from tests.replication.members import Cluster, Member

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.sim.machines.machine import Death
from ottla.sim.mutants.ablation import without_safeguard

BEFORE_KIP_101 = "replication.truncate_by_epoch"


def pair() -> tuple[Cluster, Member, Member]:
    """A leads, both are in sync, nothing is written yet."""
    cluster = Cluster(2)
    cluster.elect(1, isr=(1, 2))
    return cluster, cluster.members[1], cluster.members[2]


def test_hw_leo_picture() -> None:
    cluster, leader, follower = pair()
    for at in range(7):
        leader.produce(b"%d" % at)
    follower.fetch(2)
    for at in range(7, 14):
        leader.produce(b"%d" % at)
    assert (leader.hw, leader.leo) == (7, 14)
    assert leader.values(0, leader.hw) == [b"%d" % at for at in range(7)], "0…6 can be read"
    assert leader.partition.read(7, 1 << 20, leader.hw, True) is None, "7…13 are not fully replicated"
    assert cluster.state.isr == (1, 2)


def row(leader: Member, follower: Member) -> tuple[int, int, int, int, int]:
    """(leader LEO, remote LEO, leader HW, follower LEO, follower HW)."""
    return leader.leo, max(0, leader.remote(follower)), leader.hw, follower.leo, follower.hw


def test_step_table_1() -> None:
    _, leader, follower = pair()
    assert row(leader, follower) == (0, 0, 0, 0, 0)
    leader.produce(b"m0")
    assert row(leader, follower) == (1, 0, 0, 0, 0)
    follower.fetch()
    assert row(leader, follower) == (1, 0, 0, 1, 0)
    follower.fetch()
    assert row(leader, follower) == (1, 1, 1, 1, 1)


def test_step_table_2() -> None:
    """Two records, one batch each: the follower has the second only with the second fetch."""
    _, leader, follower = pair()
    leader.produce(b"m0")
    first = follower.ask(leader)
    leader.produce(b"m1")
    follower.take(first)
    assert row(leader, follower) == (2, 0, 0, 1, 0)
    follower.fetch()
    assert row(leader, follower) == (2, 1, 1, 2, 1)
    follower.fetch()
    assert row(leader, follower) == (2, 2, 2, 2, 2)


def loss() -> tuple[list[bytes | None], list[bytes | None]]:
    """Story 1: what B and A hold in the end. m1 was acknowledged."""
    cluster, a, b = pair()
    a.produce(b"m0")
    b.fetch()
    a.produce(b"m1")
    b.fetch()
    b.ask(a)  # and B is gone before the response, which has the HW 2
    assert (a.leo, a.hw, b.leo, b.hw) == (2, 2, 2, 1)
    b.save()
    b.die()
    cluster.restart(2)  # as a follower of A
    a.die()
    cluster.elect(2, isr=(2,))
    cluster.restart(1)
    a.fetch(3)
    return b.values(), a.values()


def test_story_1_loss() -> None:
    with without_safeguard(BEFORE_KIP_101):
        assert loss() == ([b"m0"], [b"m0"]), "cut to its high watermark, B loses what was acknowledged"
    assert loss() == ([b"m0", b"m1"], [b"m0", b"m1"])


def divergence() -> tuple[list[bytes | None], list[bytes | None]]:
    """Story 2: what B and A hold in the end, after both lost power at once."""
    cluster, a, b = pair()
    a.produce(b"m0")
    b.fetch()
    a.produce(b"m1")
    b.save(mark=False)  # m1 is to come to B's memory, and never to its disk
    b.fetch()
    b.logs.dirs[0].offsets.checkpoint_high_watermarks()
    b.ask(a)
    a.save()
    assert (a.leo, a.hw, b.leo, b.hw) == (2, 2, 2, 1)
    a.die(Death.POWER_LOSS)
    b.die(Death.POWER_LOSS)
    b.boot()
    assert (b.leo, b.hw) == (1, 1)
    cluster.elect(2, isr=(2,))
    b.produce(b"m3")
    assert (b.leo, b.hw) == (2, 2)
    cluster.restart(1)
    assert (a.leo, a.hw) == (2, 2), "the same as B's, whatever lies below"
    a.fetch(3)
    return b.values(), a.values()


def test_story_2_divergence() -> None:
    with without_safeguard(BEFORE_KIP_101):
        assert divergence() == ([b"m0", b"m3"], [b"m0", b"m1"]), "offset 1 is two things"
    assert divergence() == ([b"m0", b"m3"], [b"m0", b"m3"])


def test_story_3_recovery() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.members.values()
    cluster.elect(1, isr=(1, 2, 3))
    a.produce(b"m1")
    b.fetch(2)
    c.fetch(2)
    a.produce(b"m2")
    b.fetch()
    a.produce(b"m3")
    assert (a.values(), b.values(), c.values()) == ([b"m1", b"m2", b"m3"], [b"m1", b"m2"], [b"m1"])
    assert (a.hw, b.hw, c.hw) == (1, 1, 1)
    a.die()
    cluster.elect(2, isr=(2, 3))
    assert b.hw == 1, "m2 is not committed yet"
    c.fetch(2)
    assert b.hw == 2, "now it is"
    b.produce(b"m4")
    b.produce(b"m5")
    c.fetch(2)
    assert (b.hw, c.values()) == (4, [b"m1", b"m2", b"m4", b"m5"])
    cluster.restart(1)
    assert a.fetch() is ErrorCode.NONE
    assert a.values() == [b"m1", b"m2"], "m3 is dropped: it comes back only if its producer sends it again"
    assert not cluster.proposals
    a.fetch()
    assert a.values() == b.values() == c.values() == [b"m1", b"m2", b"m4", b"m5"]
    assert not cluster.proposals, "it has everything, and the leader does not know that yet"
    a.fetch()
    cluster.decide()
    assert cluster.state.isr == b.partition.isr == (2, 3, 1)


def test_epoch_cache() -> None:
    cluster, leader, _ = pair()
    for at in range(120):
        leader.produce(b"%d" % at)
    cluster.elect(1)
    epochs = leader.log.epochs
    assert epochs.entries == ((0, 0), (1, 120))
    assert epochs.end_offset_for(0) == (0, 120)
    leader.produce(b"more")
    cluster.settle()
    assert epochs.entries == ((0, 0), (1, 120)), "writing again in its epoch adds nothing"
    assert epochs.end_offset_for(1) == (1, 121)
    leader.log.metadata.save_epochs_now()
    assert leader.machine.drives[0].file_at("t-0/leader-epoch-checkpoint").data == b"0\n2\n0 0\n1 120\n"


def test_lag_burst() -> None:
    cluster = Cluster(3, config=TopicConfig(min_insync_replicas=2))
    leader, *followers = cluster.members.values()
    cluster.elect(1, isr=(1, 2, 3))
    most = 0
    for second in range(60):
        if second < 40:
            for _ in range(10):
                leader.produce(*[b"x"] * 100)
        behind = [leader.leo - max(0, leader.remote(each)) for each in followers]
        most = max(most, *behind)
        for each in followers:  # a batch every 100 ms at most: slower than the burst, but never idle
            if second % 10 == 9:
                each.fetch(2)
        cluster.pass_seconds(1)
        leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    assert most > 9_000, "replica.lag.max.messages would have thrown both out"
    assert not cluster.proposals
    for each in followers:
        each.fetch(40)
    assert leader.partition.isr == (1, 2, 3)
    assert leader.hw == leader.leo == 40_000
