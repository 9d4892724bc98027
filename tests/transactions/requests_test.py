"""Transactions over the wire, on one simulated broker: the whole course, every version, and refused requests."""

from __future__ import annotations

from typing import Any

import pytest
from tests.handnode import Asker
from tests.transactions.hand import Hand, X, codes_of

from ottla.errors import ErrorCode
from ottla.wire.messages import (
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    DeleteTopicsRequest,
    EndTxnRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)


@pytest.fixture
def hand() -> Hand:
    return Hand().started()


# -- the whole course --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction(hand: Hand, commit: bool) -> None:
    assert (hand.producer_id, hand.epoch) == (0, 0)
    assert hand.add(("t", 0), ("t", 1)) == {("t", 0): 0, ("t", 1): 0}
    assert hand.produce(b"a") == 0
    assert hand.produce(b"b", partition=0) == 0
    assert hand.add_offsets() == 0
    assert hand.find("g", 0).error_code == 0
    assert hand.commit_offset(5) == 0
    assert hand.state == "Ongoing"
    assert hand.offset() == (-1, 0)
    assert hand.offset(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert hand.end(commit).error_code == 0
    hand.node.pass_ms(50)
    assert hand.state == ("CompleteCommit" if commit else "CompleteAbort")
    assert hand.offset(stable=True) == (5 if commit else -1, 0)
    marked = {
        (topic.name, index) for each in hand.marks.asked for topic in each.topics for index in topic.partition_indexes
    }
    assert marked == {("t", 0), ("t", 1), ("__consumer_offsets", 3)}


@pytest.mark.parametrize("commit", [True, False])
def test_a_broker_writes_its_own_markers_without_messages(hand: Hand, commit: bool) -> None:
    hand.marks.leave_out()
    assert hand.add(("t", 0)) == {("t", 0): 0}
    assert hand.produce(b"a") == 0
    assert hand.add_offsets() == 0
    assert hand.find("g", 0).error_code == 0
    assert hand.commit_offset(5) == 0
    assert hand.end(commit).error_code == 0
    assert hand.state == ("CompleteCommit" if commit else "CompleteAbort")
    assert hand.offset(stable=True) == (5 if commit else -1, 0)
    assert hand.marks.asked == []
    assert hand.node.broker._coordinators.transactions.pending_count == 0


def test_internal_topics_do_not_enable_the_check_of_producers_batches(hand: Hand) -> None:
    topic = hand.node.broker.hosted.by_name["__transaction_state"]
    assert topic.partitions[0].codec_and_level[0] >= 0, "it has a compression.type of its own"
    assert not hand.node.broker.hosted.preparing


def test_offsets_stay_unstable_until_the_marker_is_there(hand: Hand) -> None:
    hand.add_offsets()
    hand.commit_offset(5)
    hand.marks.held = True
    assert hand.end().error_code == 0
    hand.node.pass_ms(500)
    assert hand.state == "PrepareCommit"
    assert hand.offset(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert hand.offset(stable=True, place=("t", 1)) == (-1, 0), "only of the partition that it is about"
    assert hand.add() == {("t", 0): ErrorCode.CONCURRENT_TRANSACTIONS}
    assert hand.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    hand.marks.held = False
    hand.node.pass_ms(2000)
    assert hand.offset(stable=True) == (5, 0)
    assert hand.add() == {("t", 0): 0}


def test_requests_while_a_transaction_ends(hand: Hand) -> None:
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    hand.add()
    hand.marks.held = True
    assert hand.end().error_code == 0
    assert hand.add() == {("t", 0): busy}
    assert hand.add_offsets() == busy
    assert hand.init().error_code == busy
    assert hand.end().error_code == busy
    hand.marks.held = False
    hand.node.pass_ms(2000)
    assert hand.end().error_code == 0, "repeated"
    assert hand.add_offsets() == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_restarted_coordinator_continues(hand: Hand, commit: bool) -> None:
    hand.add()
    hand.produce(b"a")
    hand.add_offsets()
    hand.commit_offset(5)
    hand.marks.held = True
    hand.end(commit)
    hand.restart()
    hand.node.pass_ms(2000)
    assert hand.state == ("CompleteCommit" if commit else "CompleteAbort")
    assert hand.offset(stable=True) == (5 if commit else -1, 0)
    assert hand.init().error_code == 0
    assert (hand.producer_id, hand.epoch) == (0, 1)


def test_a_transaction_that_takes_too_long_is_aborted(hand: Hand) -> None:
    hand.add()
    hand.node.pass_ms(75_000)
    assert hand.state == "CompleteAbort"
    assert hand.end().error_code == ErrorCode.PRODUCER_FENCED
    again = hand.init(producer_id=hand.producer_id, producer_epoch=hand.epoch)
    assert (again.error_code, again.producer_epoch) == (0, 2), "its producer goes on (KIP-588)"


def test_an_unused_transactional_id_expires() -> None:
    hand = Hand(
        transactional_id_expiration_ms="1000", transaction_remove_expired_transaction_cleanup_interval_ms="500"
    ).started()
    hand.node.pass_ms(3000)
    assert hand.describe()[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert hand.add() == {("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}


def test_a_topic_deleted_in_a_transaction_does_not_hold_its_end_up(hand: Hand) -> None:
    hand.node.pass_ms(6000)
    hand.node.create("gone")
    hand.add(("t", 0), ("gone", 0))
    hand.ask(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=5000), 5)
    hand.end()
    hand.node.pass_ms(50)
    assert hand.state == "CompleteCommit"


def test_a_new_coordinator_waits_before_it_treats_a_topic_as_deleted(hand: Hand) -> None:
    """Its metadata may be older than its predecessor's: a marker that it skips would be missing for ever."""
    hand.node.create("gone")
    hand.add(("gone", 0))
    hand.marks.held = True
    hand.end()
    hand.ask(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=5000), 5)
    hand.restart()
    assert hand.state == "PrepareCommit"
    hand.node.pass_ms(6000)
    assert hand.state == "CompleteCommit"


# -- InitProducerId ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_init_in_every_version(hand: Hand, version: int) -> None:
    answer = hand.init(version)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, 1)
    answer = hand.init(version, None)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 1, 0), "nobody's id"


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_that_was_replaced(hand: Hand, version: int) -> None:
    first = {"producer_id": hand.producer_id, "producer_epoch": hand.epoch}
    hand.init()
    answer = hand.init(version, **first)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (fenced, -1, -1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
def test_invalid_timeouts(hand: Hand, timeout_ms: int) -> None:
    answer = hand.init(transaction_timeout_ms=timeout_ms)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1)


def test_the_longest_timeout_is_the_brokers() -> None:
    hand = Hand(transaction_max_timeout_ms="5000").started(5000)
    assert hand.init(transaction_timeout_ms=5001).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_an_open_transaction_is_aborted_first(hand: Hand) -> None:
    hand.add()
    hand.marks.held = True
    assert hand.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    hand.marks.held = False
    hand.node.pass_ms(2000)
    assert hand.state == "CompleteAbort"
    assert (hand.init().error_code, hand.epoch) == (0, 2)


def test_half_an_identity_and_an_empty_name(hand: Hand) -> None:
    assert hand.init(producer_id=7).error_code == ErrorCode.INVALID_REQUEST
    assert hand.init(name="").error_code == ErrorCode.INVALID_REQUEST


# -- AddPartitionsToTxn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_adding_in_every_version(hand: Hand, version: int) -> None:
    assert hand.add(("t", 1), version=version) == {("t", 1): 0}
    assert [(topic.topic, list(topic.partitions)) for topic in hand.describe()[0].topics] == [("t", [1])]


def test_one_wrong_partition_adds_none(hand: Hand) -> None:
    assert hand.add(("t", 0), ("t", 9), ("nobody", 0)) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nobody", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert hand.state == "Empty"


def test_internal_topics_are_not_for_clients(hand: Hand) -> None:
    assert hand.add(("__transaction_state", 0)) == {("__transaction_state", 0): ErrorCode.INVALID_TOPIC_EXCEPTION}


@pytest.mark.parametrize("version", range(4))
def test_producers_that_may_not_add(hand: Hand, version: int) -> None:
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert hand.add(version=version, producer_id=99) == {("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert hand.add(version=version, transactional_id="y") == {("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert hand.add(version=version, producer_epoch=5) == {("t", 0): fenced}
    assert hand.add(version=version, transactional_id="") == {("t", 0): ErrorCode.INVALID_REQUEST}


def batched(hand: Hand, *names: str, verify_only: bool = False, partition: int = 0) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[partition])
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    return AddPartitionsToTxnRequest(
        transactions=[
            transaction(**(hand.who | {"transactional_id": name}), verify_only=verify_only, topics=[topic])
            for name in names
        ]
    )


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_ask_for_several_transactions(hand: Hand, version: int) -> None:
    broker = Asker()
    broker.listener = ""
    place = hand.node.send(batched(hand, X, "y"), version, broker)
    results = hand.node.answer(place).results_by_transaction
    assert [(each.transactional_id, codes_of(each.topic_results)) for each in results] == [
        (X, {("t", 0): 0}),
        ("y", {("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}),
    ]
    place = hand.node.send(batched(hand, X, verify_only=True), version, broker)
    assert codes_of(hand.node.answer(place).results_by_transaction[0].topic_results) == {("t", 0): 0}
    place = hand.node.send(batched(hand, X, verify_only=True, partition=1), version, broker)
    found = codes_of(hand.node.answer(place).results_by_transaction[0].topic_results)
    assert found == {("t", 1): ErrorCode.TRANSACTION_ABORTABLE}, "it was not added"


def test_clients_cannot_send_the_requests_of_brokers(hand: Hand) -> None:
    answer = hand.ask(batched(hand, X), 4)
    assert (answer.error_code, list(answer.results_by_transaction)) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    assert hand.state == "Empty"


def test_more_transactions_than_a_request_may_have(hand: Hand) -> None:
    broker = Asker()
    broker.listener = ""
    place = hand.node.send(batched(hand, *["x" * 100] * 10_001), 4, broker)
    assert hand.node.answer(place).error_code == ErrorCode.INVALID_REQUEST


# -- AddOffsetsToTxn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_adding_offsets_in_every_version(hand: Hand, version: int) -> None:
    assert hand.add_offsets(version) == 0
    assert [topic.topic for topic in hand.describe()[0].topics] == ["__consumer_offsets"]
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert hand.add_offsets(version, producer_epoch=5) == fenced
    assert hand.add_offsets(version, producer_id=99) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert hand.add_offsets(version, group_id="") == ErrorCode.INVALID_GROUP_ID


# -- EndTxn ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_ending_in_every_version(hand: Hand, version: int) -> None:
    hand.add()
    answer = hand.end(version=version)
    bumped = version >= 5
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, *((0, 1) if bumped else (-1, -1)))
    hand.node.pass_ms(50)
    assert hand.state == "CompleteCommit"
    if not bumped:
        assert hand.end(version=version).error_code == 0, "repeated"
        assert hand.end(False, version=version).error_code == ErrorCode.INVALID_TXN_STATE
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert hand.end(version=version, producer_epoch=9).error_code == fenced
    assert hand.end(version=version, producer_id=99).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_nothing_to_end(hand: Hand) -> None:
    assert hand.end().error_code == ErrorCode.INVALID_TXN_STATE
    assert hand.end(version=5).error_code == ErrorCode.INVALID_TXN_STATE


def test_a_late_end_does_not_end_a_later_transaction(hand: Hand) -> None:
    """KIP-890: the epoch of the first transaction is over when the second one is open."""
    hand.add()
    late = EndTxnRequest(**hand.who, committed=False)
    hand.end(version=5)
    hand.node.pass_ms(50)
    hand.add()
    assert hand.ask(late, 5).error_code == ErrorCode.PRODUCER_FENCED
    assert hand.state == "Ongoing"


# -- TxnOffsetCommit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_committing_offsets_in_every_version(hand: Hand, version: int) -> None:
    hand.add_offsets()
    hand.find("g", 0)
    assert hand.commit_offset(7, version) == 0
    assert hand.offset() == (-1, 0)
    hand.end()
    hand.node.pass_ms(50)
    assert hand.offset() == (7, 0)


def test_committing_offsets_by_topic_id(hand: Hand) -> None:
    """KIP-1319."""
    hand.add_offsets()
    hand.find("g", 0)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert hand.commit_offset(7, 6) == 0
    assert hand.commit_offset(7, 6, ("t", 9)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hand.commit_offset(9, 6, topic_id=b"x" * 16) == unknown
    assert hand.commit_offset(9, 6, topic_id=bytes(16)) == unknown
    hand.end()
    hand.node.pass_ms(50)
    assert hand.offset() == (7, 0)


def test_a_member_of_an_unknown_group(hand: Hand) -> None:
    hand.add_offsets(group_id="nobody's")
    me: dict[str, Any] = {"group_id": "nobody's", "member_id": "m", "generation_id_or_member_epoch": 1}
    assert hand.commit_offset(1, 4, **me) == ErrorCode.ILLEGAL_GENERATION
    assert hand.commit_offset(1, 6, **me) == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_that_are_refused() -> None:
    hand = Hand(offset_metadata_max_bytes="10").started()
    hand.add_offsets()
    assert hand.commit_offset(1, metadata="m" * 11) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert hand.commit_offset(1, place=("t", 9)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hand.commit_offset(1, group_id="") == ErrorCode.INVALID_GROUP_ID
    assert hand.commit_offset(1, transactional_id="") == ErrorCode.INVALID_REQUEST
    assert hand.commit_offset(1, producer_id=-1) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert hand.commit_offset(1, producer_epoch=-1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert hand.offset(stable=True) == (-1, 0), "nothing of that is pending"


@pytest.mark.parametrize("verified", ["true", "false"])
def test_an_epoch_that_is_over_commits_no_offsets(verified: str) -> None:
    hand = Hand(transaction_partition_verification_enable=verified).started()
    hand.add_offsets()
    hand.find("g", 0)
    assert hand.commit_offset(1) == 0
    hand.init()
    hand.node.pass_ms(100)
    hand.init()
    hand.add_offsets()
    assert hand.commit_offset(2) == 0
    assert hand.commit_offset(3, producer_epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    hand.end()
    hand.node.pass_ms(100)
    assert hand.offset(stable=True) == (2, 0)


def test_members_that_lost_their_partitions_commit_nothing(hand: Hand) -> None:
    """KIP-447."""
    hand.add_offsets()
    member, generation = join(hand)
    me: dict[str, Any] = {"member_id": member, "generation_id_or_member_epoch": generation}
    assert hand.commit_offset(1, **me) == 0
    assert hand.commit_offset(1, **(me | {"generation_id_or_member_epoch": 9})) == ErrorCode.ILLEGAL_GENERATION
    assert hand.commit_offset(1, **(me | {"member_id": "nobody"})) == ErrorCode.UNKNOWN_MEMBER_ID
    assert (
        hand.commit_offset(1, **(me | {"member_id": "nobody", "group_instance_id": "i"}))
        == ErrorCode.FENCED_INSTANCE_ID
    )
    assert hand.commit_offset(1, 2) == 0, "who does not know KIP-447 is not asked"


def join(hand: Hand) -> tuple[str, int]:
    """A static member and its generation."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
        group_instance_id="i",
    )
    joined = hand.ask(request, 9)
    assert joined.error_code == 0
    sync = SyncGroupRequest(
        group_id="g", generation_id=joined.generation_id, member_id=joined.member_id, group_instance_id="i"
    )
    assert hand.ask(sync, 3).error_code == 0
    return joined.member_id, joined.generation_id


# -- reports -----------------------------------------------------------------------------------------------------------


def test_metrics(hand: Hand) -> None:
    value = hand.node.broker.metrics.value_of
    prefix = "kafka_coordinator_transaction_transactionstatemanager_"
    pending = "kafka_coordinator_transaction_transactionmarkerchannelmanager_pendingtransactions"
    assert (value(f"{prefix}numtransactionalids"), value(f"{prefix}numempty")) == (1, 1)
    hand.add()
    assert (value(f"{prefix}numongoing"), value(f"{prefix}numempty"), value(pending)) == (1, 0, 0)
    hand.marks.held = True
    hand.end()
    assert (value(f"{prefix}numpreparecommit"), value(pending)) == (1, 1)
    hand.marks.held = False
    hand.node.pass_ms(2000)
    assert (value(f"{prefix}numcompletecommit"), value(pending)) == (1, 0)
    assert value(f"{prefix}partitionsloading") == 0


@pytest.mark.parametrize("version", range(5))
def test_clients_see_the_feature_transaction_version_2(version: int) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    answer = Hand().ask(request, version)
    level = ("transaction.version", 2)
    finalized = [(each.name, each.max_version_level) for each in answer.finalized_features]
    assert finalized == ([level] if version >= 3 else [])
    assert answer.finalized_features_epoch == (0 if version >= 3 else -1)
    supported = [(each.name, each.min_version, each.max_version) for each in answer.supported_features]
    expected = [("transaction.version", 0, 2)] if version >= 4 else []
    assert supported == expected, "older clients cannot read a lowest version of 0 (KAFKA-17011)"


def test_stopped() -> None:
    hand = Hand().started()
    hand.add()
    transactions = hand.node.broker._coordinators.transactions
    hand.node.broker._coordinators.stop_coordinators()
    assert list(transactions.machines()) == []
    assert hand.end().error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
