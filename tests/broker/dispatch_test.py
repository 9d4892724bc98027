"""Clients before the broker is ready, and requests that only brokers may send.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.wire.messages import (
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    LeaderAndIsrRequest,
    MetadataRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
    WriteTxnMarkersRequest,
)


def test_a_client_that_comes_early_waits_until_the_broker_is_ready(node) -> None:
    node.restart_without_waiting()
    while not node.broker.listening:
        node.pass_ms(1)
    assert not node.broker.ready
    versions = node.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    place = node.send(MetadataRequest(topics=None), 12)
    assert versions.answered, "what it speaks it can say"
    assert not place.answered, "of the cluster it knows nothing yet"
    assert [topic.name for topic in node.answer(place).topics] == ["t"]


def test_transaction_requests_of_brokers_do_not_wait(node) -> None:
    node.restart_without_waiting()
    while not node.broker.listening:
        node.pass_ms(1)
    peer = type(node.peer)()
    peer.listener = ""
    assert node.send(WriteTxnMarkersRequest(), 2, peer).answered
    assert node.send(AddPartitionsToTxnRequest(), 5, peer).answered, "verification"
    assert not node.send(AddPartitionsToTxnRequest(), 3).answered, "a producer"
    assert not node.broker.ready


def test_a_client_that_goes_before_the_broker_is_ready_is_forgotten(node) -> None:
    node.restart_without_waiting()
    while not node.broker.listening:
        node.pass_ms(1)
    place = node.send(MetadataRequest(topics=None), 12)
    node.process.post_turn(0, "gone", node.broker.on_gone, node.peer)
    node.pass_ms(5000)
    assert node.broker.ready
    assert not place.answered


def test_only_brokers_may_update_metadata(node) -> None:
    order = UpdateMetadataRequest(controller_id=9, controller_epoch=99, broker_epoch=1 << 40)
    peer = type(node.peer)()
    peer.listener = "CLIENTS"
    answer = node.answer(node.send(order, 8, peer))
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert node.broker.cluster.image.controller_id == 1


@pytest.fixture
def member(node):
    """A connection without a listener, as of a broker to itself: a single broker accepts orders from no other one."""
    node.peer.listener = ""
    return node


def test_a_controller_that_is_outdated_or_means_an_earlier_life_is_not_believed(member) -> None:
    node = member
    epoch = node.broker._fence.broker_epoch
    stale = node.ask(UpdateMetadataRequest(controller_id=9, controller_epoch=0, broker_epoch=epoch), 8)
    assert stale.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    node.broker._fence.confirm_epoch(99)
    for wrong in (epoch - 1, -1):
        earlier = node.ask(UpdateMetadataRequest(controller_id=9, controller_epoch=99, broker_epoch=wrong), 8)
        assert earlier.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert node.broker.cluster.image.controller_id == 1
    newer = node.ask(UpdateMetadataRequest(controller_id=9, controller_epoch=99, broker_epoch=epoch), 8)
    assert newer.error_code == 0
    assert node.broker.cluster.image.controller_id == 9


def test_a_controller_that_the_store_does_not_know_is_not_believed(member) -> None:
    node = member
    epoch = node.broker._fence.broker_epoch
    for request, version in ((UpdateMetadataRequest, 8), (LeaderAndIsrRequest, 5), (StopReplicaRequest, 3)):
        forged = node.ask(request(controller_id=9, controller_epoch=99, broker_epoch=epoch), version)
        assert forged.error_code == ErrorCode.NOT_CONTROLLER
    assert node.broker._fence.controller_epoch == 1
    node.create("after")
    assert node.produce("after", b"a").error_code == 0, "its own controller is believed"


def test_an_order_sent_before_the_newest_one_is_refused(member) -> None:
    node = member
    node.broker._fence.confirm_epoch(51)

    def said(number, epoch, controller_id):
        request = UpdateMetadataRequest(
            controller_id=controller_id, controller_epoch=epoch, broker_epoch=node.broker._fence.broker_epoch
        )
        return node.answer(node.send(request, 8, number=number)).error_code

    assert said(2_000_000_000, 50, 5) == 0
    assert said(1_999_999_999, 50, 6) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert said(3, 50, 7) == 0, "the numbers begin anew"
    assert said(2, 51, 8) == 0, "another controller counts for itself"
    assert node.broker.cluster.image.controller_id == 8
