"""DescribeClientQuotas and AlterClientQuotas (KIP-546).

Zone: deterministic. Quotas are set for users, client ids, client ids of users, and addresses. They are stored as Kafka
3.9 stores them, and every broker applies them to the clients that are connected to it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.requests import Context, InPieces, Parts, denied_error, handles
from ottla.security.audit_log import AuditLog
from ottla.security.quotas.client_quotas import ClientQuotas, Quota, fault_of_quota, quota_text
from ottla.security.quotas.entity_quotas import canonical_address
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from ottla.znodes.entity_nodes import Entity, change_path, fault_of_entity_name

PIECE: Final = 500
"""Entities in one piece of a response."""
_TYPES: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}
"""The types of the protocol, and the fields of `Entity`."""
_SHOWN: Final = 100
_Entry = DescribeClientQuotasResponse.EntryData
_Outcome = AlterClientQuotasResponse.EntryData


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


class EntityWriter(Protocol):
    """Changes the settings of entities in the metadata store (`ottla.cluster.config_writer`)."""

    def alter_entity(
        self,
        path: str,
        change: Callable[[Mapping[str, str]], dict[str, str]],
        done: Callable[[ApiError | None], None],
    ) -> None:
        """Change the settings of the entity with this path below /config."""
        ...


class QuotaChange(NamedTuple):
    """One quota to set, or to remove."""

    name: str
    value: float
    remove: bool


class ClientQuotaHandlers:
    """Handles requests about quotas."""

    def __init__(self, quotas: ClientQuotas, writer: EntityWriter, audit: AuditLog) -> None:
        self._quotas = quotas
        self._writer = writer
        self._audit = audit

    @handles(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        0,
        1,
        resource="Cluster",
        operation="DescribeConfigs",
        undivided="a filter has at most three components",
    )
    def describe_client_quotas(
        self, _context: Context, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse | InPieces:
        """Return the quotas of all entities that match the filter."""
        try:
            components = [Component(one.entity_type, one.match_type, one.match) for one in request.components]
            wanted = QuotaFilter(components, request.strict)
        except ApiError as error:
            return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
        entities = self._quotas.entities()
        pieces = self._describe_pieces(wanted, entities)
        return next(pieces) if len(entities) <= PIECE else InPieces(("entries",), pieces)

    def _describe_pieces(
        self, wanted: QuotaFilter, entities: Sequence[Entity]
    ) -> Generator[DescribeClientQuotasResponse, None, None]:
        for begin in range(0, max(1, len(entities)), PIECE):
            found = filter(wanted.matches, entities[begin : begin + PIECE])
            entries = [_described(entity, self._quotas.quotas_of(entity)) for entity in found]
            yield DescribeClientQuotasResponse(error_message=None, entries=entries)

    @handles(
        ApiKey.ALTER_CLIENT_QUOTAS,
        0,
        1,
        resource="Cluster",
        operation="AlterConfigs",
        parts=Parts(cost_us=50, request=(("entries",),), response=(("entries",),)),
        checks_itself=True,
    )
    def alter_client_quotas(self, context: Context, request: AlterClientQuotasRequest) -> None:
        """Set and remove quotas; all those of an entity, or none. validate_only: check them."""
        is_allowed = context.is_allowed(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
        gather: FanIn[_Outcome] = FanIn(lambda entries: context.send_reply(AlterClientQuotasResponse(entries=entries)))
        for entry in request.entries:
            done = context.wrap_step(_outcome_receiver(entry, gather.new_slot()))
            try:
                if not is_allowed:
                    raise denied_error(ResourceType.CLUSTER)
                entity = _entity_of(entry)
                changes = _changes_of(entity, entry)
            except ApiError as error:
                done(error.as_value())
                continue
            if request.validate_only:
                done(None)
            else:
                done = self._with_audit(context, entity, changes, done)
                self._writer.alter_entity(change_path(entity), _change_function(changes), done)
        gather.close_slots()

    def _with_audit(
        self, context: Context, entity: Entity, changes: Sequence[QuotaChange], done: Callable[[ApiError | None], None]
    ) -> Callable[[ApiError | None], None]:
        def receive(outcome: ApiError | None) -> None:
            if outcome is None:
                texts = ", ".join(f"{each.name}={'' if each.remove else each.value}" for each in changes)
                self._audit.log_change(context.peer, "quota", entity=change_path(entity), changes=texts)
            done(outcome)

        return receive


def _described(entity: Entity, quotas: Mapping[Quota, float]) -> _Entry:
    parts = ((kind, getattr(entity, field)) for kind, field in _TYPES.items())
    return _Entry(
        entity=[
            DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
            for kind, name in parts
            if name != ""
        ],
        values=[
            DescribeClientQuotasResponse.ValueData(key=quota.value, value=bound) for quota, bound in quotas.items()
        ],
    )


def _entity_of(entry: AlterClientQuotasRequest.EntryData) -> Entity:
    """The entity of an entry. Raises ApiError INVALID_REQUEST."""
    fields: dict[str, str | None] = {}
    for part in entry.entity:
        field = _TYPES.get(part.entity_type)
        if field is None or field in fields:
            raise _invalid(f"Unhandled client quota entity type: {part.entity_type[:_SHOWN]}")
        fields[field] = _entity_name(part)
    if "ip" in fields and len(fields) > 1:
        raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    if not fields:
        raise _invalid("Invalid client quota entity")
    return Entity(**fields)


def _entity_name(part: AlterClientQuotasRequest.EntityData) -> str | None:
    name = part.entity_name
    if name is None:
        return None
    if not name:
        raise _invalid(f"Empty {part.entity_type} not supported")
    if part.entity_type == "ip":
        try:
            return canonical_address(name)
        except ValueError:
            raise _invalid(f"{name[:_SHOWN]} is not a valid IP address") from None
    fault = fault_of_entity_name(name)
    if fault:
        raise _invalid(fault)
    return name


def _changes_of(entity: Entity, entry: AlterClientQuotasRequest.EntryData) -> list[QuotaChange]:
    """The changes of an entry. Raises ApiError INVALID_REQUEST."""
    changes = [QuotaChange(op.key, op.value, op.remove) for op in entry.ops]
    if len({change.name for change in changes}) != len(changes):
        raise _invalid("a quota is named twice")
    for change in changes:
        # A quota to remove needs a name that can be set, and its value does not count.
        fault = fault_of_quota(entity, change.name[:_SHOWN], 1.0 if change.remove else change.value)
        if fault:
            raise _invalid(fault)
    return changes


def _change_function(changes: Sequence[QuotaChange]) -> Callable[[Mapping[str, str]], dict[str, str]]:
    def change(present: Mapping[str, str]) -> dict[str, str]:
        after = dict(present)
        for each in changes:
            if each.remove:
                after.pop(each.name, None)
            else:
                after[each.name] = quota_text(Quota(each.name), each.value)
        return after

    return change


def _outcome_receiver(
    entry: AlterClientQuotasRequest.EntryData, slot: Callable[[_Outcome], None]
) -> Callable[[ApiError | None], None]:
    entity = [
        AlterClientQuotasResponse.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
        for part in entry.entity
    ]

    def receive(outcome: ApiError | None) -> None:
        if outcome is None:
            slot(_Outcome(error_message=None, entity=entity))
        else:
            slot(_Outcome(error_code=outcome.code, error_message=outcome.message, entity=entity))

    return receive


def _field_of(component: Component) -> str:
    name = component.entity_type
    if not name:
        raise _invalid("Unexpected empty filter component entity type")
    if name not in _TYPES:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{name[:_SHOWN]}' not supported")
    if component.match_type not in tuple(MatchType):
        raise _invalid(f"Unexpected match type: {component.match_type}")
    if component.match_type == MatchType.EXACT and component.match is None:
        raise _invalid("an exact match needs a name")
    return _TYPES[name]


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)
