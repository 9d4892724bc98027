"""Plans where replicas should be, moving as little as possible.

Zone: pure. Brokers, racks and assignments in, an assignment out. Kafka's own tool places every replica again; here a
replica that may stay does stay, so that the least data crosses the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ottla.types import TopicPartition

Assignment = Mapping[TopicPartition, Sequence[int]]


def plan_assignment(
    present: Assignment, racks: Mapping[int, str | None], factor: int | None
) -> dict[TopicPartition, list[int]]:
    """New replicas per partition, the preferred leader first; only brokers in `racks` are used.

    factor: replicas per partition; None keeps each partition's number (at most as many as there are brokers). No broker
    holds many more than its share, a rack gets a second replica only when all racks have one, and preferred leaders are
    spread. Raises ValueError when there are fewer brokers than replicas wanted.
    """
    # 1. Keep the replicas that may stay. 2. Take some from brokers above their share. 3. Fill up with the brokers that
    # have the fewest. 4. Spread the preferred leaders, which moves no data.
    wanted = {tp: factor or min(len(replicas), len(racks)) for tp, replicas in present.items()}
    if any(count > len(racks) for count in wanted.values()):
        raise ValueError(f"{max(wanted.values())} replicas need as many brokers, and only {len(racks)} may be used")
    kept = {tp: [n for n in replicas if n in racks][: wanted[tp]] for tp, replicas in present.items()}
    held = Counter(node for replicas in kept.values() for node in replicas)
    _relieve_brokers(kept, held, share=-(-sum(wanted.values()) // max(1, len(racks))))
    for tp, replicas in kept.items():
        while len(replicas) < wanted[tp]:
            replicas.append(_next_broker(replicas, racks, held))
            held[replicas[-1]] += 1
    leads: Counter[int] = Counter()
    return {tp: _order_by_leads(replicas, leads) for tp, replicas in kept.items()}


def _relieve_brokers(kept: Mapping[TopicPartition, list[int]], held: Counter[int], share: int) -> None:
    """Take replicas from brokers that hold more than their share: one from each partition before a second from any."""
    untouched = dict(kept)
    while any(count > share for count in held.values()):
        for tp, replicas in list(untouched.items()):
            over = [node for node in replicas if held[node] > share]
            if over:
                node = max(over, key=lambda node: (held[node], replicas.index(node)))
                replicas.remove(node)
                held[node] -= 1
                del untouched[tp]
        untouched = {tp: replicas for tp, replicas in kept.items() if replicas}


def _next_broker(chosen: Sequence[int], racks: Mapping[int, str | None], held: Counter[int]) -> int:
    """The broker for one more replica: in an unused rack if possible, then with the fewest replicas, then by id."""
    used = {racks[node] for node in chosen}

    def rank(node: int) -> tuple[bool, int, int]:
        return racks[node] is not None and racks[node] in used, held[node], node

    return min((node for node in racks if node not in chosen), key=rank)


def _order_by_leads(replicas: list[int], leads: Counter[int]) -> list[int]:
    """The same replicas, first the one that is preferred leader of the fewest partitions so far."""
    first = min(replicas, key=lambda node: (leads[node], replicas.index(node)))
    leads[first] += 1
    return [first, *(node for node in replicas if node != first)]


def moved_partitions(present: Assignment, planned: Assignment) -> dict[TopicPartition, Sequence[int]]:
    """The part of a plan that differs from the present assignment."""
    return {tp: list(replicas) for tp, replicas in planned.items() if list(replicas) != list(present[tp])}
