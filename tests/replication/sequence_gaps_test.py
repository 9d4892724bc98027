"""Batches of an idempotent producer after a refused one are also refused, to keep order. Also without the safeguard."""

from __future__ import annotations

import random

import pytest
from tests.replication.leading_test import TWO, refusal
from tests.replication.members import Cluster, Member

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.replication.partition.sequence_gaps import KEPT_MAX, KEPT_NS, NEW_LEADER_NS
from ottla.sim.mutants.ablation import without_safeguard
from ottla.sim.world import SECOND

TOP = 2**31 - 1
SMALL = TopicConfig(min_insync_replicas=2, max_message_bytes=100)


class Sent:
    """A producer's batch, sent as often as one likes."""

    def __init__(self, sequence: int, count: int = 2, producer_id: int = 7, epoch: int = 0) -> None:
        records = [Record(at, 1_700_000_000_000, None, b"%d" % (sequence + at), ()) for at in range(count)]
        self.bytes = bytes(encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))

    def to(self, member: Member) -> int:
        return member.partition.leader_role.append(memoryview(bytearray(self.bytes)), -1, member.clock.now())[0]


def alone() -> tuple[Cluster, Member]:
    """A leader whose ISR is too small for acks=all."""
    cluster = Cluster(2, TWO)
    cluster.elect(1, isr=(1,))
    return cluster, cluster.members[1]


def joined(cluster: Cluster) -> None:
    """The other one is in sync now, in the same leader epoch."""
    for _ in range(3):
        cluster.members[2].fetch()
    cluster.decide()
    cluster.members[2].fetch()
    assert len(cluster.members[1].partition.isr) == 2


def of_a_gap(sent: Sent, cluster: Cluster) -> ErrorCode:
    """Broker 1's final error for a batch with a gap, while broker 2 follows it."""
    leader, follower = cluster.members[1], cluster.members[2]
    for _ in range(2):
        assert refusal(sent.to, leader) is ErrorCode.LEADER_NOT_AVAILABLE, "perhaps another one leads"
        cluster.pass_seconds(0.1)
        follower.fetch()
    return refusal(sent.to, leader)


@pytest.mark.parametrize("known", [True, False])
def test_batches_after_one_refused_for_too_few_in_sync_wait_for_it(known: bool) -> None:
    cluster, leader = alone()
    begins = 0
    if known:
        joined(cluster)
        Sent(0).to(leader)
        cluster.members[2].fetch()
        cluster.elect(1, isr=(1,))
        begins = 2
    assert refusal(Sent(begins).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    joined(cluster)
    assert refusal(Sent(begins + 2).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS, "early, not out of order"
    assert refusal(Sent(begins + 4).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [Sent(begins + after).to(leader) for after in (0, 2, 4)] == [begins, begins + 2, begins + 4]
    assert Sent(begins).to(leader) == begins, "and it is known when it comes again"


@without_safeguard("replication.refused_comes_first")
def test_without_the_rule_the_order_is_lost() -> None:
    cluster, leader = alone()
    assert refusal(Sent(0).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    joined(cluster)
    assert Sent(2).to(leader) == 0, "before what comes first"
    assert of_a_gap(Sent(0), cluster) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "for good"


def test_a_batch_that_came_before_it_was_the_leader() -> None:
    cluster = Cluster(2, TWO)
    cluster.elect(2, isr=(1, 2))
    member = cluster.members[1]
    assert refusal(Sent(0).to, member) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.elect(1, isr=(1, 2))
    assert refusal(Sent(2).to, member) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [Sent(0).to(member), Sent(2).to(member)] == [0, 2]


def test_a_batch_refused_here_and_written_elsewhere_is_not_waited_for() -> None:
    cluster = Cluster(2, TWO)
    cluster.elect(2, isr=(1, 2))
    member, other = cluster.members[1], cluster.members[2]
    assert refusal(Sent(0).to, member) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    Sent(0).to(other)
    member.fetch()
    cluster.elect(1, isr=(1, 2))
    assert Sent(2).to(member) == 2
    assert not member.partition.leader_role._refusals.waiting


def test_other_producers_and_other_epochs_do_not_wait() -> None:
    cluster, leader = alone()
    assert refusal(Sent(5).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    joined(cluster)
    assert Sent(0, producer_id=8).to(leader) == 0
    assert Sent(0, epoch=1).to(leader) == 2


def test_an_earlier_one_is_what_is_missing() -> None:
    cluster, leader = alone()
    cluster.pass_seconds(NEW_LEADER_NS // SECOND + 1)  # so that it may begin anywhere
    for sequence in (TOP - 1, 0, TOP - 1, 2):
        assert refusal(Sent(sequence).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    joined(cluster)
    assert refusal(Sent(0).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS, "sequences wrap"
    assert [Sent(TOP - 1).to(leader), Sent(0).to(leader), Sent(2).to(leader)] == [0, 2, 4]


def test_a_producer_that_gave_up_gets_the_plain_error_after_a_while() -> None:
    cluster, leader = alone()
    joined(cluster)
    Sent(0).to(leader)
    cluster.members[2].fetch()
    cluster.elect(1, isr=(1,))
    assert refusal(Sent(2).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    joined(cluster)
    cluster.pass_seconds(KEPT_NS // SECOND + 1)
    assert of_a_gap(Sent(4), cluster) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_many_refused_producers_and_nonsense_take_bounded_memory() -> None:
    _, leader = alone()
    for producer_id in range(KEPT_MAX + 50):
        assert refusal(Sent(0, producer_id=producer_id).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    rng = random.Random(1)
    for size in range(200):
        junk = memoryview(bytearray(rng.randbytes(size)))
        code = refusal(leader.partition.leader_role.append, junk, -1, leader.clock.now())
        assert code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(leader.partition.leader_role._refusals.waiting) == KEPT_MAX


# -- at a new leader ---------------------------------------------------------------------------------------------------


def handed_over() -> tuple[Cluster, Member]:
    """Broker 2 led and has sequences 0 to 3 of a producer, which broker 1 has too; broker 1 leads now."""
    cluster = Cluster(2, TWO)
    cluster.elect(2, isr=(1, 2))
    for sequence in (0, 2):
        Sent(sequence).to(cluster.members[2])
        cluster.members[1].fetch()
    cluster.elect(1, isr=(1, 2))
    return cluster, cluster.members[1]


def test_a_batch_that_overtook_others_to_a_new_leader_is_sent_again() -> None:
    cluster, leader = handed_over()
    assert refusal(Sent(8).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS, "4 and 6 lie at the old leader"
    assert refusal(Sent(6).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [Sent(sequence).to(leader) for sequence in (4, 6, 8)] == [4, 6, 8]
    assert of_a_gap(Sent(20), cluster) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "it has written here: a gap is a gap"


@without_safeguard("replication.refused_comes_first")
def test_at_a_new_leader_without_the_rule_a_gap_is_a_gap() -> None:
    cluster, _ = handed_over()
    assert of_a_gap(Sent(8), cluster) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_producer_that_a_new_leader_does_not_know_begins_at_zero_or_waits() -> None:
    _, leader = handed_over()
    assert refusal(Sent(2, producer_id=8).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [Sent(sequence, producer_id=8).to(leader) for sequence in (0, 2)] == [4, 6]


def test_an_unknown_producer_begins_anywhere_after_a_while() -> None:
    cluster, leader = handed_over()
    assert refusal(Sent(2, producer_id=8).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.pass_seconds(KEPT_NS // SECOND + 1)
    assert Sent(2, producer_id=8).to(leader) == 4, "its records were deleted, as KIP-360 has it"
    cluster.pass_seconds(NEW_LEADER_NS // SECOND)
    assert Sent(2, producer_id=9).to(leader) == 6, "a leader of some time asks no more"


def test_a_gap_at_a_new_leader_is_a_gap_after_a_while() -> None:
    cluster, leader = handed_over()
    assert refusal(Sent(8).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    cluster.pass_seconds(KEPT_NS // SECOND + 1)
    for _ in range(2):
        assert of_a_gap(Sent(8), cluster) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert Sent(4).to(leader) == 4


def test_the_first_batch_of_a_new_epoch_may_also_be_overtaken() -> None:
    _, leader = handed_over()
    assert refusal(Sent(2, epoch=1).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [Sent(sequence, epoch=1).to(leader) for sequence in (0, 2)] == [4, 6]


def test_a_batch_refused_for_good_is_not_waited_for() -> None:
    cluster, leader = handed_over()
    leader.partition.apply_config(SMALL)
    assert refusal(Sent(4, count=9).to, leader) is ErrorCode.MESSAGE_TOO_LARGE
    assert of_a_gap(Sent(13), cluster) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batches_do_not_wait_for_one_refused_for_good() -> None:
    cluster, leader = alone()
    joined(cluster)
    Sent(0).to(leader)
    cluster.members[2].fetch()
    cluster.elect(1, isr=(1,))
    assert refusal(Sent(2, count=9).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS
    joined(cluster)
    assert refusal(Sent(11).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS, "early, not out of order"
    leader.partition.apply_config(SMALL)
    assert refusal(Sent(2, count=9).to, leader) is ErrorCode.MESSAGE_TOO_LARGE
    assert of_a_gap(Sent(11), cluster) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_one_replica_has_no_old_leader() -> None:
    cluster = Cluster(1)
    cluster.elect(1, isr=(1,))
    assert Sent(2).to(cluster.members[1]) == 0, "KIP-360: nothing is known of it"
    assert refusal(Sent(8).to, cluster.members[1]) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# -- at a leader that was put aside ------------------------------------------------------------------------------------


def put_aside() -> tuple[Cluster, Member]:
    """Broker 1 leads three replicas and has sequences 0 and 1 of a producer."""
    cluster = Cluster(3, TWO)
    cluster.elect(1, isr=(1, 2, 3))
    Sent(0).to(cluster.members[1])
    follow(cluster, 2, 3)
    return cluster, cluster.members[1]


def follow(cluster: Cluster, *nodes: int) -> None:
    """Each of them fetches, some time later."""
    for node in nodes:
        cluster.pass_seconds(0.1)
        cluster.members[node].fetch()


def elected_elsewhere(cluster: Cluster) -> None:
    """Broker 2 leads, broker 1 has not heard of it."""
    told = cluster.members[1]
    told.alive = False
    cluster.elect(2)
    told.alive = True
    cluster.members[2].contact.is_requested = False


def test_a_replaced_leader_does_not_report_missing_batches() -> None:
    cluster, leader = put_aside()
    elected_elsewhere(cluster)
    assert Sent(2).to(cluster.members[2]) == 2
    for _ in range(20):
        assert refusal(Sent(4).to, leader) is ErrorCode.LEADER_NOT_AVAILABLE
        cluster.members[2].contact.touch(leader.clock.now().mono_ns)  # it follows in other partitions
        follow(cluster, 3)
    assert Sent(4).to(cluster.members[2]) == 4


@without_safeguard("replication.gaps_confirmed")
def test_without_the_rule_it_does() -> None:
    cluster, leader = put_aside()
    elected_elsewhere(cluster)
    assert Sent(2).to(cluster.members[2]) == 2
    assert refusal(Sent(4).to, leader) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_request_that_was_on_its_way_confirms_nothing() -> None:
    cluster, leader = put_aside()
    elected_elsewhere(cluster)
    Sent(2).to(cluster.members[2])
    cluster.members[2].contact.is_requested = True  # what arrives now it sent before it led
    assert refusal(Sent(4).to, leader) is ErrorCode.LEADER_NOT_AVAILABLE
    cluster.pass_seconds(0.1)
    cluster.members[2].contact.touch(leader.clock.now().mono_ns)
    follow(cluster, 3, 3)
    assert refusal(Sent(4).to, leader) is ErrorCode.LEADER_NOT_AVAILABLE


def test_only_members_of_the_maximal_isr_can_have_led() -> None:
    cluster, leader = put_aside()
    cluster.elect(1, isr=(1, 2))
    follow(cluster, 2, 2)
    assert refusal(Sent(8).to, leader) is ErrorCode.NOT_ENOUGH_REPLICAS, "from the time before"
    Sent(2).to(leader)
    assert refusal(Sent(8).to, leader) is ErrorCode.LEADER_NOT_AVAILABLE
    follow(cluster, 2, 2)
    assert refusal(Sent(8).to, leader) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    follow(cluster, 3, 3)
    assert cluster.proposals, "it wants to be in sync, and may be by now"
    assert refusal(Sent(9).to, leader) is ErrorCode.LEADER_NOT_AVAILABLE
    follow(cluster, 2, 2)
    assert refusal(Sent(9).to, leader) is ErrorCode.LEADER_NOT_AVAILABLE
    follow(cluster, 3, 3)
    assert refusal(Sent(9).to, leader) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_gaps_without_end_take_bounded_memory() -> None:
    cluster, leader = put_aside()
    cluster.pass_seconds(NEW_LEADER_NS // SECOND + 1)
    for sequence in range(KEPT_MAX + 50):
        assert refusal(Sent(10 + sequence).to, leader) is ErrorCode.LEADER_NOT_AVAILABLE
    assert len(leader.partition.leader_role._refusals._doubted) == KEPT_MAX
