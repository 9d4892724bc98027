"""Brokers that share a secret: who counts as a broker, and what a client's connection cannot do.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.handcluster import HandCluster
from tests.handnode import Asker, Node

from ottla.errors import ErrorCode
from ottla.security.broker_proof import (
    BROKER_PRINCIPAL,
    MECHANISM,
    NONCE,
    PROOF,
    matches_proof,
    proof_of_accepting,
    proof_of_connecting,
)
from ottla.wire.messages import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    FetchRequest,
    LeaderAndIsrRequest,
    ListOffsetsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
    WriteTxnMarkersRequest,
)

SECRET = b"the secret of this cluster"


@pytest.fixture
def three() -> HandCluster:
    return HandCluster({"min.insync.replicas": "2"}, broker_secret=SECRET)


class Login:
    """The connecting side, by hand, on a connection of its own."""

    def __init__(self, node: Node, listener: str = Asker.listener) -> None:
        self.node = node
        self.peer = Asker()
        self.peer.listener = listener

    def ask(self, request: object, version: int) -> object:
        return self.node.answer(self.node.send(request, version, self.peer))

    def begin(self, own: bytes = b"n" * NONCE) -> bytes:
        assert self.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1).error_code == 0
        answer = self.ask(SaslAuthenticateRequest(auth_bytes=own), 2)
        assert answer.error_code == 0
        return bytes(answer.auth_bytes)

    def show(self, proof: bytes) -> object:
        return self.ask(SaslAuthenticateRequest(auth_bytes=proof), 2)


def test_a_connection_that_proves_the_secret_is_a_brokers(three) -> None:
    login = Login(three[1])
    answer = login.begin()
    theirs, proof = answer[:NONCE], answer[NONCE:]
    assert len(answer) == NONCE + PROOF
    assert matches_proof(proof, proof_of_accepting(SECRET, b"n" * NONCE, theirs)), "both sides prove it"
    assert login.show(proof_of_connecting(SECRET, b"n" * NONCE, theirs)).error_code == 0
    assert login.peer.principal == BROKER_PRINCIPAL
    assert login.ask(StopReplicaRequest(controller_epoch=0, broker_epoch=0), 3).error_code != 31


def test_the_proof_makes_a_broker_at_every_listener_and_nothing_else_does(three) -> None:
    """While a rolling restart moves the brokers to another listener, they use two."""
    order = StopReplicaRequest(controller_epoch=0, broker_epoch=0)
    for listener in ("PLAINTEXT", "FUTURE"):
        login = Login(three[1], listener)
        assert login.ask(order, 3).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        theirs = login.begin()[:NONCE]
        assert login.show(proof_of_connecting(SECRET, b"n" * NONCE, theirs)).error_code == 0
        assert login.ask(order, 3).error_code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_nonces_are_not_repeated(three) -> None:
    assert Login(three[1]).begin()[:NONCE] != Login(three[1]).begin()[:NONCE]


def wrong_proofs(answer: bytes) -> list[bytes]:
    own, theirs = b"n" * NONCE, answer[:NONCE]
    return [
        b"",
        answer[NONCE:],  # its own proof, sent back
        proof_of_connecting(SECRET + b"!", own, theirs),
        proof_of_connecting(SECRET, theirs, own),
        proof_of_connecting(SECRET, own, theirs)[:-1],
    ]


@pytest.mark.parametrize("number", range(5))
def test_a_wrong_proof_closes_the_connection(three, number: int) -> None:
    node, login = three[1], Login(three[1])
    proof = wrong_proofs(login.begin())[number]
    node.send(SaslAuthenticateRequest(auth_bytes=proof), 2, login.peer)
    assert "did not prove that it knows the secret" in node.network.closed[-1]
    assert login.peer.principal != BROKER_PRINCIPAL


def test_steps_out_of_order(three) -> None:
    node, login = three[1], Login(three[1])
    assert login.show(b"x" * NONCE).error_code == ErrorCode.ILLEGAL_SASL_STATE
    refused = login.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert (refused.error_code, refused.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, [MECHANISM])
    assert login.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1).error_code == 0
    node.send(SaslAuthenticateRequest(auth_bytes=b"short"), 2, login.peer)
    assert "did not prove that it knows the secret" in node.network.closed[-1]


def test_without_a_secret_there_is_nothing_to_log_in_to() -> None:
    node = Node()
    assert node.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE


def forged(epoch: int, topic_id: bytes) -> list[tuple[object, int]]:
    """Requests that only brokers send, as a client would make them up: the newest controller, every broker epoch."""
    stop, lead = StopReplicaRequest, LeaderAndIsrRequest
    state = lead.LeaderAndIsrPartitionState(
        topic_name="t", controller_epoch=99, leader=1, leader_epoch=99, isr=[1], partition_epoch=99, replicas=[1]
    )
    live = UpdateMetadataRequest.UpdateMetadataBroker
    where = UpdateMetadataRequest.UpdateMetadataEndpoint(port=6666, host="elsewhere", listener="PLAINTEXT")
    data = AlterPartitionRequest.PartitionData(new_isr=[1])
    return [
        (
            stop(
                controller_epoch=99,
                broker_epoch=epoch,
                topic_states=[
                    stop.StopReplicaTopicState(
                        topic_name="t",
                        partition_states=[stop.StopReplicaPartitionState(leader_epoch=99, delete_partition=True)],
                    )
                ],
            ),
            3,
        ),
        (
            lead(
                controller_epoch=99,
                broker_epoch=epoch,
                topic_states=[lead.LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id, partition_states=[state])],
            ),
            5,
        ),
        (
            UpdateMetadataRequest(
                controller_epoch=99, broker_epoch=epoch, live_brokers=[live(id=1, endpoints=[where])]
            ),
            7,
        ),
        (ControlledShutdownRequest(broker_id=1, broker_epoch=epoch), 2),
        (
            AlterPartitionRequest(
                broker_id=1,
                broker_epoch=epoch,
                topics=[AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=[data])],
            ),
            2,
        ),
        (AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch), 0),
    ]


@pytest.mark.parametrize("epoch", [-1, 1 << 62])
def test_requests_of_brokers_from_a_clients_connection_change_nothing(three, epoch: int) -> None:
    three.create("t", (1, 2, 3))
    assert three[1].produce("t", b"a", acks=-1).error_code == 0
    topic_id = three[1].broker.cluster.image.topics["t"].topic_id
    before = [(each.partition("t").leader, each.partition("t").isr, each.log_bytes("t")) for each in three]
    brokers = [dict(each.broker.cluster.image.brokers) for each in three]
    for member in three:
        for request, version in forged(epoch, topic_id):
            answer = member.ask(request, version)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, request
    three.pass_ms(1000)
    assert [(each.partition("t").leader, each.partition("t").isr, each.log_bytes("t")) for each in three] == before
    assert [dict(each.broker.cluster.image.brokers) for each in three] == brokers


def follower_fetch(node: Node, version: int) -> object:
    request = node.fetch_request("t", 1)
    request.replica_id = 2
    request.session_epoch = -1
    if version >= 15:
        request.replica_id = -1
        request.replica_state = FetchRequest.ReplicaState(replica_id=2, replica_epoch=1)
    return request


@pytest.mark.parametrize("version", [7, 11, 12])
def test_a_fetch_in_a_followers_name_acknowledges_nothing(three, version: int) -> None:
    three.create("t", (1, 2, 3))
    leader = three[1]
    three[2].kill()
    three[3].kill()
    leader.produce("t", b"a")
    answer = leader.ask(follower_fetch(leader, version), version)
    assert (answer.error_code, answer.responses) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    assert leader.partition("t").high_watermark == 0


def test_an_old_fetch_in_a_followers_name_costs_the_connection(three) -> None:
    three.create("t", (1, 2, 3))
    three[1].send(follower_fetch(three[1], 4), 4)
    assert "only brokers fetch as replicas" in three[1].network.closed[-1]


def test_a_client_that_names_a_replica_lists_offsets_as_a_client(three) -> None:
    three.create("t", (1, 2, 3))
    leader = three[1]
    three[2].kill()
    three[3].kill()
    leader.produce("t", b"not committed")
    part = ListOffsetsRequest.ListOffsetsPartition(timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=2, topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])]
    )
    assert leader.ask(request, 4).topics[0].partitions[0].offset == 0


def test_markers_of_a_clients_connection_are_not_a_coordinators(three) -> None:
    three.create("t", (1, 2, 3))
    request = WriteTxnMarkersRequest
    topic = request.WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    marker = request.WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=True, coordinator_epoch=99, topics=[topic]
    )
    answer = three[1].ask(request(markers=[marker]), 1)
    assert answer.markers[0].topics[0].partitions[0].error_code != 0
    assert three[1].partition("t").log.end_offset == 0
