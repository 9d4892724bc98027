"""The decisions about one connection, kept until an ACL changes.

Zone: deterministic. One entry per resource holds the decisions about all its operations. So the hot path, which asks
for the same topics again and again, costs two look-ups. Produce reads the decisions about topics itself: one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.acls import Operation, ResourceType
from ottla.security.authorization.authorizer import Authorizer

RESOURCES_MAX: Final = 2_000
"""Most cached resources of a type; then they are forgotten. It bounds the memory that a client can occupy."""
RESOURCES_MIN: Final = 64
"""The same, however many connections there are."""
ALL_MAX: Final = 200_000
"""Most cached resources of a type of all connections, each of which may have an equal part."""
NAME_MAX: Final = 249
"""Longer names (groups, transactional ids) are decided each time; a topic's name is never longer."""


class DecisionCache:
    """Decisions for one principal at one host."""

    __slots__ = ("_anywhere", "_authorizer", "_generation", "_masks", "_topics", "host", "principal")

    def __init__(self, authorizer: Authorizer, principal: str, host: str) -> None:
        self._authorizer = authorizer
        self.principal = principal
        self.host = host
        self._generation = authorizer.generation
        self._topics: dict[str, int] = {}
        self._masks: dict[ResourceType, dict[str, int]] = {ResourceType.TOPIC: self._topics}
        self._anywhere: dict[tuple[ResourceType, Operation], bool] = {}

    @property
    def topics(self) -> Mapping[str, int]:
        """The operations that are allowed at topics, as far as they are cached: bit n for operation n.

        To be read in this turn only, because ACLs change. A name that is not in it needs `is_allowed`.
        """
        if self._generation != self._authorizer.generation:
            self._forget_decisions()
        return self._topics

    def is_allowed(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the connection's principal may do this."""
        if self._generation != self._authorizer.generation:
            self._forget_decisions()
        try:
            return self._masks[resource_type][name] >> operation & 1 == 1
        except KeyError:
            return self._decide(resource_type, name) >> operation & 1 == 1

    def is_allowed_anywhere(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there can be a resource of this type at which the operation is allowed."""
        if self._generation != self._authorizer.generation:
            self._forget_decisions()
        found = self._anywhere.get((resource_type, operation))
        if found is None:
            found = self._authorizer.is_allowed_anywhere(self.principal, self.host, operation, resource_type)
            self._anywhere[resource_type, operation] = found
        return found

    def _decide(self, resource_type: ResourceType, name: str) -> int:
        mask = self._authorizer.allowed_operations(self.principal, self.host, resource_type, name)
        if len(name) <= NAME_MAX:
            masks = self._masks.setdefault(resource_type, {})
            if len(masks) >= RESOURCES_MIN and len(masks) >= self._share():
                # All at once: to know the oldest, each look-up would have to note its use.
                masks.clear()
            masks[name] = mask
        return mask

    def _share(self) -> int:
        """How many resources of a type this connection may cache."""
        return min(RESOURCES_MAX, ALL_MAX // max(1, self._authorizer.caches))

    def _forget_decisions(self) -> None:
        self._generation = self._authorizer.generation
        for masks in self._masks.values():
            masks.clear()
        self._anywhere.clear()
