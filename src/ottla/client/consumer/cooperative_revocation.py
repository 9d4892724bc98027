"""Partitions that a cooperative group has left unassigned until their owners revoke them; for the group's leader.

Zone: pure. Under the cooperative protocol (KIP-429) a partition that moves stays unassigned until its owner has given
it up and joined again. If the owner restarts meanwhile as the same static member (KIP-345), it has nothing to give up
and joins without a rebalance; the partition would stay unassigned for ever. So the leader records which partitions it
left unassigned, and the time by which their owners should have joined again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ottla.client.consumer.protocol import Subscription
from ottla.types import TopicPartition

NEVER: Final = float("inf")


class CooperativeRevocation:
    """The partitions that one generation's assignment left unassigned."""

    def __init__(self) -> None:
        self.due = NEVER
        """When the leader should ask for a rebalance; seconds of the member's clock."""
        self._left: frozenset[TopicPartition] = frozenset()

    def reset_generation(self) -> None:
        """Forget the last generation."""
        self.due, self._left = NEVER, frozenset()

    def on_assignment(
        self, members: Mapping[str, Subscription], assignment: Mapping[str, Iterable[TopicPartition]], back: str = ""
    ) -> None:
        """Record the leader's `assignment`: partitions that `members` had and no member gets are unassigned.

        back: its member id if it is a restarted static member, which must not assign (KIP-814); `assignment` is only
        computed then. It does not know what it left unassigned before its restart, so every partition counts that no
        other member owns.
        """
        given = {tp for partitions in assignment.values() for tp in partitions}
        had = {member: frozenset(each.owned) for member, each in members.items()}
        everything = given.union(*had.values())
        kept = frozenset().union(*(owned for member, owned in had.items() if member != back)) if back else given
        self._left = frozenset(everything - kept)

    def on_partitions_taken(self, own: Iterable[TopicPartition], due: float) -> None:
        """The leader itself got `own`. due: when other members should have revoked the rest and joined again."""
        self._left -= frozenset(own)
        self.due = due if self._left else NEVER
