"""The ISR: leaving, joining, the maximal ISR. Each safeguard is also switched off, to see the damage."""

from __future__ import annotations

import pytest
from tests.replication.members import TWO, led

from ottla.errors import ErrorCode
from ottla.replication.partition.replica_state import IsrOutcome

# -- the ISR: leaving and joining --------------------------------------------------------------------------------------


def test_a_follower_that_stays_away_leaves_when_the_controller_agrees() -> None:
    cluster = led(3, isr=(1, 2, 3))
    leader, b, c = cluster.members.values()
    leader.produce(b"m0")
    for each in (b, c, b, c):
        each.fetch()
    leader.produce(b"m1")
    for _ in range(4):
        cluster.pass_seconds(8)
        b.fetch(2)
        leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    ((_, proposal),) = cluster.proposals
    assert proposal.isr == (1, 2)
    assert leader.hw == 1, "asked is not answered: c still counts"
    leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    assert len(cluster.proposals) == 1, "one proposal at a time"
    cluster.decide()
    assert (leader.partition.isr, leader.hw) == ((1, 2), 2)
    assert leader.shared.isr_shrinks == 1
    c.fetch(2)
    assert cluster.decide().isr == (1, 2, 3)
    assert leader.shared.isr_expands == 1


def test_a_follower_with_all_records_stays_while_nothing_is_written() -> None:
    cluster = led()
    leader, follower = cluster.members.values()
    leader.produce(b"m0")
    follower.fetch(2)
    cluster.pass_seconds(3600)
    leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    assert not cluster.proposals


def test_an_idle_session_keeps_its_follower_in_when_something_is_written_after_long() -> None:
    """The fetches of an idle session do not name the partition, but count for it."""
    cluster = led()
    leader, follower = cluster.members.values()
    leader.produce(b"m0")
    follower.fetch(2)
    cluster.pass_seconds(3600)
    follower.contact.touch(leader.clock.now().mono_ns)
    cluster.pass_seconds(1)
    leader.produce(b"m1")
    leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    assert not cluster.proposals, "it asked a second ago, and had everything"
    cluster.pass_seconds(31)
    leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    assert len(cluster.proposals) == 1, "it has not asked since"


def test_a_joiner_during_a_proposal_is_proposed_next() -> None:
    cluster = led(3, isr=(1,))
    leader, b, c = cluster.members.values()
    leader.produce(b"m0")
    b.fetch(2)
    c.fetch(2)
    assert [proposal.isr for _, proposal in cluster.proposals] == [(1, 2)]
    cluster.decide()
    assert [proposal.isr for _, proposal in cluster.proposals] == [(1, 2, 3)], "c is idle and does not ask again"
    cluster.decide()
    assert leader.partition.isr == (1, 2, 3)


def test_a_refused_joiner_is_proposed_again_even_if_idle() -> None:
    cluster = led(isr=(1,))
    leader, follower = cluster.members.values()
    leader.produce(b"m0")
    follower.fetch(2)
    leading, proposal = cluster.proposals.popleft()
    leading.on_alter_partition_response(IsrOutcome(proposal, ErrorCode.INELIGIBLE_REPLICA))
    assert leader.shared.failed_isr_updates == 1
    for _ in range(20):
        follower.fetch()
    assert not cluster.proposals, "not with each fetch"
    cluster.pass_seconds(15)
    follower.contact.touch(leader.clock.now().mono_ns)
    leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    cluster.decide()
    assert leader.partition.isr == (1, 2)


def test_a_replica_that_is_always_refused_does_not_block_others() -> None:
    cluster = led(3, isr=(1,))
    leader, b, c = cluster.members.values()
    leader.produce(b"m0")
    b.fetch(2)
    c.fetch(2)
    proposed = []
    for _ in range(4):
        while cluster.proposals:
            leading, proposal = cluster.proposals.popleft()
            proposed.append(proposal.isr)
            if 2 in proposal.isr:
                leading.on_alter_partition_response(IsrOutcome(proposal, ErrorCode.INELIGIBLE_REPLICA))
            else:
                cluster.proposals.appendleft((leading, proposal))
                cluster.decide()
        cluster.pass_seconds(15)
        for idle in (b, c):
            idle.contact.touch(leader.clock.now().mono_ns)
        leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    assert leader.partition.isr == (1, 3), proposed


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED]
)
def test_a_leader_whose_state_is_old_waits_for_a_new_one(code: ErrorCode) -> None:
    """Another controller may have added it: the proposed member counts until the controller sends a state."""
    cluster = led(isr=(1,))
    leader, follower = cluster.members.values()
    follower.fetch()
    leading, proposal = cluster.proposals.popleft()
    leading.on_alter_partition_response(IsrOutcome(proposal, code))
    leader.produce(b"m0")
    cluster.pass_seconds(60)
    leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    assert (leader.hw, list(cluster.proposals)) == (0, [])
    cluster.elect(1)
    assert leader.hw == 1


def test_an_answer_that_decides_nothing_is_asked_for_again() -> None:
    cluster = led(isr=(1,))
    cluster.members[2].fetch()
    leading, proposal = cluster.proposals.popleft()
    leading.on_alter_partition_response(IsrOutcome(proposal, ErrorCode.UNKNOWN_SERVER_ERROR))
    assert cluster.proposals.pop() == (leading, proposal)


# -- maximal ISR (KIP-497) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [None, "replication.maximal_isr"], indirect=True)
def test_proposed_members_hold_the_high_watermark(guarded: bool) -> None:
    cluster = led(isr=(1,))
    leader, follower = cluster.members.values()
    leader.produce(b"m0")
    follower.fetch(2)
    assert cluster._judge(cluster.proposals[0][1]).error is ErrorCode.NONE, "written; the answer is on its way"
    _, _, required = leader.produce(b"m1", acks=-1)
    acknowledged = leader.partition.leader_role.is_settled(required, -1)
    leader.die()
    cluster.elect(2, isr=(2,))
    survived = follower.values()
    assert survived == [b"m0"]
    assert acknowledged is (not guarded)
    # Without the safeguard m1 was acknowledged, and a clean election lost it.


@pytest.mark.parametrize("guarded", [None, "replication.maximal_isr"], indirect=True)
def test_a_leader_cut_off_from_the_controller_acknowledges_nothing_without_the_whole_isr(guarded: bool) -> None:
    """It may have been replaced already, by a member that it would like to see leave."""
    cluster = led(3, isr=(1, 2, 3), config=TWO)
    leader, b, _ = cluster.members.values()
    _, _, required = leader.produce(b"m0", acks=-1)
    for _ in range(5):
        cluster.pass_seconds(8)
        b.fetch(2)
        leader.partition.leader_role.shrink_if_lagging(leader.clock.now())
    assert [proposal.isr for _, proposal in cluster.proposals] == [(1, 2)]
    b.fetch(2)
    leader.produce(b"m1")
    b.fetch(2)
    assert leader.partition.leader_role.is_settled(required, -1) is (not guarded)


def test_a_repeated_state_keeps_the_open_proposal() -> None:
    cluster = led(isr=(1,))
    leader, follower = cluster.members.values()
    follower.fetch()
    cluster.send_state(leader)
    leader.produce(b"m0")
    assert leader.hw == 0


@pytest.mark.parametrize("guarded", [None, "replication.partition_epoch_check"], indirect=True)
def test_an_answer_older_than_the_state_changes_nothing(guarded: bool) -> None:
    cluster = led(3, isr=(1, 2))
    leader, b, c = cluster.members.values()
    c.fetch()
    leading, proposal = cluster.proposals[0]
    late = cluster._judge(proposal)
    assert late.isr == (1, 2, 3)
    c.die()
    cluster.elect(1, isr=(1, 2))
    leading.on_alter_partition_response(late)
    assert leader.partition.isr == ((1, 2) if guarded else (1, 2, 3))
    leader.produce(b"m0")
    b.fetch(2)
    assert leader.hw == int(guarded), "without the check it waits for a dead broker"


# -- joining (KIP-207, KIP-320, KIP-903) -------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [None, "replication.isr_epoch_start_rule"], indirect=True)
def test_a_follower_joins_only_with_the_start_of_the_epoch(guarded: bool) -> None:
    cluster = led(3, isr=(1, 2, 3))
    a, b, c = cluster.members.values()
    a.produce(b"m0")
    for each in (b, c, b, c):
        each.fetch()
    cluster.elect(1, isr=(1, 2))
    a.produce(b"m1")
    b.fetch()
    b.ask(a)  # m1 is committed; b does not know it yet
    assert (a.hw, b.hw) == (2, 1)
    a.die()
    cluster.elect(2, isr=(1, 2))
    c.ask(b, offset=1, last_epoch=0)
    joined = [proposal.isr for _, proposal in cluster.proposals]
    assert joined == ([] if guarded else [(1, 2, 3)]), "c has all that b knows to be committed, and not m1"
    c.fetch(2)
    assert [proposal.isr for _, proposal in cluster.proposals] == [(1, 2, 3)]
    assert c.values() == [b"m0", b"m1"]


@pytest.mark.parametrize("guarded", [None, "replication.broker_epoch_isr"], indirect=True)
def test_a_broker_reborn_with_an_empty_disk_does_not_join_by_its_old_fetch(guarded: bool) -> None:
    cluster = led(isr=(1,))
    leader, follower = cluster.members.values()
    leader.produce(b"m0")
    follower.fetch(2)
    follower.die()
    follower.boot()
    follower.wipe()
    outcome = cluster.decide()
    assert outcome.error is (ErrorCode.INELIGIBLE_REPLICA if guarded else ErrorCode.NONE)
    assert leader.partition.isr == ((1,) if guarded else (1, 2))
    assert follower.leo == 0


def test_a_fetch_of_an_earlier_life_is_refused() -> None:
    cluster = led()
    leader, follower = cluster.members.values()
    leader.produce(b"m0")
    before = follower.broker_epoch
    follower.fetch(2)
    follower.die()
    cluster.restart(2)
    follower.fetch()
    stale = follower.ask(leader, broker_epoch=before)
    assert stale.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
