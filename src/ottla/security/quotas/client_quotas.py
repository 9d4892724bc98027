"""The quotas that are set, and which of them is that of a client.

Zone: deterministic. Of the entities for which a quota may be set, the first of these that has one decides, as in Kafka:

1. the client id of the user, 2. all client ids of the user, 3. the user, 4. the client id of all users, 5. all client
ids of all users, 6. all users, 7. the client id, 8. all client ids.

With 1, 2, 4 and 5 each client id of each user has the rate for itself. With 3 and 6 all connections of a user share it;
with 7 and 8 all connections with the client id. "All" means each one that has no quota of its own. A client without a
client id counts as one with an empty one; in Kafka it escapes from 5 and 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from math import isfinite
from typing import Final, NamedTuple

from ottla.config.rows import INT_MAX, LONG_MAX
from ottla.znodes.entity_nodes import Entity


class Quota(Enum):
    """The kinds of quotas, by their names among the settings of an entity."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


_CLIENT_QUOTAS: Final = frozenset(Quota) - {Quota.CONNECTION_CREATION_RATE}
_LARGEST: Final = {
    Quota.PRODUCER_BYTE_RATE: (LONG_MAX, "LONG"),
    Quota.CONSUMER_BYTE_RATE: (LONG_MAX, "LONG"),
    Quota.CONNECTION_CREATION_RATE: (INT_MAX, "INT"),
}
"""Quotas that are whole numbers, with their largest value. The others are doubles."""
_EPSILON: Final = 1e-6


def fault_of_quota(entity: Entity, name: str, value: float) -> str:
    """Why AlterClientQuotas cannot set this, with Kafka's texts; empty if it can. The error is INVALID_REQUEST.

    Unlike Kafka it refuses NaN, which Kafka stores, and which then limits nothing.
    """
    allowed = {Quota.CONNECTION_CREATION_RATE} if entity.ip != "" else _CLIENT_QUOTAS
    quota = next((each for each in allowed if each.value == name), None)
    if quota is None:
        return f"Invalid configuration key {name}"
    if not value > 0:
        return f"Quota {name} must be greater than 0"
    if quota in _LARGEST:
        largest, kind = _LARGEST[quota]
        if value > largest:
            return f"Proposed value for {name} is too large for a {kind}."
        if abs(value - _whole_number_of(value)) > _EPSILON:
            return f"{name} cannot be a fractional value."
    return ""


def quota_text(quota: Quota, value: float) -> str:
    """A quota as it is stored among the settings of its entity."""
    return str(_whole_number_of(value)) if quota in _LARGEST else str(value)


def _whole_number_of(value: float) -> int:
    """The whole number that Kafka takes a double for."""
    return int(value + _EPSILON)


def parse_quotas(config: Mapping[str, str]) -> tuple[dict[Quota, float], list[str]]:
    """The quotas among the settings of an entity, and the names of those that are ignored.

    An unreadable value, zero, a negative number and NaN limit nothing, as in Kafka. Other settings (credentials) are
    neither.
    """
    found, ignored = {}, []
    for quota in Quota:
        text = config.get(quota.value)
        if text is None:
            continue
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if value > 0 and isfinite(value):
            found[quota] = value
        else:
            ignored.append(quota.value)
    return found, ignored


class Limit(NamedTuple):
    """The quota of a client."""

    shared_by: tuple[str, str]
    """(user, client id) of the rate that it counts for; "" means any."""
    bound: float | None
    """None: not limited."""


class ClientQuotas:
    """All quotas that are set."""

    def __init__(self) -> None:
        self._bounds: dict[Quota, dict[Entity, float]] = {quota: {} for quota in Quota}
        self._by_entity: dict[Entity, dict[Quota, float]] = {}
        self.generation = 0
        """Rises with every change; a connection keeps its limits until then."""

    def replace_entity(self, entity: Entity, quotas: Mapping[Quota, float]) -> None:
        """Make these the only quotas of an entity."""
        # Indexed twice: by quota for `find_limit`, which any request may need, and by entity to describe them.
        for quota, bounds in self._bounds.items():
            if quota in quotas:
                bounds[entity] = quotas[quota]
            else:
                bounds.pop(entity, None)
        if quotas:
            self._by_entity[entity] = dict(quotas)
        else:
            self._by_entity.pop(entity, None)
        self.generation += 1

    def is_set(self, quota: Quota) -> bool:
        """Whether any entity has a quota of this kind."""
        return bool(self._bounds[quota])

    def quotas_of(self, entity: Entity) -> Mapping[Quota, float]:
        """The quotas that are set for an entity itself, for DescribeClientQuotas."""
        return self._by_entity.get(entity, {})

    def entities(self) -> list[Entity]:
        """All entities with quotas, each once."""
        return list(self._by_entity)

    def find_limit(self, quota: Quota, user: str, client_id: str) -> Limit:
        """The quota of a client."""
        bounds = self._bounds[quota]
        if bounds:
            for entity, shared_by in _entities_of(user, client_id):
                bound = bounds.get(entity)
                if bound is not None:
                    return Limit(shared_by, bound)
        return Limit(("", client_id), None)

    def find_address_limit(self, address: str) -> float | None:
        """How many connections per second an address may create; None: not limited."""
        bounds = self._bounds[Quota.CONNECTION_CREATION_RATE]
        return bounds.get(Entity(ip=address), bounds.get(Entity(ip=None)))


def _entities_of(user: str, client_id: str) -> Iterator[tuple[Entity, tuple[str, str]]]:
    """The entities that may have the quota of a client, first the one that precedes, and who shares the rate.

    An empty name is that of no entity: there it means that the user or the client id is not part of it.
    """
    if user and client_id:
        yield Entity(user=user, client_id=client_id), (user, client_id)
    if user:
        yield Entity(user=user, client_id=None), (user, client_id)
        yield Entity(user=user), (user, "")
    if client_id:
        yield Entity(user=None, client_id=client_id), (user, client_id)
    yield Entity(user=None, client_id=None), (user, client_id)
    yield Entity(user=None), (user, "")
    if client_id:
        yield Entity(client_id=client_id), ("", client_id)
    yield Entity(client_id=None), ("", client_id)
