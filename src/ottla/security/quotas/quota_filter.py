"""The filter of DescribeClientQuotas: which entities a request is about (KIP-546).

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.errors import ApiError, ErrorCode
from ottla.znodes.entity_nodes import Entity

TYPES: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}
"""The types of the protocol, and the fields of `Entity`."""
_SHOWN: Final = 100


class MatchType(IntEnum):
    """How a component matches a name."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class Component(NamedTuple):
    """One component of a filter."""

    entity_type: str
    match_type: int
    match: str | None


class QuotaFilter:
    """A filter that was checked."""

    def __init__(self, components: Sequence[Component], strict: bool) -> None:
        """Raises ApiError INVALID_REQUEST, or UNSUPPORTED_VERSION for other types of entities, as Kafka."""
        self._strict = strict
        self._by_field: dict[str, Component] = {}
        for each in components:
            field = _field_of(each)
            if field in self._by_field:
                raise _invalid(f"Duplicate {each.entity_type} filter component entity type")
            self._by_field[field] = each
        if "ip" in self._by_field and len(self._by_field) > 1:
            raise _invalid(
                "Invalid entity filter component combination, IP filter component should not be used with user or "
                "clientId filter component."
            )

    def matches(self, entity: Entity) -> bool:
        """Whether an entity is wanted.

        A component excludes entities without that part. A part without a component is excluded if the filter is strict.
        """
        return all(self._matches_part(field, getattr(entity, field)) for field in Entity._fields)

    def _matches_part(self, field: str, name: str | None) -> bool:
        component = self._by_field.get(field)
        if component is None:
            return name == "" or not self._strict
        if component.match_type == MatchType.EXACT:
            return name == component.match and name != ""
        return name is None if component.match_type == MatchType.DEFAULT else name != ""


def _field_of(component: Component) -> str:
    name = component.entity_type
    if not name:
        raise _invalid("Unexpected empty filter component entity type")
    if name not in TYPES:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{name[:_SHOWN]}' not supported")
    if component.match_type not in tuple(MatchType):
        raise _invalid(f"Unexpected match type: {component.match_type}")
    if component.match_type == MatchType.EXACT and component.match is None:
        raise _invalid("an exact match needs a name")
    return TYPES[name]


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)
