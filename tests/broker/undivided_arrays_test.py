"""An array that a handler takes as a whole is short: its declaration says how long it may be (`array(most=)`), or here
is said why its handler bears a million elements.

Zone: real.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any

import pytest
from bench.filled_requests import Path, array_paths
from tests.handnode import Node

from ottla.broker.large_request import DECODE_US
from ottla.broker.slicing import TURN_US
from ottla.errors import ErrorCode
from ottla.wire.apis import API_TABLE, Api, ApiKey
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.errors import MalformedMessage
from ottla.wire.limits import MAX_ELEMENTS, SLICE
from ottla.wire.messages import AlterConfigsRequest, CreateTopicsRequest
from ottla.wire.slices import Elements

_BY_ITSELF = "the handler decodes it partition by partition"
_BYTES = "`Declaration.most_bytes`"
_COUNTED = "MAX_PARTITIONS_PER_REQUEST is compared with its length first"
TAKEN_WHOLE = {
    ("ADD_PARTITIONS_TO_TXN", "transactions"): _BY_ITSELF,
    ("ADD_PARTITIONS_TO_TXN", "transactions.topics"): _BY_ITSELF,
    ("ADD_PARTITIONS_TO_TXN", "transactions.topics.partitions"): _BY_ITSELF,
    ("ADD_PARTITIONS_TO_TXN", "v3_and_below_topics"): _BY_ITSELF,
    ("ADD_PARTITIONS_TO_TXN", "v3_and_below_topics.partitions"): _BY_ITSELF,
    ("ALTER_USER_SCRAM_CREDENTIALS", "deletions"): _BYTES,
    ("ALTER_USER_SCRAM_CREDENTIALS", "upsertions"): _BYTES,
    ("CREATE_PARTITIONS", "topics.assignments"): _COUNTED,
    ("CREATE_TOPICS", "topics.assignments"): _COUNTED,
    ("DESCRIBE_TOPIC_PARTITIONS", "topics"): "more than MAX_NAMED are refused in pieces",
    ("LIST_GROUPS", "states_filter"): "MAX_FILTERS",
    ("LIST_GROUPS", "types_filter"): "MAX_FILTERS",
    ("UPDATE_FEATURES", "feature_updates"): _BYTES,
}
"""Arrays without a bound of their own, and what bounds them."""


def all_arrays(api: Api) -> set[tuple[Path, int]]:
    """Every array of a request in any version, and its most elements."""
    versions = range(api.min_version, api.max_version + 1)
    return {(path, field.most) for version in versions for path, field in array_paths(api.request, version)}


def test_arrays_that_are_not_divided_are_bounded(node: Node) -> None:
    found = set()
    for key, api in node.broker._dispatch.cold.items():
        declared = api.declaration
        if declared.inter_broker:
            continue
        divided = set(declared.parts.request) if declared.parts else {declared.walked} if declared.walked else set()
        prefixes = {path[:depth] for path in divided for depth in range(1, len(path) + 1)}
        for path, most in all_arrays(API_TABLE[key]):
            if path not in prefixes and most == MAX_ELEMENTS:
                found.add((ApiKey(key).name, ".".join(path)))
    assert found == TAKEN_WHOLE.keys()


def test_a_message_with_more_elements_is_malformed() -> None:
    resource = AlterConfigsRequest.AlterConfigsResource
    for count, is_malformed in ((500, False), (501, True)):
        configs = [AlterConfigsRequest.AlterableConfig(name=f"n{number}", value="1") for number in range(count)]
        content = encode_bytes(AlterConfigsRequest(resources=[resource(configs=configs)]), 0)
        with pytest.raises(MalformedMessage, match="501") if is_malformed else nullcontext():
            decode(AlterConfigsRequest, 0, content)


def test_a_request_of_little_weight_is_read_in_steps(node: Node) -> None:
    """A resource with many names weighs as much as one with none: reading it took 90 ms of one turn."""
    topic, one = CreateTopicsRequest.CreatableTopic, CreateTopicsRequest.CreatableReplicaAssignment
    assignments = [one(partition_index=number, broker_ids=[1]) for number in range(20 * SLICE)]
    request = CreateTopicsRequest(topics=[topic(name="t", num_partitions=-1, replication_factor=-1)])
    request.topics[0].assignments = assignments
    place = node.send(request, 5)
    slices = []
    while not place.answered:
        slices.append(slices_read(node.timeline.run_next_event))
    assert node.answer(place).topics[0].error_code == ErrorCode.POLICY_VIOLATION
    assert sum(slices) >= 2 * 20 - 4, "to survey it, and to read it"
    assert max(slices) <= TURN_US // DECODE_US + 2, "one that begins and one that ends cost less"


def slices_read(act: Callable[[], object]) -> int:
    """How often `act` decodes the next slice of a request."""
    count = 0

    def called(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code is Elements.iterate_slices.__code__

    sys.setprofile(called)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count
