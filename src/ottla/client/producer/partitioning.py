"""The producer's partitioners.

Zone: pure. Random numbers come from a function argument. Source: KIP-480, KIP-794 (uniform sticky, adaptive), Kafka's
RoundRobinPartitioner.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from ottla.client.errors import ConfigError

Partitioner = Callable[[str, bytes | None, bytes | None, Sequence[int], Sequence[int]], int]
"""A partitioner of the application: (topic, key, value, all partitions, partitions with a leader) to a partition. Both
lists are ascending."""

ROUND_ROBIN: Final = "round_robin"
_NAMES: Final = {
    "": "",
    "round_robin": ROUND_ROBIN,
    "RoundRobinPartitioner": ROUND_ROBIN,
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": ROUND_ROBIN,
}


def built_in(name: str) -> str:
    """ROUND_ROBIN, or "" for the default partitioner. Raises ConfigError for an unknown name."""
    if name not in _NAMES:
        raise ConfigError(
            f"partitioner.class={name} is not known",
            "Leave it out, use round_robin, or give the producer a function as `partitioner`",
        )
    return _NAMES[name]


def choose_sticky(partitions: Sequence[int], queued: Sequence[int] | None, below: Callable[[int], int]) -> int:
    """The next sticky partition.

    queued: batches that wait per partition: fewer make it more likely (KIP-794). None: all equally likely.
    below: `below(n)` draws a uniform integer in [0, n).
    """
    if queued is None or len(partitions) < 2:
        return partitions[below(len(partitions))]
    most = max(queued) + 1
    sums = list(accumulate(most - waiting for waiting in queued))
    return partitions[bisect_right(sums, below(sums[-1]))]


class RoundRobin:
    """Sends each record to the next partition of its topic, with a key or without."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(
        self, topic: str, _key: bytes | None, _value: bytes | None, partitions: Sequence[int], led: Sequence[int]
    ) -> int:
        """The next partition with a leader; of all partitions if none has a leader."""
        among = led or partitions
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        return among[turn % len(among)]

    def advance_turns(self, topic: str, rows: int) -> int:
        """The turn of the first of `rows` records; advances by that number."""
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + rows
        return turn


def chosen_partitioner(name: str, given: Partitioner | None) -> Partitioner | None:
    """The partitioner to use instead of keys and load: `given`, the one named by `partitioner.class`, or None.

    Raises ConfigError if both are set, or the name is not known.
    """
    named = built_in(name)
    if named and given is not None:
        raise ConfigError(f"partitioner.class={named} contradicts the argument partitioner", "Leave one of them out")
    return RoundRobin() if named == ROUND_ROBIN else given
