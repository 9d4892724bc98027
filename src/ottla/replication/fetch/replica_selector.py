"""Chooses the replica that a consumer reads from (KIP-392).

Zone: pure. The choice only; the partition knows the in-sync replicas, and the cluster the racks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ottla.config.rows import ConfigError


class ReplicaView(NamedTuple):
    """A replica that has the offset that the consumer requests."""

    node_id: int
    end_offset: int
    caught_up_ns: int
    rack: str | None


ReplicaSelector = Callable[[int, Sequence[ReplicaView], str], int]
"""(leader, replicas with the leader among them, the consumer's rack) → node id."""


def rack_aware(leader: int, replicas: Sequence[ReplicaView], rack: str) -> int:
    """The leader if it is in the consumer's rack or no replica is; else the replica there with the largest end offset.

    Ties go to the replica that was caught up last.
    """
    near = [each for each in replicas if rack and each.rack == rack]
    if not near or any(each.node_id == leader for each in near):
        return leader
    return max(near, key=lambda each: (each.end_offset, each.caught_up_ns, each.node_id)).node_id


_SELECTORS: Final[dict[str, ReplicaSelector | None]] = {
    "": None,
    "org.apache.kafka.common.replica.LeaderSelector": None,
    "org.apache.kafka.common.replica.RackAwareReplicaSelector": rack_aware,
}


def selector_named(name: str | None) -> ReplicaSelector | None:
    """The selector of replica.selector.class; None: consumers read from the leader. Raises ConfigError."""
    try:
        return _SELECTORS[name or ""]
    except KeyError:
        known = ", ".join(each for each in _SELECTORS if each)
        raise ConfigError("replica.selector.class", f"must be empty or one of {known}; not {name!r}") from None
