"""The rights of transactional producers (KIP-98): each error of each request, and the permission that is missing.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.security.authorization.guarded import CLUSTER, Guarded, errors_in

from ottla.errors import ErrorCode
from ottla.wire import messages as m

ANN = "User:ann"
TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def broker() -> Guarded:
    """A broker with the topics t and u, whose coordinators have loaded."""
    made = Guarded()
    made.create("t")
    made.create("u")
    for kind, key in ((0, "g"), (1, "x")):
        made.ask(m.FindCoordinatorRequest(key_type=kind, key=key), 3)
    made.pass_ms(3000)
    return made


@pytest.fixture
def node(broker: Guarded) -> Iterator[Guarded]:
    """Without any ACL."""
    broker.revoke()
    yield broker
    broker.revoke()


def init(node: Guarded, transactional_id: str | None = "x") -> Any:
    request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    return node.ask_as(ANN, request, 4)


def identity(node: Guarded) -> tuple[int, int]:
    """A new identity of the transactional id x, for which ann has Write."""
    node.grant("TransactionalId x", ANN, "Write")
    for _ in range(100):
        response = init(node)
        if response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
            break
        node.pass_ms(20)
    assert response.error_code == 0, ErrorCode(response.error_code)
    return response.producer_id, response.producer_epoch


def add(node: Guarded, producer: tuple[int, int], *names: str) -> dict[str, ErrorCode]:
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    request = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[topic(name=name, partitions=[0]) for name in names],
    )
    results = node.ask_as(ANN, request, 3).results_by_topic_v3_and_below
    return {each.name: ErrorCode(each.results_by_partition[0].partition_error_code) for each in results}


def produce(node: Guarded, producer: tuple[int, int], name: str, *, version: int = 9, transactional_id="x") -> Any:
    request = node.produce_request(
        name, b"v", producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True
    )
    request.transactional_id = transactional_id
    return ErrorCode(node.ask_as(ANN, request, version).responses[0].partition_responses[0].error_code)


def commit_offsets(node: Guarded, producer: tuple[int, int], *names: str) -> dict[str, ErrorCode]:
    kind = m.TxnOffsetCommitRequest
    partition = kind.TxnOffsetCommitRequestPartition(committed_offset=1, committed_metadata="")
    request = kind(
        transactional_id="x",
        group_id="g",
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[kind.TxnOffsetCommitRequestTopic(name=name, partitions=[partition]) for name in names],
    )
    response = node.ask_as(ANN, request, 3)
    return {each.name: ErrorCode(each.partitions[0].error_code) for each in response.topics}


def add_offsets(node: Guarded, producer: tuple[int, int]) -> ErrorCode:
    request = m.AddOffsetsToTxnRequest(
        transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], group_id="g"
    )
    return ErrorCode(node.ask_as(ANN, request, 3).error_code)


def end(node: Guarded, producer: tuple[int, int], *, committed: bool) -> ErrorCode:
    request = m.EndTxnRequest(
        transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], committed=committed
    )
    return ErrorCode(node.ask_as(ANN, request, 3).error_code)


def test_init_producer_id_needs_write_on_the_transactional_id(node: Guarded) -> None:
    response = init(node)
    assert response.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (response.producer_id, response.producer_epoch) == (-1, -1)
    node.grant("TransactionalId x", ANN, "Describe")
    assert init(node).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    identity(node)


def test_an_idempotent_producer_needs_idempotent_write_or_write_on_any_topic(node: Guarded) -> None:
    response = init(node, None)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert (response.producer_id, response.producer_epoch) == (-1, -1)
    node.grant(f"Cluster {CLUSTER}", ANN, "IdempotentWrite")
    assert init(node, None).error_code == 0
    node.revoke()
    node.grant("Topic any+", ANN, "Write")
    assert init(node, None).error_code == 0
    node.grant("Topic *", ANN, "Write", deny=True)
    assert init(node, None).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_add_partitions_needs_write_on_the_transactional_id(node: Guarded) -> None:
    producer = identity(node)
    node.revoke()
    node.grant("Topic t", ANN, "Write")
    assert add(node, producer, "t") == {"t": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}


def test_add_partitions_needs_write_on_every_topic(node: Guarded) -> None:
    producer = identity(node)
    node.grant("Topic t", ANN, "Write")
    expected = {"t": ErrorCode.OPERATION_NOT_ATTEMPTED, "u": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert add(node, producer, "t", "u") == expected
    assert add(node, producer, "t", "no") == {"t": ErrorCode.OPERATION_NOT_ATTEMPTED, "no": TOPIC}
    node.grant("Topic u", ANN, "Write")
    assert add(node, producer, "t", "u") == {"t": 0, "u": 0}
    assert end(node, producer, committed=False) == 0


def test_many_partitions_are_checked_as_few_are(node: Guarded) -> None:
    producer = identity(node)
    node.grant("Topic t", ANN, "Write")
    names = ["t", *(f"no-{number}" for number in range(800))]
    answers = add(node, producer, *names)
    assert answers.pop("t") is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert set(answers.values()) == {TOPIC}


def test_add_offsets_needs_the_transactional_id_and_read_on_the_group(node: Guarded) -> None:
    producer = identity(node)
    assert add_offsets(node, producer) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    node.grant("Group g", ANN, "Describe")
    assert add_offsets(node, producer) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    node.grant("Group g", ANN, "Read")
    node.grant("TransactionalId x", ANN, "Write", deny=True)
    assert add_offsets(node, producer) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_end_txn_needs_write_on_the_transactional_id(node: Guarded) -> None:
    producer = identity(node)
    node.grant("Topic t", ANN, "Write")
    assert add(node, producer, "t") == {"t": 0}
    node.grant("TransactionalId x", ANN, "Write", deny=True)
    for committed in (True, False):
        assert end(node, producer, committed=committed) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    node.revoke()
    node.grant("TransactionalId x", ANN, "Write")
    assert end(node, producer, committed=True) == 0


def test_produce_needs_the_transactional_id_and_write_on_the_topic(node: Guarded) -> None:
    producer = identity(node)
    node.grant("Topic t", ANN, "Write")
    assert add(node, producer, "t") == {"t": 0}
    assert produce(node, producer, "u") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    # Records of a transaction need its id, whatever the request has in its place.
    assert produce(node, producer, "t", transactional_id=None) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert produce(node, producer, "t", transactional_id="y") is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    node.grant("TransactionalId x", ANN, "Write", deny=True)
    before = node.broker.hosted.find_partition("t", 0).log.end_offset
    assert produce(node, producer, "t") is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert node.broker.hosted.find_partition("t", 0).log.end_offset == before
    node.revoke()
    node.grant("TransactionalId x", ANN, "Write")
    node.grant("Topic t", ANN, "Write")
    assert produce(node, producer, "t") == 0
    assert end(node, producer, committed=True) == 0


def test_txn_offset_commit_needs_the_transactional_id_the_group_and_the_topics(node: Guarded) -> None:
    producer = identity(node)
    node.grant("Group g", ANN, "Read")
    assert add_offsets(node, producer) == 0
    node.grant("Topic t", ANN, "Read")
    assert commit_offsets(node, producer, "t", "u", "no") == {"t": 0, "u": TOPIC, "no": TOPIC}
    node.grant("Group g", ANN, "All", deny=True)
    assert commit_offsets(node, producer, "t") == {"t": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    node.grant("TransactionalId x", ANN, "Write", deny=True)
    assert commit_offsets(node, producer, "t") == {"t": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    node.revoke()
    node.grant("TransactionalId x", ANN, "Write")
    assert end(node, producer, committed=False) == 0


def test_markers_need_cluster_action_or_alter(node: Guarded) -> None:
    kind = m.WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    request = kind(markers=[kind.WritableTxnMarker(producer_id=77, topics=[topic])])
    assert set(errors_in(node.ask_as(ANN, request, 1))) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    for operation in ("Alter", "ClusterAction"):
        node.grant(f"Cluster {CLUSTER}", ANN, operation)
        assert set(errors_in(node.ask_as(ANN, request, 1))) == {ErrorCode.INVALID_TXN_STATE}, operation
        node.revoke()


def test_transactions_are_described_without_topics_that_may_not_be_described(node: Guarded) -> None:
    producer = identity(node)
    for name in ("t", "u"):
        node.grant(f"Topic {name}", ANN, "Write")
    assert add(node, producer, "t", "u") == {"t": 0, "u": 0}
    node.revoke()
    request = m.DescribeTransactionsRequest(transactional_ids=["x"])
    (row,) = node.ask_as(ANN, request, 0).transaction_states
    assert row.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert node.ask_as(ANN, m.ListTransactionsRequest(), 0).transaction_states == []
    node.grant("TransactionalId x", ANN, "Describe")
    node.grant("Topic u", ANN, "Describe")
    (row,) = node.ask_as(ANN, request, 0).transaction_states
    assert [each.topic for each in row.topics] == ["u"]
    assert [each.transactional_id for each in node.ask_as(ANN, m.ListTransactionsRequest(), 0).transaction_states] == [
        "x"
    ]
    node.grant("TransactionalId x", ANN, "Write")
    assert end(node, producer, committed=False) == 0
