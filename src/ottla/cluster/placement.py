"""Places the replicas of new partitions: Kafka's published algorithm, plain and rack-aware.

Zone: pure. The random start is an argument.

1. Plain: the first replicas rotate over the brokers from the start; the others follow at a distance that increases by
   one after every round.
2. With racks: the brokers are in an order that alternates racks, and a partition uses a rack twice only when every rack
   has one of its replicas.
3. With several brokers on one machine, which fail together: machines come before racks. This algorithm is our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from ottla.errors import ApiError, ErrorCode

Assignment = list[tuple[int, ...]]
"""Replicas per partition, the preferred leader first."""


class Start(NamedTuple):
    """The start of a rotation: the broker of partition 0 and the distance of its second replica, both as indexes."""

    first: int
    shift: int


def assign_replicas(
    partitions: int,
    replication_factor: int,
    racks: Mapping[int, str | None],
    start: Start,
    first_partition: int = 0,
    hosts: Mapping[int, str] | None = None,
) -> Assignment:
    """Replicas for partitions `first_partition` … `first_partition + partitions - 1` over the brokers in `racks`.

    Racks are used when every broker has one; `hosts` (the machine of every broker) when there are several machines and
    two brokers share one. Raises ApiError INVALID_PARTITIONS or INVALID_REPLICATION_FACTOR.
    """
    if partitions <= 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"the number of partitions must be positive, not {partitions}")
    if replication_factor <= 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor must be positive, not {replication_factor}",
        )
    if replication_factor > len(racks):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs as many brokers, {len(racks)} are alive",
        )
    # 1. Machines, if they matter. 2. Racks, if all brokers have one. 3. Plain.
    if hosts is not None and 1 < len(set(hosts.values())) < len(hosts):
        return _assign_with_hosts(partitions, replication_factor, racks, hosts, start, first_partition)
    known = {broker: rack for broker, rack in racks.items() if rack is not None}
    if len(known) == len(racks) > 0:
        return _assign_with_racks(partitions, replication_factor, known, start, first_partition)
    return _assign_plain(partitions, replication_factor, sorted(racks), start, first_partition)


def _assign_plain(
    partitions: int, factor: int, brokers: Sequence[int], start: Start, first_partition: int
) -> Assignment:
    def place(first: int, shift: int) -> tuple[int, ...]:
        others = [brokers[_follower_index(first, shift, j, len(brokers))] for j in range(factor - 1)]
        return brokers[first], *others

    return _rotate(partitions, len(brokers), start, first_partition, place)


def _rotate(
    partitions: int, brokers: int, start: Start, first_partition: int, place: Callable[[int, int], tuple[int, ...]]
) -> Assignment:
    """The replicas of each partition: `place` of the index of the first one, and of the distance of the second."""
    assignment = []
    placed: dict[tuple[int, int], tuple[int, ...]] = {}  # few differ, so partitions share them
    shift = start.shift
    for partition in range(first_partition, first_partition + partitions):
        # After each round: otherwise the followers of one broker's partitions would all be on the same brokers, which
        # would get all its load when it fails.
        if partition > 0 and partition % brokers == 0:
            shift += 1
        key = (partition + start.first) % brokers, shift % max(1, brokers - 1)
        replicas = placed.get(key)
        if replicas is None:
            replicas = placed[key] = place(*key)
        assignment.append(replicas)
    return assignment


def _follower_index(first: int, shift: int, j: int, brokers: int) -> int:
    """Index of the follower number `j` of a partition whose first replica has index `first`."""
    return (first + 1 + (shift + j) % (brokers - 1)) % brokers


def _assign_with_racks(
    partitions: int, factor: int, racks: Mapping[int, str], start: Start, first_partition: int
) -> Assignment:
    order = alternate_racks(racks)
    rack_count = len(set(racks.values()))

    def place(first: int, shift: int) -> tuple[int, ...]:
        return _spread_order(order, racks, rack_count, factor, first, shift)

    return _rotate(partitions, len(order), start, first_partition, place)


def _spread_order(
    order: Sequence[int], racks: Mapping[int, str], rack_count: int, factor: int, first: int, shift: int
) -> tuple[int, ...]:
    """Replicas of one partition: takes each candidate unless the broker or its rack already has a replica."""
    chosen = [order[first]]
    used = {racks[order[first]]}
    j = 0
    while len(chosen) < factor:
        broker = order[_follower_index(first, shift * rack_count, j, len(order))]
        j += 1
        # A rack is used twice only after every rack was used once; the broker itself never.
        if broker not in chosen and (racks[broker] not in used or len(used) == rack_count):
            chosen.append(broker)
            used.add(racks[broker])
    return tuple(chosen)


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """Brokers in an order that alternates racks; racks, and brokers in a rack, are in ascending order."""
    waiting: dict[str, list[int]] = {}
    for broker in sorted(racks):
        waiting.setdefault(racks[broker], []).append(broker)
    order: list[int] = []
    while len(order) < len(racks):
        order += [waiting[rack].pop(0) for rack in sorted(waiting) if waiting[rack]]
    return order


# -- several brokers on one machine ----------------------------------------------------------------------------------


def _assign_with_hosts(
    partitions: int,
    factor: int,
    racks: Mapping[int, str | None],
    hosts: Mapping[int, str],
    start: Start,
    first_partition: int,
) -> Assignment:
    """First replicas rotate over an order that alternates racks, then machines; `_spread_over_hosts` chooses the
    others."""
    order = _alternate_hosts(racks, hosts)
    assignment = []
    shift = start.shift
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(order) == 0:
            shift += 1
        first = (partition + start.first) % len(order)
        others = [order[_follower_index(first, shift, j, len(order))] for j in range(len(order) - 1)]
        assignment.append(_spread_over_hosts(order[first], others, factor, racks, hosts))
    return assignment


def _spread_over_hosts(
    first: int,
    others: Sequence[int],
    factor: int,
    racks: Mapping[int, str | None],
    hosts: Mapping[int, str],
) -> tuple[int, ...]:
    """Each next replica is the candidate with the fewest replicas on its machine, then the fewest in its rack."""
    chosen = [first]
    left = list(others)
    while len(chosen) < factor:
        # Counted again for each replica, because every choice changes the balance. `min` keeps the order of candidates.
        on_hosts = Counter(hosts[broker] for broker in chosen)
        in_racks = Counter(racks[broker] for broker in chosen if racks[broker] is not None)
        best = min(left, key=lambda broker: (on_hosts[hosts[broker]], in_racks[racks[broker]]))
        left.remove(best)
        chosen.append(best)
    return tuple(chosen)


def _alternate_hosts(racks: Mapping[int, str | None], hosts: Mapping[int, str]) -> list[int]:
    """Brokers in an order that alternates racks, and within a rack alternates machines."""
    by_rack: dict[str, dict[int, str]] = {}
    for broker, rack in racks.items():
        by_rack.setdefault(rack or "", {})[broker] = hosts[broker]
    columns = [alternate_racks(by_rack[rack]) for rack in sorted(by_rack)]
    return [broker for row in zip_longest(*columns) for broker in row if broker is not None]
