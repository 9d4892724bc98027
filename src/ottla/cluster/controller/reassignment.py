"""Moving a partition to other replicas: its assignments during and after a move, and what is allowed (KIP-455).

Zone: pure. During a move `replicas` has the target first, then the replicas that are removed. `adding` and `removing`
name them, so that target and origin can be computed from every assignment during the move.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ottla.cluster.image import PartitionImage
from ottla.errors import ApiError, ErrorCode


def target_of(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas that the partition will have after the move."""
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


def origin_of(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas that the partition had when the move began, though not always in their old order."""
    return tuple(replica for replica in partition.replicas if replica not in partition.adding)


def is_moving(partition: PartitionImage) -> bool:
    """Whether replicas are being added or removed."""
    return bool(partition.adding or partition.removing)


def begin_move(partition: PartitionImage, target: Sequence[int]) -> PartitionImage:
    """The assignment that begins a move to `target` or redirects one; a move to the origin cancels it."""
    origin = origin_of(partition)
    replicas = tuple(dict.fromkeys((*target, *origin)))
    return partition._replace(
        replicas=replicas,
        adding=tuple(replica for replica in replicas if replica not in origin),
        removing=tuple(replica for replica in replicas if replica not in target),
    )


def finish_move(partition: PartitionImage) -> PartitionImage:
    """The assignment after a move."""
    return partition._replace(replicas=target_of(partition), adding=(), removing=())


def is_complete(partition: PartitionImage) -> bool:
    """Whether all target replicas are in sync."""
    return all(replica in partition.isr for replica in target_of(partition))


def check_in_sync(partition: PartitionImage, target: Sequence[int]) -> None:
    """Raise ApiError INVALID_REPLICA_ASSIGNMENT if redirecting or cancelling a move would remove the whole ISR.

    All members of the ISR may be replicas that the move adds, while those of the origin lag.
    """
    after = begin_move(partition, target)
    if not any(replica in after.replicas for replica in partition.isr):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"only {list(partition.isr)} are in sync, and would be removed: records would be lost",
        )


def check_target(
    partition: PartitionImage, target: Sequence[int], alive: Collection[int], allow_factor_change: bool
) -> None:
    """Raise ApiError when the partition cannot be moved to `target`: INVALID_REPLICA_ASSIGNMENT, or, when the number of
    replicas may not change (KIP-860), INVALID_REPLICATION_FACTOR.
    """
    if not target:
        problem = "the list of replicas is empty"
    elif len(set(target)) != len(target):
        problem = "the list of replicas names a broker twice"
    elif min(target) < 0:
        problem = f"{min(target)} is not the number of a broker"
    else:
        missing = [replica for replica in begin_move(partition, target).adding if replica not in alive]
        if not missing:
            _check_factor(len(target), len(origin_of(partition)), allow_factor_change)
            return
        problem = f"broker {missing[0]} is not alive"
    raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def _check_factor(wanted: int, present: int, allow_change: bool) -> None:
    if wanted != present and not allow_change:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor would change from {present} to {wanted}, which the request does not allow",
        )
