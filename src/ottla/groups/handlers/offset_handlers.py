"""OffsetCommit, OffsetFetch, OffsetDelete: requests to commands, results to responses.

Zone: deterministic.

Version notes. OffsetCommit 0 has no member; 1 has a time per partition; 2-4 a retention time; 6 leader epochs;
7 static members; 9 GROUP_ID_NOT_FOUND; 10 topic ids. OffsetFetch 2 has all offsets of a group, and an error of the
whole response; 7 stable offsets; 8 several groups; 10 topic ids.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.groups.commands import Commit, CommitPartition, DeleteOffsets, FetchOffsets, FoundOffset
from ottla.groups.commits import AllFoundOffsets
from ottla.groups.fetch_answers import FetchOutcome, are_many, old_response, row_of, topics_in_pieces
from ottla.groups.groups import Groups
from ottla.groups.records import Position
from ottla.groups.topic_ids import COMMIT_BY_ID, TopicRef, fill_names, missing_partition_error
from ottla.requests import Context, InPieces, Parts, denied_error, handles
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

_AskedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
_Group = OffsetFetchResponse.OffsetFetchResponseGroup
_Topic = OffsetFetchResponse.OffsetFetchResponseTopics
_Part = OffsetFetchResponse.OffsetFetchResponsePartitions
_GROUP_ERROR_VERSION = 2
_MANY_VERSION = 8
_NO_GROUP_VERSION = 9
"""The version of OffsetCommit with GROUP_ID_NOT_FOUND; older ones get ILLEGAL_GENERATION instead."""


def _by_group(asked: _AskedGroup | OffsetFetchRequest.OffsetFetchRequestTopic) -> object:
    """The key by which a request is deduplicated: each group once. The handler merges the topics of old versions."""
    return asked.group_id if isinstance(asked, _AskedGroup) else id(asked)


def _wanted_partitions(
    topics: Sequence[OffsetFetchRequest.OffsetFetchRequestTopic | OffsetFetchRequest.OffsetFetchRequestTopics] | None,
) -> list[tuple[str, Sequence[int]]] | None:
    """The partitions of a request, each once, so that the response does not grow with repetitions. None: all."""
    if topics is None:
        return None
    wanted: dict[str, dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return [(name, list(partitions)) for name, partitions in wanted.items()]


class OffsetHandlers:
    """Handlers of the requests about committed offsets."""

    def __init__(self, groups: Groups, now_ms: Callable[[], int]) -> None:
        """`now_ms` returns the wall time."""
        self._groups = groups
        self._now_ms = now_ms

    def _partition_exists(self, topic: str, partition: int) -> bool:
        return 0 <= partition < self._groups.topics.partition_count(topic)

    # -- OffsetCommit --------------------------------------------------------------------------------------------------

    @handles(
        ApiKey.OFFSET_COMMIT,
        0,
        10,
        resource="Group",
        operation="Read",
        also=(("Topic", "Read"),),
        parts=Parts(cost_us=20, request=(("topics", "partitions"),), response=(("topics", "partitions"),)),
    )
    def offset_commit(self, context: Context, request: OffsetCommitRequest) -> None:
        """Commit offsets. The response waits until their records are committed. Needs Read on each topic as well."""
        context.check_allowed(Operation.READ, ResourceType.GROUP, request.group_id)
        version = context.api_version
        if version >= COMMIT_BY_ID:
            fill_names(request.topics, self._groups.topics)
        denied = denied_topics(context, Operation.READ, request.topics)
        items = list(self._commit_items(request))
        # Partitions that do not exist, or are denied, get an error each; the others are committed.
        known = [
            item for item in items if item.topic not in denied and self._partition_exists(item.topic, item.partition)
        ]

        def send_response(outcome: Sequence[ErrorCode] | ApiError) -> None:
            codes = codes_for(outcome, len(known), version >= _NO_GROUP_VERSION)
            context.send_reply(_commit_response(request, known, codes, version >= COMMIT_BY_ID, denied))

        if items and not known:
            send_response([])
            return
        self._groups.submit_command(
            Commit(
                send_response,
                request.group_id,
                request.generation_id_or_member_epoch,
                request.member_id,
                request.group_instance_id,
                known,
            )
        )

    def _commit_items(self, request: OffsetCommitRequest) -> Iterator[CommitPartition]:
        now_ms = self._now_ms()
        expire_ms = now_ms + request.retention_time_ms if request.retention_time_ms >= 0 else -1
        for topic in request.topics:
            for each in topic.partitions:
                stamp = now_ms if each.commit_timestamp < 0 else each.commit_timestamp
                position = Position(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                    stamp,
                    min(expire_ms, 2**63 - 1),
                )
                yield CommitPartition(topic.name, each.partition_index, position)

    # -- OffsetFetch ---------------------------------------------------------------------------------------------------

    @handles(
        ApiKey.OFFSET_FETCH,
        0,
        10,
        resource="Group",
        operation="Describe",
        also=(("Topic", "Describe"),),
        parts=Parts(
            cost_us=10,
            request=(("groups", "topics", "partition_indexes"), ("topics", "partition_indexes")),
            response=(("groups", "topics", "partitions"), ("topics", "partitions")),
            once=_by_group,
        ),
    )
    def offset_fetch(self, context: Context, request: OffsetFetchRequest) -> None:
        """Fetch committed offsets. The response waits until all commits that were accepted before are committed.

        Needs Describe on each topic as well.
        """
        if context.api_version >= _MANY_VERSION:
            self._fetch_many(context, request)
            return
        topics = request.topics
        wanted = _wanted_partitions(topics)

        def send_response(outcome: FetchOutcome) -> None:
            context.send_reply(old_response(outcome, wanted or (), context.api_version >= _GROUP_ERROR_VERSION))

        self._fetch_offsets(context, request.group_id, wanted, request.require_stable, send_response)

    def _fetch_offsets(
        self,
        context: Context,
        group_id: str,
        wanted: list[tuple[str, Sequence[int]]] | None,
        require_stable: bool,
        done: Callable[[FetchOutcome], None],
    ) -> None:
        """Fetch offsets of topics that the client may describe. Denied ones get an error, or are left out of all."""
        if not context.is_allowed(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            done(denied_error(ResourceType.GROUP))
            return
        names = [name for name, _ in wanted or ()]
        denied = context.denied_names(Operation.DESCRIBE, ResourceType.TOPIC, names)

        def send_allowed(outcome: FetchOutcome) -> None:
            if isinstance(outcome, AllFoundOffsets) and context.rights is not None:
                outcome.shows = lambda name: context.is_allowed(
                    Operation.DESCRIBE, ResourceType.TOPIC, name, logs=False
                )
            elif denied and not isinstance(outcome, ApiError):
                outcome = [*outcome, *_denied_offsets(wanted or (), denied)]
            done(outcome)

        if denied and wanted is not None:
            allowed = [(name, partitions) for name, partitions in wanted if name not in denied]
            self._groups.submit_command(FetchOffsets(send_allowed, group_id, allowed, require_stable))
        else:
            self._groups.submit_command(FetchOffsets(send_allowed, group_id, wanted, require_stable))

    def _fetch_many(self, context: Context, request: OffsetFetchRequest) -> None:
        by_id = context.api_version >= COMMIT_BY_ID
        gather: FanIn[FetchOutcome] = FanIn(
            lambda outcomes: context.send_reply(self._fetch_response(request.groups, outcomes, by_id))
        )
        for group in request.groups:
            topics = group.topics
            if by_id and topics is not None:
                fill_names(topics, self._groups.topics)
                topics = [topic for topic in topics if topic.name]
            wanted = _wanted_partitions(topics)
            self._fetch_offsets(context, group.group_id, wanted, request.require_stable, gather.new_slot())
        gather.close_slots()

    def _fetch_response(
        self, groups: Sequence[_AskedGroup], outcomes: Sequence[FetchOutcome], by_id: bool
    ) -> OffsetFetchResponse | InPieces:
        pieces = self._response_pieces(groups, outcomes, by_id)
        if are_many(outcomes):
            return InPieces(("groups", "topics", "partitions"), pieces)
        return OffsetFetchResponse(groups=[group for piece in pieces for group in piece.groups])

    def _response_pieces(
        self, groups: Sequence[_AskedGroup], outcomes: Sequence[FetchOutcome], by_id: bool
    ) -> Generator[OffsetFetchResponse, None, None]:
        for group, outcome in zip(groups, outcomes, strict=True):
            name = group.group_id
            if isinstance(outcome, ApiError):
                yield OffsetFetchResponse(groups=[_Group(group_id=name, error_code=outcome.code)])
                continue
            for piece in topics_in_pieces(outcome):
                topics = [_Topic(name=topic, partitions=_partition_rows(found)) for topic, found in piece]
                if by_id:
                    topics = [*self._with_ids(group, topics), *_unknown_topics(group)]
                yield OffsetFetchResponse(groups=[_Group(group_id=name, topics=topics)])

    def _with_ids(self, group: _AskedGroup, topics: list[_Topic]) -> Iterator[_Topic]:
        """Set the ids of topics. A deleted topic is left out, unless the request names its id."""
        asked = {topic.name: topic.topic_id for topic in group.topics or ()}
        for topic in topics:
            topic_id = asked.get(topic.name) or self._groups.topics.id_of(topic.name)
            if topic_id is not None:
                topic.topic_id = topic_id
                yield topic

    # -- OffsetDelete --------------------------------------------------------------------------------------------------

    @handles(
        ApiKey.OFFSET_DELETE,
        0,
        0,
        resource="Group",
        operation="Delete",
        also=(("Topic", "Read"),),
        parts=Parts(cost_us=20, request=(("topics", "partitions"),), response=(("topics", "partitions"),)),
    )
    def offset_delete(self, context: Context, request: OffsetDeleteRequest) -> None:
        """Delete offsets. The response waits until the tombstones are committed."""
        context.check_allowed(Operation.DELETE, ResourceType.GROUP, request.group_id)
        denied = context.denied_names(Operation.READ, ResourceType.TOPIC, (topic.name for topic in request.topics))
        places = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
        known = [place for place in places if place[0] not in denied and self._partition_exists(*place)]

        def send_response(outcome: tuple[ErrorCode, Sequence[ErrorCode]] | ApiError) -> None:
            whole, codes = (commit_code(outcome.code), ()) if isinstance(outcome, ApiError) else outcome
            if whole:
                context.send_reply(OffsetDeleteResponse(error_code=whole))
            else:
                context.send_reply(_delete_response(request, dict(zip(known, codes, strict=True)), denied))

        self._groups.submit_command(DeleteOffsets(send_response, request.group_id, known))


def denied_topics(context: Context, operation: Operation, topics: Iterable[TopicRef]) -> AbstractSet[str]:
    """The topics of a request at which it may not do this. An id of no topic has no name, and is not among them."""
    if context.rights is None:
        return frozenset()
    return context.denied_names(operation, ResourceType.TOPIC, [topic.name for topic in topics if topic.name])


def _denied_offsets(wanted: Iterable[tuple[str, Sequence[int]]], denied: AbstractSet[str]) -> Iterator[FoundOffset]:
    for name, partitions in wanted:
        if name in denied:
            for each in partitions:
                yield FoundOffset(name, each, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def commit_code(code: ErrorCode) -> ErrorCode:
    """The error that a client gets for an error of the log."""
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return code


def codes_for(outcome: Sequence[ErrorCode] | ApiError, count: int, says_no_group: bool) -> Sequence[ErrorCode]:
    """The error codes of `count` offsets. `says_no_group`: whether the client knows GROUP_ID_NOT_FOUND."""
    if isinstance(outcome, ApiError):
        return [commit_code(outcome.code)] * count
    # One look is enough: a group that does not exist refuses all offsets of the commit.
    if not says_no_group and outcome and outcome[0] is ErrorCode.GROUP_ID_NOT_FOUND:
        return [ErrorCode.ILLEGAL_GENERATION] * count
    return outcome


def _commit_response(
    request: OffsetCommitRequest,
    known: Sequence[CommitPartition],
    codes: Sequence[ErrorCode],
    by_id: bool,
    denied: AbstractSet[str],
) -> OffsetCommitResponse:
    by_place = {(item.topic, item.partition): code for item, code in zip(known, codes, strict=True)}
    response = OffsetCommitResponse()
    for topic in request.topics:
        missing = refused_partition_error(topic, by_id, denied)
        rows = [
            OffsetCommitResponse.OffsetCommitResponsePartition(
                partition_index=each.partition_index,
                error_code=by_place.get((topic.name, each.partition_index), missing),
            )
            for each in topic.partitions
        ]
        row = OffsetCommitResponse.OffsetCommitResponseTopic
        response.topics.append(row(name=topic.name, topic_id=topic.topic_id, partitions=rows))
    return response


def refused_partition_error(topic: TopicRef, by_id: bool, denied: AbstractSet[str]) -> ErrorCode:
    """The error for a partition that is denied or does not exist."""
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic.name in denied else missing_partition_error(topic, by_id)


def _partition_rows(found: Iterable[FoundOffset]) -> list[_Part]:
    return [row_of(_Part, each) for each in found]


def _unknown_topics(group: _AskedGroup) -> Iterator[_Topic]:
    for topic in group.topics or ():
        if not topic.name:
            none = [
                FoundOffset("", each, None, missing_partition_error(topic, by_id=True))
                for each in topic.partition_indexes
            ]
            yield _Topic(topic_id=topic.topic_id, partitions=_partition_rows(none))


def _delete_response(
    request: OffsetDeleteRequest, codes: dict[tuple[str, int], ErrorCode], denied: AbstractSet[str]
) -> OffsetDeleteResponse:
    response = OffsetDeleteResponse()
    for topic in request.topics:
        is_denied = topic.name in denied
        missing = ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_denied else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        rows = [
            OffsetDeleteResponse.OffsetDeleteResponsePartition(
                partition_index=each.partition_index,
                error_code=codes.get((topic.name, each.partition_index), missing),
            )
            for each in topic.partitions
        ]
        response.topics.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=rows))
    return response
