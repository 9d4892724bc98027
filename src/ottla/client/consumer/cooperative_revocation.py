"""Partitions between two owners, as the leader of a cooperative group knows them.

Zone: pure. Under the cooperative protocol (KIP-429) a partition that is to change hands belongs to nobody until its
owner has given it up and joined again. An owner that is started anew as the same static member (KIP-345) in between
has nothing to give up, and joins without a rebalance; the partition would stay with nobody. So the leader remembers
what it has left over, and when somebody should have joined by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ottla.client.consumer.protocol import Subscription
from ottla.types import TopicPartition

NEVER: Final = float("inf")


class CooperativeRevocation:
    """What one generation's assignment has left over."""

    def __init__(self) -> None:
        self.due = NEVER
        """When the leader should ask for a rebalance itself; seconds of the member's clock."""
        self._left: frozenset[TopicPartition] = frozenset()

    def clear(self) -> None:
        """Another generation begins."""
        self.due, self._left = NEVER, frozenset()

    def assigned(
        self, members: Mapping[str, Subscription], assignment: Mapping[str, Iterable[TopicPartition]], back: str = ""
    ) -> None:
        """This member assigns `assignment`: what `members` had and nobody gets is left over.

        back: its member id if it has come back as a static member and assigns nothing (KIP-814); `assignment` is what
        it would be. It does not know what it left over before, so that is all that nobody has had for sure.
        """
        given = {tp for partitions in assignment.values() for tp in partitions}
        had = {member: frozenset(each.owned) for member, each in members.items()}
        everything = given.union(*had.values())
        kept = frozenset().union(*(owned for member, owned in had.items() if member != back)) if back else given
        self._left = frozenset(everything - kept)

    def on_partitions_taken(self, own: Iterable[TopicPartition], due: float) -> None:
        """This member has got `own`. due: when those who give something up have done it."""
        self._left -= frozenset(own)
        self.due = due if self._left else NEVER
