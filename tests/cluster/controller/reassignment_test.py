"""Assignments of moves as values: added and removed replicas, and refused targets.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.cluster.controller.reassignment import (
    begin_move,
    check_in_sync,
    check_target,
    finish_move,
    is_complete,
    is_moving,
    origin_of,
    target_of,
)
from ottla.cluster.image import PartitionImage
from ottla.errors import ApiError, ErrorCode


def partition(replicas, adding=(), removing=(), isr=(1,)):
    return PartitionImage(0, 1, 3, tuple(replicas), tuple(isr), 2, tuple(adding), tuple(removing))


@pytest.mark.parametrize(
    ("before", "target", "expected"),
    [
        # from the golden tree: (replicas, adding, removing) of topic "moving"
        (partition([1]), (2, 3), ((2, 3, 1), (2, 3), (1,))),
        (partition([2]), (3, 2), ((3, 2), (3,), ())),
        (partition([1, 2, 3]), (4, 5, 6), ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))),
        (partition([1, 2, 3]), (1, 2), ((1, 2, 3), (), (3,))),
        (partition([1, 2, 3]), (3, 2, 1), ((3, 2, 1), (), ())),
        # redirected while under way: the origin stays the same
        (partition([4, 1, 2], [4], [2]), (5, 1), ((5, 1, 2), (5,), (2,))),
        # cancelled
        (partition([4, 1, 2], [4], [2]), (1, 2), ((1, 2), (), ())),
    ],
)
def test_assignments_during_a_move(before, target, expected):
    after = begin_move(before, target)
    assert (after.replicas, after.adding, after.removing) == expected
    assert target_of(after) == target
    assert sorted(origin_of(after)) == sorted(origin_of(before))
    assert is_moving(after) == bool(expected[1] or expected[2])
    assert finish_move(after).replicas == target
    assert not is_moving(finish_move(after))


@pytest.mark.parametrize(
    ("isr", "complete"), [((1,), False), ((1, 2), False), ((1, 2, 3), True), ((2, 3), True), ((3,), False)]
)
def test_complete_when_the_whole_target_is_in_sync(isr, complete):
    assert is_complete(partition([2, 3, 1], [2, 3], [1], isr)) == complete


@pytest.mark.parametrize(
    ("target", "factor_change", "code"),
    [
        ((), True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, -3), True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 9), True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 2, 3), False, ErrorCode.INVALID_REPLICATION_FACTOR),
        ((1,), False, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_invalid_targets_are_refused(target, factor_change, code):
    with pytest.raises(ApiError) as error:
        check_target(partition([1, 2]), target, [1, 2, 3], factor_change)
    assert error.value.code is code


def test_the_last_in_sync_replicas_are_not_dropped():
    moving = partition([3, 1, 2], [3], [2], isr=(3,))
    for target in ((1, 2), (1,), (4, 1)):
        with pytest.raises(ApiError) as error:
            check_in_sync(moving, target)
        assert error.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    check_in_sync(moving, (3, 1))
    check_in_sync(moving._replace(isr=(3, 2)), (1, 2))


def test_valid_targets_are_allowed():
    check_target(partition([1, 2]), (3, 1), [1, 3], allow_factor_change=False)
    check_target(partition([1, 2]), (1, 2, 3), [1, 2, 3], allow_factor_change=True)
    check_target(partition([1, 2]), (2,), [], allow_factor_change=True)  # replicas that stay may be dead
    check_target(
        partition([3, 1, 2], [3], [2]), (1, 3), [3], allow_factor_change=False
    )  # the size of the origin decides
