"""What `ottla group` shows: committed offsets beside the ends of their partitions, and the targets of a reset.

Zone: real. Asks a cluster through the client; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.cli.views.output import Json
from ottla.errors import ErrorCode
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.offset_exports import GroupPosition
    from ottla.cli.reading.offset_grammar import Bound
    from ottla.client import Admin, ClientError, Cluster
    from ottla.client.admin.groups import GroupAdmin, GroupMember, GroupView
    from ottla.client.positions import OffsetAndMetadata

K = TypeVar("K")


class PartitionLag(NamedTuple):
    """One partition of a group. Offsets and lag are None where they are not known."""

    tp: TopicPartition
    offset: int | None
    end: int | None
    member: GroupMember | None
    """The owner; None for a partition that several members of a share group have."""
    undone: int | None = None
    """The records that a share group has not done, as its coordinator counts them: they are done in any order."""

    @property
    def lag(self) -> int | None:
        """How many offsets there are between the group's position and the end; in a share group, records not done."""
        if self.undone is not None:
            return self.undone
        return None if self.offset is None or self.end is None else max(0, self.end - self.offset)

    def document(self) -> Json:
        """The JSON form."""
        member = self.member
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "current_offset": self.offset,
            "log_end_offset": self.end,
            "lag": self.lag,
            "consumer_id": None if member is None else member.member_id,
            "host": None if member is None else member.host,
            "client_id": None if member is None else member.client_id,
        }

    def table_row(self, group_id: str) -> tuple[object, ...]:
        """A row of the table."""
        member = self.member
        who = (None, None, None) if member is None else (member.member_id, member.host, member.client_id)
        return group_id, self.tp.topic, self.tp.partition, self.offset, self.end, self.lag, *who


class GroupState(NamedTuple):
    """A group and its positions."""

    view: GroupView
    partitions: list[PartitionLag]

    @property
    def lag(self) -> int:
        """The lag of all partitions together."""
        return sum(each.lag or 0 for each in self.partitions)

    @property
    def worst(self) -> int:
        """The largest lag of a partition."""
        return max((each.lag or 0 for each in self.partitions), default=0)

    def document(self) -> dict[str, Json]:
        """The JSON form."""
        view = self.view
        return {
            "group": view.group_id,
            "state": view.state,
            "protocol_type": view.protocol_type,
            "protocol": view.protocol,
            "coordinator": view.coordinator,
            "group_epoch": view.group_epoch,
            "assignment_epoch": view.assignment_epoch,
            "lag": self.lag,
            "members": [_member_document(member) for member in view.members],
            "partitions": [each.document() for each in self.partitions],
        }


def _member_document(member: GroupMember) -> Json:
    return {
        "consumer_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "partitions": [str(tp) for tp in member.assignment],
        "member_epoch": member.member_epoch,
        "target_partitions": [str(tp) for tp in member.target_assignment],
    }


def read_group(cluster: Cluster, group_id: str) -> GroupState:
    """A group of consumers or a share group, with its positions and lag. Raises ClientError."""
    from ottla.client import Admin, ClientError, RefusedError
    from ottla.client.admin.groups import GroupAdmin

    groups = GroupAdmin(cluster)
    try:
        view = groups.describe_group(group_id)
    except RefusedError as error:
        # Groups of consumers are looked up first: few groups are of another type.
        shared = _read_share_group(cluster, group_id) if error.code is ErrorCode.GROUP_ID_NOT_FOUND else None
        if shared is None:
            raise
        return shared
    offsets = groups.group_offsets(group_id)
    owners = {tp: member for member in view.members for tp in member.assignment}
    # Partitions with a committed offset, and assigned ones without: their lag is unknown, but they have an owner.
    wanted = sorted({*offsets, *owners})
    ends = _read_ends(Admin(cluster), wanted)
    rows = []
    for tp in wanted:
        found = offsets.get(tp)
        offset = None if found is None or isinstance(found, ClientError) else found.offset
        rows.append(PartitionLag(tp, offset, ends.get(tp), owners.get(tp)))
    return GroupState(view, rows)


def _read_ends(admin: Admin, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The ends of those logs whose end can be read."""
    from ottla.client import LATEST, ClientError

    found = admin.list_offsets(dict.fromkeys(partitions, LATEST)) if partitions else {}
    return {tp: end.offset for tp, end in found.items() if not isinstance(end, ClientError)}


def _read_share_group(cluster: Cluster, group_id: str) -> GroupState | None:
    """A share group; None if the cluster has no share group of that name. Raises ClientError."""
    from ottla.client import Admin, RefusedError, UnsupportedVersionError
    from ottla.client.admin.groups import GroupMember, GroupView
    from ottla.client.admin.share_groups import ShareGroupAdmin, ShareOffset

    shares = ShareGroupAdmin(cluster)
    try:
        group = shares.describe_share_group(group_id)
    except UnsupportedVersionError:
        return None
    except RefusedError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return None
    members = tuple(
        GroupMember(each.member_id, None, each.client_id, each.host, each.assignment, each.member_epoch)
        for each in group.members
    )
    offsets = shares.share_group_offsets(group_id)
    wanted = sorted({*offsets, *(tp for member in members for tp in member.assignment)})
    ends = _read_ends(Admin(cluster), wanted)
    rows = []
    for tp in wanted:
        owners = [member for member in members if tp in member.assignment]
        owner = owners[0] if len(owners) == 1 else None
        if isinstance(found := offsets.get(tp), ShareOffset):
            undone = found.lag if found.lag >= 0 else None
            rows.append(PartitionLag(tp, found.start_offset, ends.get(tp), owner, undone))
        else:
            rows.append(PartitionLag(tp, None, ends.get(tp), owner))
    epochs = (group.group_epoch, group.assignment_epoch)
    view = GroupView(group_id, group.state, "share", "", group.coordinator, members, *epochs)
    return GroupState(view, rows)


class OffsetChange(NamedTuple):
    """A change of a committed offset; old: None where nothing is committed."""

    group: str
    tp: TopicPartition
    old: int | None
    new: OffsetAndMetadata


def plan_import(
    groups: GroupAdmin, admin: Admin, positions: Iterable[GroupPosition], on_moved: Callable[[str], object]
) -> dict[str, list[OffsetChange]]:
    """The changes of each group that the positions of a file make. Raises ClientError before anything is changed.

    on_moved: gets a sentence for each offset outside of its log, which is moved to the log's nearest end.
    """
    from ottla.client import ClientError
    from ottla.client.positions import OffsetAndMetadata

    planned: dict[str, list[OffsetChange]] = {}
    rows = list(positions)
    inside = _inside_logs(admin, {each.tp for each in rows})
    for group, tp, offset, metadata in rows:
        new = inside(tp, offset)
        if new != offset:
            on_moved(f"offset {offset} of {tp} is outside of its log: using {new}")
        planned.setdefault(group or "", []).append(
            OffsetChange(group or "", tp, None, OffsetAndMetadata(new, metadata=metadata))
        )
    for group, changes in planned.items():
        current = {tp: at.offset for tp, at in groups.group_offsets(group).items() if not isinstance(at, ClientError)}
        planned[group] = [each._replace(old=current.get(each.tp)) for each in changes]
    return planned


def _inside_logs(admin: Admin, places: Iterable[TopicPartition]) -> Callable[[TopicPartition, int], int]:
    """A function that moves an offset to the nearest end of its log. Raises ClientError."""
    from ottla.client import EARLIEST, LATEST
    from ottla.client.errors import values_of

    starts = values_of(admin.list_offsets(dict.fromkeys(places, EARLIEST)))
    ends = values_of(admin.list_offsets(dict.fromkeys(places, LATEST)))
    return lambda tp, offset: min(max(offset, starts[tp].offset), ends[tp].offset)


def parse_topics(words: Iterable[str]) -> dict[str, list[int] | None]:
    """`topic` or `topic:0,1` words: topic → partitions, None for all. Raises ValueError."""
    wanted: dict[str, list[int] | None] = {}
    for word in words:
        topic, colon, numbers = word.partition(":")
        wanted[topic] = [int(number) for number in numbers.split(",")] if colon else None
    return wanted


def partitions_of(
    admin: Admin, wanted: Mapping[str, list[int] | None], committed: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """The partitions to reset: those of the named topics, else all for which the group has committed offsets."""
    if not wanted:
        return sorted(committed)
    found = admin.describe_topics(list(wanted))
    places: list[TopicPartition] = []
    for topic, numbers in wanted.items():
        view = found[topic]
        if isinstance(view, Exception):
            raise view
        places += [TopicPartition(topic, each) for each in numbers or sorted(view.partitions)]
    return places


def reset_targets(
    admin: Admin, bounds: Mapping[TopicPartition, Bound], current: Mapping[TopicPartition, int], shift: int | None
) -> dict[TopicPartition, int]:
    """The new offset of each partition: its bound, or its present offset plus `shift`; always inside the log.

    Raises ClientError when the ends of a partition cannot be read.
    """
    from ottla.client import EARLIEST, LATEST, ClientError

    def offsets(timestamp: int, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = admin.list_offsets(dict.fromkeys(places, timestamp))
        for outcome in found.values():
            if isinstance(outcome, ClientError):
                raise outcome
        return {tp: each.offset for tp, each in found.items() if not isinstance(each, ClientError)}

    starts, ends = offsets(EARLIEST, bounds), offsets(LATEST, bounds)
    found: dict[TopicPartition, int] = {}
    for tp, bound in bounds.items():
        if shift is not None:
            number = current.get(tp, starts[tp]) + shift
            found[tp] = min(max(number, starts[tp]), ends[tp])
        else:
            found[tp] = bound.resolve_offset(starts[tp], ends[tp], _at_time(offsets, tp, ends[tp]))
    return found


def _at_time(
    offsets: Callable[[int, Iterable[TopicPartition]], dict[TopicPartition, int]], tp: TopicPartition, end: int
) -> Callable[[int], int]:
    def offset(timestamp: int) -> int:
        found = offsets(timestamp, [tp])[tp]
        return end if found < 0 else found

    return offset


_IN_USE = frozenset(
    {
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""Error codes of coordinators for a change to a group that has members."""
_MEMBERS_NAMED = 5


def explain_use(
    groups: GroupAdmin, group_id: str, results: Mapping[K, ClientError | None]
) -> dict[K, Exception | None]:
    """`results`, with the members and the next step in each error that means that the group has members."""
    from ottla.client import ClientError, RefusedError

    refused = [each for each in results.values() if isinstance(each, RefusedError) and each.code in _IN_USE]
    if not refused:
        return dict(results)
    # The members are read only for the message: without them the broker's error is still right.
    try:
        members = groups.describe_group(group_id).members
    except ClientError:
        members = ()
    if not members:
        return dict(results)
    used = _in_use(group_id, members)
    return {key: used if error in refused else error for key, error in results.items()}


def _in_use(group_id: str, members: Sequence[GroupMember]) -> Exception:
    from ottla.cli.failure import CommandFailed

    named = ", ".join(f"{each.client_id} at {each.host}" for each in members[:_MEMBERS_NAMED])
    more = f" and {len(members) - _MEMBERS_NAMED} more" if len(members) > _MEMBERS_NAMED else ""
    return CommandFailed(
        f"group {group_id} is in use by {len(members)} member{'s' if len(members) > 1 else ''}: {named}{more}. "
        f"Stop these consumers, then run this again; to see them: ottla group describe {group_id} --members",
        details={
            "group": group_id,
            "members": [
                {"consumer_id": each.member_id, "client_id": each.client_id, "host": each.host} for each in members
            ],
        },
    )
