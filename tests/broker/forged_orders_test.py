"""Forged orders: a broker with an embedded metadata store accepts orders from itself only."""

from __future__ import annotations

import pytest
from tests.handnode import Node

from ottla.errors import ErrorCode
from ottla.wire.messages import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)

NEWEST = {"controller_epoch": 2**31 - 1, "broker_epoch": 2**63 - 1}
GUESSED = {"controller_epoch": 1, "broker_epoch": -1}
"""The values that the first controller of a new cluster uses itself."""
FORGED = [
    (UpdateMetadataRequest, 7),
    (UpdateMetadataRequest, 8),
    (LeaderAndIsrRequest, 7),
    (StopReplicaRequest, 4),
]


def works(node: Node) -> bool:
    node.create("after")
    return node.produce("after", b"a").error_code == node.produce("before", b"a").error_code == 0


@pytest.mark.parametrize(("request_type", "version"), FORGED)
@pytest.mark.parametrize("controller_id", [1, 2])
@pytest.mark.parametrize("epochs", [NEWEST, GUESSED], ids=["newest", "guessed"])
def test_a_forged_order_changes_nothing(request_type, version: int, controller_id: int, epochs) -> None:
    node = Node()
    node.create("before")
    answer = node.ask(request_type(controller_id=controller_id, **epochs), version)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert works(node)


@pytest.mark.parametrize("version", range(4))
def test_a_forged_farewell_takes_no_leadership_away(version: int) -> None:
    node = Node()
    node.create("before")
    answer = node.ask(ControlledShutdownRequest(broker_id=1), version)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert works(node)


@pytest.mark.parametrize("request_type", [AlterPartitionRequest, AllocateProducerIdsRequest])
def test_clients_may_not_send_requests_to_the_controller(request_type) -> None:
    node = Node()
    answer = node.ask(request_type(broker_id=1, broker_epoch=-1), 0)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
