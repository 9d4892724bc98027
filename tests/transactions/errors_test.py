"""Every error that groups and transactions may answer with has a test that provokes it; the table names it.

Zone: real. Each row is checked: the test exists, and its text contains the error.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey

TESTS = Path(__file__).resolve().parents[1]
REQUESTS = "transactions/requests_test.py"
PARTITIONS = "transactions/partitions_test.py"
ADMIN = "transactions/admin_test.py"
COORDINATORS = "transactions/coordinators_test.py"
FAILOVER = "groups/failover_test.py"
STATIC = "groups/static_members_test.py"
MEMBERS = "groups/members_test.py"
OFFSETS = "groups/offsets_test.py"
GROUPS = "groups/requests_test.py"
PRODUCE = "replication/produce_test.py"
VERIFICATION = "replication/verification_test.py"
MARKERS = "replication/marker_requests_test.py"
REPLICATED = "groups/replicated_test.py"
BY_CLIENTS = f"{MARKERS}::test_clients_may_only_abort_open_transactions"
OF_COORDINATOR = f"{VERIFICATION}::test_the_coordinators_code_is_mapped_for_the_produce_version"

COORDINATOR = {
    # A broker that is not the coordinator, is loading, or cannot append to its log.
    "NOT_COORDINATOR": f"{COORDINATORS}::test_a_broker_that_coordinates_nothing",
    "COORDINATOR_LOAD_IN_PROGRESS": f"{COORDINATORS}::test_a_coordinator_that_is_loading",
    "COORDINATOR_NOT_AVAILABLE": f"{COORDINATORS}::test_a_coordinator_whose_log_refuses_appends",
}
ADDING = COORDINATOR | {
    "CONCURRENT_TRANSACTIONS": f"{REQUESTS}::test_requests_while_a_transaction_ends",
    "PRODUCER_FENCED": f"{REQUESTS}::test_producers_that_may_not_add",
    "INVALID_PRODUCER_EPOCH": f"{REQUESTS}::test_producers_that_may_not_add",
    "INVALID_PRODUCER_ID_MAPPING": f"{REQUESTS}::test_producers_that_may_not_add",
}
GROUP_COORDINATOR = {
    "NOT_COORDINATOR": f"{GROUPS}::test_no_broker_coordinates_before_the_topic_exists",
    "COORDINATOR_LOAD_IN_PROGRESS": f"{REPLICATED}::test_a_loading_shard_answers_coordinator_load_in_progress",
    "COORDINATOR_NOT_AVAILABLE": f"{REPLICATED}::test_a_commit_that_no_replica_fetches_times_out",
    "INVALID_GROUP_ID": f"{GROUPS}::test_an_empty_group_id_is_accepted_only_where_kafka_accepts_it",
}
RIGHTS = "security/authorization/transaction_rights_test.py"
ADDING_OFFSETS = f"{RIGHTS}::test_add_offsets_needs_the_transactional_id_and_read_on_the_group"
COMMITTING = f"{RIGHTS}::test_txn_offset_commit_needs_the_transactional_id_the_group_and_the_topics"
PRODUCING = f"{RIGHTS}::test_produce_needs_the_transactional_id_and_write_on_the_topic"
PROVOKED: dict[str, dict[str, str]] = {
    "InitProducerId": COORDINATOR | {
        "CONCURRENT_TRANSACTIONS": f"{REQUESTS}::test_an_open_transaction_is_aborted_first",
        "INVALID_TRANSACTION_TIMEOUT": f"{REQUESTS}::test_invalid_timeouts",
        "PRODUCER_FENCED": f"{REQUESTS}::test_a_producer_that_was_replaced",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
            f"{RIGHTS}::test_init_producer_id_needs_write_on_the_transactional_id",
        "CLUSTER_AUTHORIZATION_FAILED":
            f"{RIGHTS}::test_an_idempotent_producer_needs_idempotent_write_or_write_on_any_topic",
    },
    "AddPartitionsToTxn": ADDING | {
        "OPERATION_NOT_ATTEMPTED": f"{REQUESTS}::test_one_wrong_partition_adds_none",
        "UNKNOWN_TOPIC_OR_PARTITION": f"{REQUESTS}::test_one_wrong_partition_adds_none",
        "TRANSACTION_ABORTABLE": f"{REQUESTS}::test_brokers_ask_for_several_transactions",
        "CLUSTER_AUTHORIZATION_FAILED": f"{REQUESTS}::test_clients_cannot_send_the_requests_of_brokers",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": f"{RIGHTS}::test_add_partitions_needs_write_on_the_transactional_id",
        "TOPIC_AUTHORIZATION_FAILED": f"{RIGHTS}::test_add_partitions_needs_write_on_every_topic",
    },
    "AddOffsetsToTxn": ADDING | {
        "PRODUCER_FENCED": f"{REQUESTS}::test_adding_offsets_in_every_version",
        "INVALID_PRODUCER_EPOCH": f"{REQUESTS}::test_adding_offsets_in_every_version",
        "INVALID_PRODUCER_ID_MAPPING": f"{REQUESTS}::test_adding_offsets_in_every_version",
        "INVALID_GROUP_ID": f"{REQUESTS}::test_adding_offsets_in_every_version",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": ADDING_OFFSETS,
        "GROUP_AUTHORIZATION_FAILED": ADDING_OFFSETS,
    },
    "EndTxn": COORDINATOR | {
        "INVALID_TXN_STATE": f"{REQUESTS}::test_nothing_to_end",
        "CONCURRENT_TRANSACTIONS": f"{REQUESTS}::test_requests_while_a_transaction_ends",
        "PRODUCER_FENCED": f"{REQUESTS}::test_ending_in_every_version",
        "INVALID_PRODUCER_EPOCH": f"{REQUESTS}::test_ending_in_every_version",
        "INVALID_PRODUCER_ID_MAPPING": f"{REQUESTS}::test_ending_in_every_version",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": f"{RIGHTS}::test_end_txn_needs_write_on_the_transactional_id",
    },
    "TxnOffsetCommit": GROUP_COORDINATOR | {
        "INVALID_GROUP_ID": f"{REQUESTS}::test_offsets_that_are_refused",
        "INVALID_PRODUCER_EPOCH": f"{REQUESTS}::test_an_epoch_that_is_over_commits_no_offsets",
        "INVALID_PRODUCER_ID_MAPPING": f"{REQUESTS}::test_offsets_that_are_refused",
        "INVALID_TXN_STATE": f"{PARTITIONS}::test_offsets_of_a_group_that_was_not_added_are_refused",
        "TRANSACTION_ABORTABLE": f"{PARTITIONS}::test_offsets_of_a_group_that_was_not_added_are_refused",
        "COORDINATOR_LOAD_IN_PROGRESS": f"{PARTITIONS}::test_offsets_while_the_last_transaction_ends_are_tried_again",
        "UNKNOWN_MEMBER_ID": f"{REQUESTS}::test_members_that_lost_their_partitions_commit_nothing",
        "ILLEGAL_GENERATION": f"{REQUESTS}::test_members_that_lost_their_partitions_commit_nothing",
        "FENCED_INSTANCE_ID": f"{REQUESTS}::test_members_that_lost_their_partitions_commit_nothing",
        "GROUP_ID_NOT_FOUND": f"{REQUESTS}::test_a_member_of_an_unknown_group",
        "OFFSET_METADATA_TOO_LARGE": f"{REQUESTS}::test_offsets_that_are_refused",
        "UNKNOWN_TOPIC_OR_PARTITION": f"{REQUESTS}::test_offsets_that_are_refused",
        "UNKNOWN_TOPIC_ID": f"{REQUESTS}::test_committing_offsets_by_topic_id",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": COMMITTING,
        "GROUP_AUTHORIZATION_FAILED": COMMITTING,
    },
    "Produce": {
        "DUPLICATE_SEQUENCE_NUMBER": f"{PRODUCE}::test_a_gap_an_old_epoch_and_a_long_gone_batch_have_their_errors",
        "OUT_OF_ORDER_SEQUENCE_NUMBER": f"{PRODUCE}::test_a_gap_an_old_epoch_and_a_long_gone_batch_have_their_errors",
        "INVALID_PRODUCER_EPOCH": f"{PRODUCE}::test_a_gap_an_old_epoch_and_a_long_gone_batch_have_their_errors",
        "INVALID_RECORD": f"{PRODUCE}::test_batches_that_cannot_be_appended_get_an_error_and_a_text",
        "INVALID_TOPIC_EXCEPTION": f"{PRODUCE}::test_clients_may_not_write_to_an_internal_topic",
        "TRANSACTION_ABORTABLE": OF_COORDINATOR,
        "INVALID_TXN_STATE": OF_COORDINATOR,
        "INVALID_PRODUCER_ID_MAPPING": OF_COORDINATOR,
        "CONCURRENT_TRANSACTIONS": f"{VERIFICATION}::test_a_transaction_that_is_about_to_be_complete_is_given_a_moment",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": PRODUCING,
        "TOPIC_AUTHORIZATION_FAILED": PRODUCING,
    },
    "WriteTxnMarkers": {
        "CLUSTER_AUTHORIZATION_FAILED": BY_CLIENTS,
        "INVALID_TXN_STATE": BY_CLIENTS,
        "TRANSACTION_COORDINATOR_FENCED": f"{MARKERS}::test_every_partition_has_its_own_answer",
        "INVALID_PRODUCER_EPOCH": f"{MARKERS}::test_every_partition_has_its_own_answer",
        "NOT_LEADER_OR_FOLLOWER": f"{MARKERS}::test_every_partition_has_its_own_answer",
        "UNKNOWN_TOPIC_OR_PARTITION": f"{MARKERS}::test_every_partition_has_its_own_answer",
    },
    "DescribeTransactions": COORDINATOR | {"TRANSACTIONAL_ID_NOT_FOUND": f"{ADMIN}::test_describing"},
    "ListTransactions": {
        "COORDINATOR_LOAD_IN_PROGRESS": f"{COORDINATORS}::test_a_coordinator_that_is_loading",
        "INVALID_REGULAR_EXPRESSION": f"{ADMIN}::test_patterns_that_are_malformed_or_cost_too_much",
    },
    "JoinGroup": GROUP_COORDINATOR | {
        "INVALID_SESSION_TIMEOUT": "groups/sizes_test.py::test_session_timeouts_of_every_size",
        "INCONSISTENT_GROUP_PROTOCOL": f"{MEMBERS}::test_joins_that_the_group_refuses",
        "UNKNOWN_MEMBER_ID": f"{MEMBERS}::test_joins_that_the_group_refuses",
        "MEMBER_ID_REQUIRED": f"{GROUPS}::test_join_in_every_version",
        "GROUP_MAX_SIZE_REACHED": f"{GROUPS}::test_limits_are_those_of_the_config",
        "FENCED_INSTANCE_ID": f"{STATIC}::test_the_waiting_request_of_a_replaced_static_member_is_fenced",
        "REBALANCE_IN_PROGRESS": f"{MEMBERS}::test_a_second_request_of_a_member_refuses_the_first",
    },
    "SyncGroup": {
        "UNKNOWN_MEMBER_ID": f"{MEMBERS}::test_syncs_that_the_group_refuses",
        "ILLEGAL_GENERATION": f"{MEMBERS}::test_syncs_that_the_group_refuses",
        "INCONSISTENT_GROUP_PROTOCOL": f"{MEMBERS}::test_syncs_that_the_group_refuses",
        "REBALANCE_IN_PROGRESS": f"{MEMBERS}::test_a_new_rebalance_refuses_waiting_syncs",
        "UNKNOWN_SERVER_ERROR": f"{GROUPS}::test_an_assignment_too_large_for_a_batch",
    },
    "Heartbeat": {
        "NOT_COORDINATOR": f"{GROUPS}::test_no_broker_coordinates_before_the_topic_exists",
        "INVALID_GROUP_ID": f"{MEMBERS}::test_heartbeats_that_the_group_refuses",
        "UNKNOWN_MEMBER_ID": f"{MEMBERS}::test_heartbeats_that_the_group_refuses",
        "ILLEGAL_GENERATION": f"{MEMBERS}::test_heartbeats_that_the_group_refuses",
        "REBALANCE_IN_PROGRESS": f"{GROUPS}::test_a_waiting_join_holds_up_its_own_connection_only",
        "FENCED_INSTANCE_ID": f"{STATIC}::test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance",
    },
    "LeaveGroup": {
        "UNKNOWN_MEMBER_ID": f"{MEMBERS}::test_leaving",
        "FENCED_INSTANCE_ID": f"{STATIC}::test_a_static_member_leaves_by_its_instance",
    },
    "OffsetCommit": {
        "UNKNOWN_MEMBER_ID": f"{OFFSETS}::test_a_group_with_members_takes_commits_of_members_only",
        "ILLEGAL_GENERATION": f"{GROUPS}::test_an_unknown_group_is_an_error_that_the_version_knows",
        "GROUP_ID_NOT_FOUND": f"{GROUPS}::test_an_unknown_group_is_an_error_that_the_version_knows",
        "REBALANCE_IN_PROGRESS": f"{OFFSETS}::test_during_a_rebalance_the_old_generation_may_finish_its_work",
        "OFFSET_METADATA_TOO_LARGE": f"{GROUPS}::test_commits_for_partitions_that_do_not_exist",
        "INVALID_COMMIT_OFFSET_SIZE": f"{GROUPS}::test_a_commit_too_large_for_a_batch",
        "UNKNOWN_TOPIC_OR_PARTITION": f"{GROUPS}::test_commits_for_partitions_that_do_not_exist",
        "UNKNOWN_TOPIC_ID": f"{GROUPS}::test_topics_named_by_id",
        "COORDINATOR_NOT_AVAILABLE": f"{REPLICATED}::test_too_few_replicas_refuse_a_commit_before_it_is_written",
    },
    "OffsetFetch": {
        "NOT_COORDINATOR": f"{GROUPS}::test_no_broker_coordinates_before_the_topic_exists",
        "UNSTABLE_OFFSET_COMMIT": f"{REQUESTS}::test_offsets_stay_unstable_until_the_marker_is_there",
        "UNKNOWN_TOPIC_ID": f"{GROUPS}::test_topics_named_by_id",
    },
    "OffsetDelete": {
        "GROUP_ID_NOT_FOUND": "groups/sizes_test.py::test_refused_requests_leave_no_state",
        "GROUP_SUBSCRIBED_TO_TOPIC": f"{OFFSETS}::test_offsets_that_members_consume_cannot_be_dropped",
        "NON_EMPTY_GROUP": f"{OFFSETS}::test_offsets_of_other_protocol_types_cannot_be_dropped",
        "UNKNOWN_TOPIC_OR_PARTITION": f"{GROUPS}::test_deleting_offsets",
    },
    "DeleteGroups": {
        "NON_EMPTY_GROUP": f"{FAILOVER}::test_a_deleted_group_stays_deleted",
        "GROUP_ID_NOT_FOUND": "groups/sizes_test.py::test_refused_requests_leave_no_state",
    },
}  # fmt: skip
NOT_PROVOKED = {
    "UNKNOWN_PRODUCER_ID": "as in Apache Kafka today: a producer without state in the log may begin at any sequence",
}
"""Errors that no broker of ours answers, and why."""
NOT_BY = {
    (
        "AddPartitionsToTxn",
        "INVALID_TXN_STATE",
    ): "a transaction that ends is CONCURRENT_TRANSACTIONS, one that has ended begins",
    ("AddOffsetsToTxn", "INVALID_TXN_STATE"): "as AddPartitionsToTxn",
}
"""Errors that single requests are not answered with, and why."""
_ADDED = (
    "NOT_COORDINATOR COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE CONCURRENT_TRANSACTIONS PRODUCER_FENCED "
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED INVALID_PRODUCER_ID_MAPPING INVALID_PRODUCER_EPOCH INVALID_TXN_STATE"
)
KAFKAS = {
    "InitProducerId": "NOT_COORDINATOR COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE CONCURRENT_TRANSACTIONS "
    "INVALID_TRANSACTION_TIMEOUT PRODUCER_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "AddPartitionsToTxn": f"{_ADDED} TOPIC_AUTHORIZATION_FAILED OPERATION_NOT_ATTEMPTED",
    "AddOffsetsToTxn": f"{_ADDED} GROUP_AUTHORIZATION_FAILED",
    "EndTxn": "INVALID_TXN_STATE INVALID_PRODUCER_EPOCH PRODUCER_FENCED",
    "TxnOffsetCommit": "INVALID_PRODUCER_EPOCH UNKNOWN_MEMBER_ID ILLEGAL_GENERATION FENCED_INSTANCE_ID "
    "OFFSET_METADATA_TOO_LARGE",
    "Produce": "DUPLICATE_SEQUENCE_NUMBER OUT_OF_ORDER_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH UNKNOWN_PRODUCER_ID "
    "TRANSACTION_ABORTABLE INVALID_RECORD",
    "WriteTxnMarkers": "CLUSTER_AUTHORIZATION_FAILED TRANSACTION_COORDINATOR_FENCED",
}
"""The errors that Kafka's documentation lists for each request of a transaction."""
ROWS = [(api, error, test) for api, rows in PROVOKED.items() for error, test in rows.items()]


@cache
def functions(file: str) -> dict[str, str]:
    """The text of every test of a file, with its decorators."""
    text = (TESTS / file).read_text()
    lines = text.splitlines()
    return {
        node.name: "\n".join(
            lines[min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1 : node.end_lineno]
        )
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize(("api", "error", "test"), ROWS, ids=[f"{api}-{error}" for api, error, _ in ROWS])
def test_every_error_has_a_test_that_provokes_it(api: str, error: str, test: str) -> None:
    assert error in ErrorCode.__members__
    assert api.lower() in {key.name.replace("_", "").lower() for key in ApiKey}
    file, _, name = test.partition("::")
    assert error in functions(file)[name], f"{test} does not speak of {error}"


def test_errors_that_no_broker_answers_are_not_in_the_source() -> None:
    answered = {error for _, error, _ in ROWS}
    assert not answered & set(NOT_PROVOKED)
    source = TESTS.parent / "src" / "ottla"
    for room in ("groups", "transactions", "coordinator", "replication", "storage"):
        for path in (source / room).rglob("*.py"):
            for error in NOT_PROVOKED:
                assert f"ErrorCode.{error}" not in path.read_text(), f"{path.name} answers {error}: it needs a test"


def test_errors_that_clients_expect_are_provoked_or_explained() -> None:
    missing = [
        (api, error)
        for api, errors in KAFKAS.items()
        for error in errors.split()
        if error not in PROVOKED[api] and error not in NOT_PROVOKED and (api, error) not in NOT_BY
    ]
    assert missing == []
    assert not [pair for pair in NOT_BY if pair[1] in PROVOKED[pair[0]]]
