"""Every election as a table: the next leader and ISR, and when nothing changes.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.cluster.controller.elections import (
    bump_epoch,
    distrusting_election,
    first_eligible,
    offline_election,
    preferred_election,
    reassigned_election,
    shutdown_election,
)
from ottla.cluster.image import PartitionImage
from ottla.sim.mutants.ablation import without_safeguard

CLEAN, UNCLEAN = False, True


def partition(leader, isr, replicas=(1, 2, 3)):
    return PartitionImage(0, leader, 7, tuple(replicas), tuple(isr), 11)


def outcome(elected):
    """(leader, isr, unclean), None when nothing changes. A change is always under the next epoch."""
    if elected is None:
        return None
    after = elected.partition
    assert after.leader_epoch == 8
    assert after.state_version == 11
    return after.leader, after.isr, elected.unclean


@pytest.mark.parametrize(
    ("leader", "isr", "online", "unclean", "expected"),
    [
        # the leader is online: it stays, and the ISR loses offline replicas
        (1, (1, 2, 3), (1, 2, 3), CLEAN, None),
        (1, (1, 2, 3), (1, 3), CLEAN, (1, (1, 3), False)),
        (1, (1,), (1, 3), CLEAN, None),
        # the leader is offline: the first replica in assignment order that is in sync and online leads
        (1, (1, 2, 3), (2, 3), CLEAN, (2, (2, 3), False)),
        (1, (3, 2, 1), (2, 3), CLEAN, (2, (3, 2), False)),
        (1, (1, 3), (2, 3), CLEAN, (3, (3,), False)),
        (2, (1, 2, 3), (1, 3), CLEAN, (1, (1, 3), False)),
        # no member of the ISR is online: no leader, and the last ISR is kept
        (1, (1,), (2, 3), CLEAN, (-1, (1,), False)),
        (1, (1, 2), (), CLEAN, (-1, (1, 2), False)),
        (-1, (1,), (2, 3), CLEAN, None),
        # an unclean election is allowed: the first online replica leads, alone in sync
        (1, (1,), (2, 3), UNCLEAN, (2, (2,), True)),
        (-1, (1,), (3,), UNCLEAN, (3, (3,), True)),
        (1, (1,), (), UNCLEAN, (-1, (1,), False)),
        # allowed, but not needed
        (1, (1, 2), (2, 3), UNCLEAN, (2, (2,), False)),
        # an in-sync replica comes back
        (-1, (1,), (1, 2), CLEAN, (1, (1,), False)),
        (-1, (2, 3), (2, 3), CLEAN, (2, (2, 3), False)),
    ],
)
def test_offline(leader, isr, online, unclean, expected):
    assert outcome(offline_election(partition(leader, isr), online, unclean)) == expected


@pytest.mark.parametrize(
    ("leader", "isr", "online", "expected"),
    [
        (2, (1, 2, 3), (1, 2, 3), (1, (1, 2, 3), False)),
        (1, (1, 2), (1, 2, 3), None),  # leads already
        (2, (2, 3), (1, 2, 3), None),  # not in sync
        (2, (1, 2, 3), (2, 3), None),  # not there
        (-1, (1,), (1,), (1, (1,), False)),
    ],
)
def test_preferred(leader, isr, online, expected):
    assert outcome(preferred_election(partition(leader, isr), online)) == expected


@pytest.mark.parametrize(
    ("leader", "isr", "leaving", "expected"),
    [
        (1, (1, 2, 3), (1,), (2, (2, 3), False)),
        (1, (1, 3), (1,), (3, (3,), False)),
        (1, (1,), (1,), None),  # no other replica is in sync: it leads until it is gone
        (1, (1, 2), (1, 2), None),
        (1, (1, 2, 3), (2,), (1, (1, 3), False)),  # a follower that stops leaves the ISR
        (1, (1, 3), (2,), None),
        (-1, (1, 2), (1,), None),
    ],
)
def test_controlled_shutdown(leader, isr, leaving, expected):
    online = [replica for replica in (1, 2, 3) if replica not in leaving]
    assert outcome(shutdown_election(partition(leader, isr), online, leaving)) == expected


def test_controlled_shutdown_elects_only_online_replicas():
    assert shutdown_election(partition(1, (1, 2)), (3,), (1,)) is None


@pytest.mark.parametrize(
    ("leader", "isr", "target", "online", "expected"),
    [
        (1, (1, 2, 3, 4), (3, 4), (3, 4), (3, (3, 4), False)),  # the leader is removed
        (3, (1, 3, 4), (4, 3), (3, 4), (3, (3, 4), False)),  # it stays
        (3, (1, 3, 4), (3, 4), (4,), (4, (3, 4), False)),  # it stays in the target, but is dead
        (1, (1, 2), (3, 4), (3, 4), None),  # no replica of the target is in sync
        (1, (1, 3), (3,), (), None),
        (1, (1, 2), (1, 2), (1, 2), (1, (1, 2), False)),  # only the order changes: the leader receives it
    ],
)
def test_reassigned(leader, isr, target, online, expected):
    moving = partition(leader, isr, dict.fromkeys((*target, 1, 2)))
    assert outcome(reassigned_election(moving, target, online)) == expected


def test_bumped_changes_the_epoch_alone():
    assert outcome(bump_epoch(partition(2, (2, 3)))) == (2, (2, 3), False)


def test_first_eligible_follows_the_assignment():
    assert first_eligible((3, 1, 2), (1, 2), (1, 2)) == 1
    assert first_eligible((3, 1, 2), (), (1, 2)) is None


# -- safeguards ------------------------------------------------------------------------------------------------------


def test_without_isr_only_election_a_replica_out_of_sync_leads():
    with without_safeguard("controller.isr_only_election"):
        assert outcome(offline_election(partition(1, (1,)), (2, 3), CLEAN)) == (2, (2,), False)
    assert outcome(offline_election(partition(1, (1,)), (2, 3), CLEAN)) == (-1, (1,), False)


def test_without_last_isr_kept_any_replica_could_lead_later():
    with without_safeguard("controller.last_isr_kept"):
        lost = offline_election(partition(1, (1,)), (), CLEAN)
    assert lost is not None
    later = offline_election(lost.partition, (3,), CLEAN)
    assert later is not None
    assert later.partition.leader == 3
    kept = offline_election(partition(1, (1,)), (), CLEAN)
    assert kept is not None
    assert offline_election(kept.partition, (3,), CLEAN) is None


@pytest.mark.parametrize(
    ("leader", "isr", "online", "blank", "expected"),
    [
        # the leader's log is lost: another replica that is in sync and online leads, else none for now
        (1, (1, 2, 3), (1, 2, 3), (1,), (2, (2, 3), False)),
        (1, (1, 2, 3), (1,), (1,), (-1, (2, 3), False)),
        (-1, (1, 2, 3), (1,), (1,), (-1, (2, 3), False)),
        (-1, (1, 2, 3), (1, 3), (1,), (3, (2, 3), False)),
        # a follower's log is lost: it leaves the ISR
        (1, (1, 2, 3), (1, 2, 3), (3,), (1, (1, 2), False)),
        (1, (1, 2, 3), (1, 2, 3), (2, 3), (1, (1,), False)),
        # no other replica is left, or it was not in sync: no change
        (1, (1,), (1, 2), (1,), None),
        (-1, (1, 2), (1, 2), (1, 2), None),
        (1, (1, 2), (1, 2, 3), (3,), None),
    ],
)
def test_replicas_with_lost_logs_leave_the_isr(leader, isr, online, blank, expected):
    assert outcome(distrusting_election(partition(leader, isr), online, blank)) == expected
