"""ListGroups, DescribeGroups, DeleteGroups: groups as an administrator sees them.

Zone: deterministic.

Version notes. ListGroups 4 filters by state (KIP-518), 5 by type (KIP-848); filters ignore case.
DescribeGroups 6 returns an error for a group that does not exist; older versions return a group in the state Dead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Final, TypeVar

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.groups.commands import DeleteGroup, Describe
from ottla.groups.group import Group, GroupState
from ottla.groups.groups import Groups
from ottla.requests import NOT_ASKED, Context, InPieces, Parts, denied_error, handles
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

T = TypeVar("T")

_NOT_FOUND_VERSION = 6
MAX_FILTERS = 50_000
"""The most names in one filter of a request."""
_CLASSIC = "classic"
_STATES = tuple(state.value.lower() for state in GroupState)
_PIECE: Final = 500
"""The number of groups in one piece of a ListGroups response."""


class GroupAdminHandlers:
    """Handlers of the requests that tools send."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    @handles(
        ApiKey.LIST_GROUPS,
        0,
        5,
        resource="Group",
        operation="Describe",
        also=(("Cluster", "Describe"),),
        undivided="its arrays are filters of at most `MAX_FILTERS` names",
    )
    def list_groups(self, context: Context, request: ListGroupsRequest) -> ListGroupsResponse | InPieces:
        """List the groups of this broker. While a shard is loading, the list has COORDINATOR_LOAD_IN_PROGRESS.

        Without Describe on the cluster, it has only the groups that the client may describe.
        """
        states = _known_names(request.states_filter, _STATES)
        types = _known_names(request.types_filter, (_CLASSIC,))
        # As in Kafka: the groups that are loaded are listed beside the error, and clients ask again.
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._groups.is_loading else ErrorCode.NONE
        groups: list[Group] = []
        # A filter of types that are all unknown matches no group; no filter matches all.
        if types is None or types:
            for shard in self._groups.shards():
                groups += shard.groups.values()
        sees_all = context.is_allowed(Operation.DESCRIBE, ResourceType.CLUSTER, logs=False)
        pieces = _list_pieces(groups, states, code, None if sees_all else context)
        return next(pieces) if len(groups) <= _PIECE else InPieces(("groups",), pieces)

    @handles(
        ApiKey.DESCRIBE_GROUPS,
        0,
        6,
        resource="Group",
        operation="Describe",
        parts=Parts(cost_us=40, request=(("groups",),), response=(("groups",),), once=str),
    )
    def describe_groups(self, context: Context, request: DescribeGroupsRequest) -> None:
        """Describe the state and the members of groups."""
        names = list(dict.fromkeys(request.groups))
        found: dict[str, DescribeGroupsResponse.DescribedGroup] = {}
        asked = request.include_authorized_operations

        def on_response(group_id: str, outcome: Group | ApiError | None) -> None:
            row = found[group_id] = _description_row(group_id, outcome, context.api_version)
            row.authorized_operations = NOT_ASKED
            if asked and not row.error_code:
                row.authorized_operations = context.authorized_operations(ResourceType.GROUP, group_id)
            # Shards answer in any order, some only after their commit: the last one sends the rows in order.
            if len(found) == len(names):
                context.send_reply(DescribeGroupsResponse(groups=[found[name] for name in names]))

        for name in names:
            if context.is_allowed(Operation.DESCRIBE, ResourceType.GROUP, name):
                self._groups.submit_command(Describe(_for_group(on_response, name), name))
            else:
                on_response(name, denied_error(ResourceType.GROUP))
        if not names:
            context.send_reply(DescribeGroupsResponse())

    @handles(
        ApiKey.DELETE_GROUPS,
        0,
        3,
        resource="Group",
        operation="Delete",
        parts=Parts(cost_us=80, request=(("groups_names",),), response=(("results",),), once=str),
    )
    def delete_groups(self, context: Context, request: DeleteGroupsRequest) -> None:
        """Delete groups without members, together with their offsets."""
        names = list(dict.fromkeys(request.groups_names))
        deletion = _Deletion(self._groups, context, names)
        for name in names:
            deletion.begin_deletion(name)
        if not names:
            context.send_reply(DeleteGroupsResponse())


class _Deletion:
    """A DeleteGroups request in progress."""

    def __init__(self, groups: Groups, context: Context, names: list[str]) -> None:
        self._groups = groups
        self._context = context
        self._names = names
        self._codes: dict[str, ErrorCode] = {}

    def begin_deletion(self, group_id: str) -> None:
        """Delete a group, or its next part."""
        if not self._context.is_allowed(Operation.DELETE, ResourceType.GROUP, group_id):
            self._on_deleted(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            return
        self._groups.submit_command(DeleteGroup(partial(self._on_deleted, group_id), group_id))

    def _on_deleted(self, group_id: str, outcome: ErrorCode | ApiError | None) -> None:
        if outcome is None:
            # The group has more offsets than one decision deletes: the next part has a turn of its own.
            self._groups.coordinator.run_soon(lambda: self.begin_deletion(group_id))
            return
        self._codes[group_id] = outcome.code if isinstance(outcome, ApiError) else outcome
        if len(self._codes) == len(self._names):
            rows = [_deletion_row(name, self._codes[name]) for name in self._names]
            self._context.send_reply(DeleteGroupsResponse(results=rows))


def _for_group(answered: Callable[[str, T], None], group_id: str) -> Callable[[T], None]:
    return lambda outcome: answered(group_id, outcome)


def _deletion_row(group_id: str, code: ErrorCode) -> DeleteGroupsResponse.DeletableGroupResult:
    result = DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code)
    if code:
        result.error_message = f"{code.name.lower().replace('_', ' ')}: {group_id[:200]!r}"
    return result


def _description_row(
    group_id: str, outcome: Group | ApiError | None, version: int
) -> DescribeGroupsResponse.DescribedGroup:
    row = DescribeGroupsResponse.DescribedGroup(group_id=group_id)
    if isinstance(outcome, ApiError):
        row.error_code = outcome.code
        row.error_message = outcome.message
    elif outcome is None:
        # Before version 6 a missing group is a dead one without an error (KIP-1043).
        row.group_state = GroupState.DEAD.value
        if version >= _NOT_FOUND_VERSION:
            row.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            row.error_message = f"there is no group {group_id[:200]!r}"
    else:
        _fill_description(row, outcome)
    return row


def _fill_description(row: DescribeGroupsResponse.DescribedGroup, group: Group) -> None:
    """Fill a row. Metadata and assignments are shown only in a stable group, as Kafka does."""
    stable = group.state is GroupState.STABLE
    row.group_state = group.state.value
    row.protocol_type = group.protocol_type or ""
    row.protocol_data = group.protocol or "" if stable else ""
    row.members = [
        DescribeGroupsResponse.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata_for(group.protocol) if stable else b"",
            member_assignment=member.assignment if stable else b"",
        )
        for member in group.members.values()
    ]


def _known_names(names: list[str], known: Iterable[str]) -> set[str] | None:
    """The known names that a filter contains, in any case; None: the filter is empty and matches everything.

    Raises ApiError INVALID_REQUEST for a filter with too many names: it is evaluated in one turn.
    """
    if len(names) > MAX_FILTERS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"a filter may have {MAX_FILTERS} names, not {len(names)}")
    wanted = set(known)
    return {low for name in names if (low := name.lower()) in wanted} if names else None


def _may_describe(context: Context, group_id: str) -> bool:
    """Whether a group is shown in a list."""
    return context.is_allowed(Operation.DESCRIBE, ResourceType.GROUP, group_id, logs=False)


def _list_pieces(
    groups: list[Group], states: set[str] | None, code: ErrorCode, only_for: Context | None
) -> Generator[ListGroupsResponse, None, None]:
    """The response in pieces of `_PIECE` groups; at least one. `only_for`: leave out what it may not describe."""
    for begin in range(0, max(1, len(groups)), _PIECE):
        listed = [
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=_CLASSIC,
            )
            for group in groups[begin : begin + _PIECE]
            if states is None or group.state.value.lower() in states
            if only_for is None or _may_describe(only_for, group.group_id)
        ]
        yield ListGroupsResponse(error_code=code, groups=listed)
