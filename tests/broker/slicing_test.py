"""No turn handles more than a part of a large request, whatever its API; other connections have their turns in between.

Zone: real (it drives a broker by hand).
"""

from __future__ import annotations

from types import FunctionType

import pytest
from tests.handnode import Node
from tests.steps import count_steps

from ottla.broker.slicing import PART_US
from ottla.config.broker_authorizer import AUTHORIZERS
from ottla.coordinator.shard import EntryOrigin
from ottla.groups.records import OffsetCommitted, Position
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterUserScramCredentialsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    ListGroupsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from ottla.wire.schema import struct_class
from ottla.wire.slices import Joined, count_elements, path_in

COUNT = 3_000
TURN_STEPS = 150_000
"""Instructions of a turn: some milliseconds."""
IN_PARTS = {
    "MAX_PARTITIONS_PER_REQUEST": "`Context.whole` counts over all parts",
    "MAX_NAME": "characters of one name",
    "MAX_AWAITED": "of a request that is no part",
    "MAX_BEGUN": "topics that are being created, by any client",
}
"""Bounds in the handlers of requests that are cut, and why a part can reach them."""


def _is_alone_in(cls, version):
    """Whether a request has no array at all in that version."""
    return not any(field.type == "array" and field.exists_in(version) for field in cls.FIELDS)


def _fill(struct, path, count, name="a-name-that-is-as-long-as-the-memory-of-its-element-asks-for-"):
    """Elements along a path, in one element of every outer array."""
    field = next(each for each in type(struct).FIELDS if each.name == path[0])
    if len(path) > 1:
        inner = struct_class(type(struct), field)()
        setattr(struct, path[0], [_fill(inner, path[1:], count)])
    elif field.of == "struct":
        rows = [struct_class(type(struct), field)() for _ in range(count)]
        for number, row in enumerate(rows):
            for each in type(row).FIELDS:
                if each.name in ("name", "topic", "resource_name", "resource_name_filter", "member_id", "group_id"):
                    setattr(row, each.name, f"{name}{number}")
                elif each.name in ("partition_index", "partition"):
                    setattr(row, each.name, number)
                elif each.name == "entity":
                    row.entity = [struct_class(type(row), each)(entity_type="user", entity_name=f"{name}{number}")]
        setattr(struct, path[0], rows)
    else:
        texts = [f"{name}{number}" for number in range(count)]
        setattr(struct, path[0], texts if field.of == "string" else list(range(count)))
    return struct


def _declared(node):
    return {key: api for key, api in node.broker._dispatch.cold.items() if api.declaration.parts}


def test_every_request_with_arrays_is_divided_or_states_why_not(node) -> None:
    """Requests between brokers are trusted: their senders bound them."""
    for key, api in node.broker._dispatch.cold.items():
        declared = api.declaration
        reasons = [declared.parts is not None, declared.undivided is not None]
        if not declared.inter_broker and not _is_alone_in(api.request, api.max_version):
            assert reasons.count(True) == 1, f"{ApiKey(key).name} declares neither or both of parts and undivided"


def _names_in(function, known):
    """Every global that a function uses, and the functions of its module that it calls."""
    function = getattr(function, "__func__", function)
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, type(code))]
        for name in code.co_names:
            found = function.__globals__.get(name)
            if name not in known:
                known.add(name)
                codes += [found.__code__] if isinstance(found, FunctionType) else []
    return known


def test_no_bound_of_a_whole_request_is_checked_in_its_parts(node) -> None:
    for key, api in _declared(node).items():
        bounds = {name for name in _names_in(api.handler, set()) if name.startswith("MAX_")}
        assert bounds <= IN_PARTS.keys(), f"{ApiKey(key).name}: a part never has as many"


@pytest.mark.parametrize("only_validate", [True, False])
def test_no_turn_creates_more_topics_than_it_has_time_for(node, only_validate) -> None:
    topic = CreateTopicsRequest.CreatableTopic
    topics = [topic(name=f"n{number}", num_partitions=1, replication_factor=1) for number in range(60)]
    request = CreateTopicsRequest(topics=topics, validate_only=only_validate, timeout_ms=1_000)
    place = node.send(request, 5)
    turns = [0]
    while not place.answered:
        turns.append(count_steps(node.timeline.run_next_event))
    assert len(node.answer(place).topics) == 60
    assert max(turns) < TURN_STEPS, max(turns)


@pytest.mark.slow
def test_no_turn_handles_more_than_a_part() -> None:
    node = Node({"authorizer.class.name": AUTHORIZERS[0], "allow.everyone.if.no.acl.found": "true"})
    while not node.broker.ready:
        node.pass_ms(10)
    for key, api in _declared(node).items():
        version = api.max_version
        while (path := path_in(api.request, version, api.declaration.parts.request)) is None:
            version -= 1
        handled = []
        handler = api.handler

        def noted(context, request, handler=handler, handled=handled, path=path):
            handled.append(count_elements(request, path))
            return handler(context, request)

        api.handler = noted
        size = max(1, PART_US // api.declaration.parts.cost_us)
        request = _fill(api.request(), path, 3 * size + 10)
        if hasattr(request, "validate_only"):
            request.validate_only = True
        place = node.send(request, version)
        for _ in range(20_000):
            if place.answered:
                break
            node.pass_ms(1)
        name = ApiKey(key).name
        assert place.answered, name
        assert len(handled) > 1, name
        assert max(handled) <= size + len(path), name


def test_a_request_of_more_bytes_than_its_api_accepts_closes_its_connection(node) -> None:
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    for count, is_closed in ((5_000, False), (20_000, True)):
        deletions = [deletion(name=f"user-{number}", mechanism=1) for number in range(count)]
        closed = len(node.network.closed)
        place = node.send(AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]), 0)
        for _ in range(100):
            node.pass_ms(1)
        assert place.answered is not is_closed
        assert (len(node.network.closed) > closed) is is_closed


def test_others_are_served_between_two_parts(node) -> None:
    large = node.send(DescribeGroupsRequest(groups=[f"group-{each}" for each in range(COUNT)]), 5)
    assert not large.answered
    other = node.send(MetadataRequest(topics=None), 12, type(node.peer)())
    assert other.answered
    assert len(node.answer(large).groups) == COUNT


def test_repeated_elements_are_answered_once(node) -> None:
    topic = MetadataRequest.MetadataRequestTopic
    answer = node.ask(MetadataRequest(topics=[topic(name="t") for _ in range(300)]), 8)
    assert [each.name for each in answer.topics] == ["t"]


def test_a_peer_that_goes_ends_its_request(node) -> None:
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=f"a-topic-with-a-name-{each}") for each in range(COUNT)]
    place = node.send(DeleteRecordsRequest(topics=topics), 2)
    sliced = node.broker._dispatch.sliced
    assert len(sliced) == 1
    node.process.post_turn(0, "gone", node.broker.on_gone, node.peer)
    node.pass_ms(100)
    assert not sliced
    assert not place.answered


def test_a_connection_that_ends_costs_the_same_beside_many_large_requests(node) -> None:
    many = DescribeGroupsRequest(groups=[f"group-{each}" for each in range(400)])
    costs = []
    for count in (10, 200):
        for _ in range(count):
            assert not node.send(many, 5, type(node.peer)()).answered
        costs.append(count_steps(lambda: node.broker.on_gone(type(node.peer)())))
    assert len(node.broker._dispatch.sliced) == 210
    assert costs[0] == costs[1]


def test_a_connection_that_ends_costs_the_same_beside_many_that_wait_for_the_broker(node) -> None:
    node.broker._dispatch.hold_clients()
    costs = []
    for count in (10, 200):
        places = [node.send(MetadataRequest(topics=[]), 12, type(node.peer)()) for _ in range(count)]
        gone = node.send(MetadataRequest(topics=[]), 12, type(node.peer)())
        costs.append(count_steps(lambda gone=gone: node.broker.on_gone(gone.peer)))
    assert costs[0] == costs[1]
    node.broker._dispatch.serve_clients()
    assert places[-1].answered
    assert not gone.answered


MANY = 1_200


@pytest.fixture
def wide(node):
    """A broker with many topics, and a topic of many partitions."""
    topic = CreateTopicsRequest.CreatableTopic
    topics = [topic(name=f"topic-{each}", num_partitions=1, replication_factor=1) for each in range(MANY // 2)]
    node.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5)
    node.create("wide", MANY)
    return node


def partitions_per_turn(node, request, version, peer=None):
    """How many partitions the joined response grows by in each turn, and the answer."""
    sliced = node.broker._dispatch.sliced
    place = node.send(request, version, peer)
    grown = []
    join = Joined.add_response

    def add(self, response):
        grown[-1] += count_elements(response, PATHS[place.key])
        join(self, response)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Joined, "add_response", add)
        while not place.answered:
            grown.append(0)
            node.pass_ms(1)
            assert len(grown) < 1_000
    assert not sliced
    return grown, node.answer(place)


PATHS = {
    16: ("groups",),
    3: ("topics",),
    35: ("results", "topics", "partitions"),
    9: ("groups", "topics", "partitions"),
}


@pytest.mark.slow
def test_all_topics_and_all_logs_are_described_in_slices(wide) -> None:
    for request, version in (
        (MetadataRequest(topics=None), 12),
        (MetadataRequest(topics=None), 1),
        (MetadataRequest(topics=None, include_cluster_authorized_operations=True), 8),
        (DescribeLogDirsRequest(topics=None), 4),
    ):
        grown, answer = partitions_per_turn(wide, request, version)
        assert max(grown) < MANY
        topics = answer.topics if version != 4 else answer.results[0].topics
        found = {topic.name if hasattr(topic, "name") else topic.topic: len(topic.partitions) for topic in topics}
        assert len(found) == len(topics) == MANY // 2 + 2
        assert found["wide"] == MANY


@pytest.mark.slow
def test_those_that_ask_for_all_topics_at_once_share_one_answer(wide) -> None:
    """Also when the one whose answer is made goes away."""
    places = [wide.send(MetadataRequest(topics=None), 12, type(wide.peer)()) for _ in range(5)]
    sliced = wide.broker._dispatch.sliced
    assert len(sliced) == 1
    wide.process.post_turn(0, "gone", wide.broker.on_gone, places[0].peer)
    wide.pass_ms(1)
    assert all(len(wide.answer(place).topics) == MANY // 2 + 2 for place in places[1:])
    assert not places[0].answered
    assert wide.send(MetadataRequest(topics=None), 12).answered, "it is kept"


@pytest.mark.slow
def test_groups_are_listed_in_slices(node) -> None:
    partition, topic = OffsetCommitRequest.OffsetCommitRequestPartition, OffsetCommitRequest.OffsetCommitRequestTopic
    node.create("__consumer_offsets")
    for each in range(1_100):
        row = partition(partition_index=0, committed_offset=1)
        commit = OffsetCommitRequest(group_id=f"g{each}", topics=[topic(name="t", partitions=[row])])
        commit.generation_id_or_member_epoch = -1
        assert node.ask(commit, 5).topics[0].partitions[0].error_code == 0
    grown, answer = partitions_per_turn(node, ListGroupsRequest(), 5)
    assert max(grown) <= 1_000
    assert len([each for each in grown if each]) > 1
    assert {group.group_id for group in answer.groups} == {f"g{each}" for each in range(1_100)}


POSITIONS = 1_300


@pytest.fixture
def travelled(node):
    """A broker with groups that have committed a thousand positions each, in two topics by turns."""
    node.create("__consumer_offsets")
    (shard,) = node.broker._coordinators.groups.shards()
    for group in ("g", "h", "i"):
        for number in range(POSITIONS):
            entry = OffsetCommitted(group, "tu"[number % 2], number // 2, Position(number))
            shard.apply(entry, EntryOrigin(number))
    return node


def positions_in(topics):
    return {(topic.name, row.partition_index): row.committed_offset for topic in topics for row in topic.partitions}


EVERYTHING = {("tu"[number % 2], number // 2): number for number in range(POSITIONS)}


def test_all_positions_of_a_group_are_answered_in_slices(travelled) -> None:
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    request = OffsetFetchRequest(groups=[group(group_id="g", topics=None)])
    grown, answer = partitions_per_turn(travelled, request, 9)
    assert max(grown) < POSITIONS
    (only,) = answer.groups
    assert [topic.name for topic in only.topics] == ["t", "u"]
    assert positions_in(only.topics) == EVERYTHING


def test_all_positions_of_many_groups_are_answered_in_slices(travelled) -> None:
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    names = ["g", *(f"a-group-that-there-is-not-{number}" for number in range(600)), "h", "i"]
    request = OffsetFetchRequest(groups=[group(group_id=name, topics=None) for name in names])
    grown, answer = partitions_per_turn(travelled, request, 9)
    assert max(grown) < POSITIONS
    assert [each.group_id for each in answer.groups] == names
    assert [positions_in(each.topics) for each in answer.groups if each.topics] == [EVERYTHING] * 3


def test_all_positions_are_answered_in_slices_in_versions_with_one_group(travelled) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PATHS, 9, ("topics", "partitions"))
        grown, answer = partitions_per_turn(travelled, OffsetFetchRequest(group_id="g", topics=None), 7)
    assert max(grown) < POSITIONS
    assert [topic.name for topic in answer.topics] == ["t", "u"]
    assert positions_in(answer.topics) == EVERYTHING
