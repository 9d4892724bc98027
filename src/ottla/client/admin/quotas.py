"""Quotas of users, client ids and addresses: list and set them.

Zone: real. Sends DescribeClientQuotas and AlterClientQuotas (KIP-546, KIP-612).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, MalformedReplyError, UsageError, refused_error
from ottla.client.retry import Deadline
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)


class AnyName(Enum):
    """In a filter: every name, and the default."""

    ANY = "any"


class QuotaEntity(NamedTuple):
    """What a quota is for: a user, a client id, both, or an address. "" is not part of it; None: the default, for all
    that have no quota of their own.
    """

    user: str | None = ""
    client_id: str | None = ""
    ip: str | None = ""

    def __str__(self) -> str:
        parts = [f"{kind} {'(default)' if name is None else name}" for kind, name in _parts(self)]
        return ", ".join(parts) or "(nothing)"


class QuotaFilter(NamedTuple):
    """Selects entities by their parts: a name, None (the default), `AnyName.ANY`, or "" (anything or nothing).

    strict: an entity with another part is not selected.
    """

    user: str | AnyName | None = ""
    client_id: str | AnyName | None = ""
    ip: str | AnyName | None = ""
    strict: bool = False


class _Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


_KINDS: Final = {"user": "user", "client_id": "client-id", "ip": "ip"}
"""Names of the parts in the protocol."""
EVERY_QUOTA: Final = QuotaFilter()


class QuotaAdmin:
    """Calls about quotas over a Cluster, which the caller closes. One thread per object.

    Describing needs DESCRIBE_CONFIGS on the cluster, altering ALTER_CONFIGS: CLUSTER_AUTHORIZATION_FAILED.
    """

    __slots__ = ("_cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe_client_quotas(
        self, selected: QuotaFilter = EVERY_QUOTA, deadline: Deadline | None = None
    ) -> dict[QuotaEntity, dict[str, float]]:
        """The quotas of the entities that a filter selects, by Kafka's names. Raises RefusedError."""
        request = DescribeClientQuotasRequest(components=_components(selected), strict=selected.strict)
        answer = self._cluster.send_request(
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            lambda _: request,
            DescribeClientQuotasResponse,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "quotas", answer.error_message),
        )
        found = {
            _entity(each.entity): {value.key: value.value for value in each.values} for each in answer.entries or ()
        }
        return dict(sorted(found.items(), key=lambda row: str(row[0])))

    def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        deadline: Deadline | None = None,
    ) -> dict[QuotaEntity, ClientError | None]:
        """Set quotas by Kafka's names (`producer_byte_rate` …); a value of None removes one. None for each entity
        whose changes were all made.

        INVALID_REQUEST: an unknown quota, one that the entity cannot have, or a value that is not positive.
        """
        request = AlterClientQuotasRequest(
            entries=[_entry(entity, values) for entity, values in changes.items()], validate_only=validate_only
        )
        answer = self._cluster.send_request(
            ApiKey.ALTER_CLIENT_QUOTAS, lambda _: request, AlterClientQuotasResponse, deadline=deadline
        )
        results: dict[QuotaEntity, ClientError | None] = {}
        for each in answer.entries:
            entity = _entity(each.entity)
            results[entity] = refused_error(each.error_code, f"quotas of {entity}", each.error_message)
        missing = [entity for entity in changes if entity not in results]
        if missing:
            raise MalformedReplyError(f"the response to AlterClientQuotas has no result for {missing[0]}")
        return {entity: results[entity] for entity in changes}


def _parts(entity: QuotaEntity) -> list[tuple[str, str | None]]:
    """(kind in the protocol, name) of the parts that the entity has."""
    return [(_KINDS[field], name) for field, name in entity._asdict().items() if name != ""]


def _components(selected: QuotaFilter) -> list[DescribeClientQuotasRequest.ComponentData]:
    components = []
    for field, kind in _KINDS.items():
        name = getattr(selected, field)
        if name == "":
            continue
        match = _Match.DEFAULT if name is None else _Match.ANY if name is AnyName.ANY else _Match.EXACT
        components.append(
            DescribeClientQuotasRequest.ComponentData(
                entity_type=kind, match_type=match, match=name if match is _Match.EXACT else None
            )
        )
    return components


def _entry(entity: QuotaEntity, values: Mapping[str, float | None]) -> AlterClientQuotasRequest.EntryData:
    parts = _parts(entity)
    if not parts:
        raise UsageError("a quota needs a user, a client id or an address", "Name one of them, or None for the default")
    return AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[
            AlterClientQuotasRequest.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in values.items()
        ],
    )


def _entity(
    parts: Iterable[DescribeClientQuotasResponse.EntityData | AlterClientQuotasResponse.EntityData],
) -> QuotaEntity:
    """Raises MalformedReplyError for a part of an unknown kind."""
    fields = {kind: field for field, kind in _KINDS.items()}
    found: dict[str, str | None] = {}
    for part in parts:
        if part.entity_type not in fields:
            raise MalformedReplyError(f"the response has quotas for {part.entity_type[:100]!r}, which is unknown")
        found[fields[part.entity_type]] = part.entity_name
    return QuotaEntity(**found)
