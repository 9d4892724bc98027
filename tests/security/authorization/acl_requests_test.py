"""DescribeAcls, CreateAcls, DeleteAcls, and the nodes behind them.

Zone: real.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.handcluster import HandCluster
from tests.handnode import Node
from tests.security.authorization.guarded import CLUSTER, SETTINGS, Guarded, connection, creation, errors_in

from ottla.acls import Operation, PatternType, ResourceType
from ottla.cluster.acls.acl_handlers import CHANGES_MAX
from ottla.cluster.store.notification_feed import KEPT_NS
from ottla.cluster.store.workflow import read_children, read_node, run_workflow, submit_multi
from ottla.errors import ErrorCode
from ottla.seams import Op
from ottla.sim.world import MS
from ottla.wire import messages as m

ANN = "User:ann"
ANY_FILTER: dict[str, Any] = {
    "resource_type_filter": 1, "resource_name_filter": None, "principal_filter": None, "host_filter": None,
    "operation": 1, "permission_type": 1,
}  # fmt: skip


@pytest.fixture
def node() -> Guarded:
    return Guarded()


def run(node: Node, script: Any) -> Any:
    """What a workflow at the metadata store returns."""
    found: list[Any] = []

    def turn() -> None:
        run_workflow(node.broker._metadata.stores.watched, script, found.append)
        node.broker.end_turn()

    node.process.post_turn(0, "by hand", turn)
    node.pass_ms(100)
    return found[0]


def test_acls_are_created_listed_and_deleted(node: Guarded) -> None:
    assert node.listed() == []
    node.grant("Topic t", ANN, "Read", "Write")
    node.grant("Topic t", ANN, "Read")  # it exists: a success
    node.grant("Topic t+", ANN, "Describe", host="10.0.0.1")
    node.grant("Group *", "User:*", "All", deny=True)
    node.grant("Cluster ", ANN, "Alter")
    assert node.listed() == [
        "Allow User:ann Alter from * on Cluster:LITERAL:kafka-cluster",
        "Allow User:ann Describe from 10.0.0.1 on Topic:PREFIXED:t",
        "Allow User:ann Read from * on Topic:LITERAL:t",
        "Allow User:ann Write from * on Topic:LITERAL:t",
        "Deny User:* All from * on Group:LITERAL:*",
    ]
    assert len(node.listed(resource_type_filter=ResourceType.TOPIC)) == 3
    assert len(node.listed(pattern_type_filter=PatternType.PREFIXED)) == 1
    assert len(node.listed(pattern_type_filter=PatternType.LITERAL)) == 4
    matching = {"pattern_type_filter": PatternType.MATCH, "resource_type_filter": ResourceType.TOPIC}
    assert len(node.listed(resource_name_filter="t2", **matching)) == 1
    assert len(node.listed(resource_name_filter="t", **matching)) == 3
    assert len(node.listed(host_filter="10.0.0.1")) == 1
    assert len(node.listed(operation=Operation.READ)) == 1
    assert node.revoke(ANN) == 4
    assert node.listed() == ["Deny User:* All from * on Group:LITERAL:*"]
    assert node.revoke() == 1
    assert node.listed() == []


def test_acls_outlive_a_restart(node: Guarded) -> None:
    node.create("t")
    node.grant("Topic t", ANN, "Describe")
    node.grant("Topic u+", ANN, "Describe")
    before = node.listed()
    node.restart()
    assert node.listed() == before
    asked = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")])
    assert node.ask_as(ANN, asked, 9).topics[0].error_code == 0


def test_the_nodes_are_those_of_apache_kafka(node: Guarded) -> None:
    node.grant("Topic t", ANN, "Read")
    node.grant("TransactionalId x+", ANN, "Write", host="10.0.0.1")
    literal = run(node, read_node("/kafka-acl/Topic/t"))
    prefixed = run(node, read_node("/kafka-acl-extended/prefixed/TransactionalId/x"))
    entry = {"principal": ANN, "permissionType": "Allow", "host": "*", "operation": "Read"}
    assert json.loads(literal.data) == {"version": 1, "acls": [entry]}
    assert json.loads(prefixed.data)["acls"] == [{**entry, "host": "10.0.0.1", "operation": "Write"}]
    assert run(node, read_children("/kafka-acl-changes")) == ["acl_changes_0000000000"]
    assert run(node, read_children("/kafka-acl-extended-changes")) == ["acl_changes_0000000000"]
    assert node.revoke() == 2
    assert run(node, read_node("/kafka-acl/Topic/t")) is None


def test_a_change_counts_at_the_next_request(node: Guarded) -> None:
    node.create("t")
    asked = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")])

    def error() -> int:
        return node.ask_as(ANN, asked, 9).topics[0].error_code

    for _ in range(3):
        assert error() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        node.grant("Topic t", ANN, "Read")
        assert error() == 0
        node.grant("Topic t", ANN, "All", deny=True)
        assert error() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        node.revoke()


def write_acls(node: Guarded, path: str, data: bytes, prefix: str = "/kafka-acl-changes", notice: bytes = b"") -> None:
    """Change a node as another program does."""
    present = run(node, read_node(path))
    verb = "create" if present is None else "put"
    notification = Op("sequential", f"{prefix}/acl_changes_", notice)
    run(node, submit_multi("outside", [Op(verb, path, data), notification]))  # type: ignore[arg-type]
    node.pass_ms(1000)


def test_changes_of_other_programs_are_noticed(node: Guarded) -> None:
    entry = {"principal": ANN, "permissionType": "Allow", "host": "*", "operation": "Read"}
    content = json.dumps({"version": 1, "acls": [entry]}).encode()
    write_acls(node, "/kafka-acl/Topic/t", content, notice=b"Topic:t")
    assert node.listed() == ["Allow User:ann Read from * on Topic:LITERAL:t"]
    # A notification that cannot be read may be about any resource.
    write_acls(node, "/kafka-acl/Group/g", content, notice=b"nonsense")
    assert len(node.listed()) == 2
    run(node, submit_multi("outside", [Op("delete", "/kafka-acl/Topic/t")]))
    write_acls(node, "/kafka-acl/Group/g", content, "/kafka-acl-extended-changes", b"{}")
    assert node.listed() == ["Allow User:ann Read from * on Group:LITERAL:g"]


def test_a_node_that_cannot_be_read_denies_everything_at_its_resource(node: Guarded, caplog) -> None:
    node.create("t")
    node.create("u")
    node.grant("Topic *", ANN, "Describe")
    write_acls(node, "/kafka-acl/Topic/t", b"{", notice=b"Topic:t")
    asked = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in ("t", "u")]
    for _ in range(2):
        topics = node.ask_as(ANN, m.MetadataRequest(topics=asked), 9).topics
        assert {each.name: each.error_code for each in topics} == {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "u": 0}
        assert any("everything is denied at Topic:LITERAL:t" in line for line in caplog.messages)
        node.peers.clear()
        node.restart()
    # It cannot be changed either, because a denial in it would be lost.
    response = node.ask(m.CreateAclsRequest(creations=[creation("Topic t", ANN, "Read")]), 2)
    assert response.results[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    run(node, submit_multi("outside", [Op("delete", "/kafka-acl/Topic/t")]))
    node.restart()
    topics = node.ask_as(ANN, m.MetadataRequest(topics=asked), 9).topics
    assert [each.error_code for each in topics] == [0, 0]


def test_old_notifications_are_removed(node: Guarded) -> None:
    node.grant("Topic t", ANN, "Read")
    node.pass_ms(KEPT_NS // MS + 1000)
    node.grant("Topic t", ANN, "Write")
    node.pass_ms(1000)
    assert run(node, read_children("/kafka-acl-changes")) == ["acl_changes_0000000001"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"resource_name": ""}, "should not be empty"),
        ({"resource_name": "a/b"}, "cannot contain"),
        ({"resource_name": ".."}, ""),
        ({"resource_type": 99}, "resourceType"),
        ({"resource_type": 1}, "resourceType"),
        ({"resource_type": 4}, CLUSTER),
        ({"resource_pattern_type": 2}, "patternType"),
        ({"resource_pattern_type": 0}, "patternType"),
        ({"operation": 1}, "operation"),
        ({"operation": 99}, "operation"),
        ({"permission_type": 1}, "permissionType"),
        ({"principal": "ann"}, "type:name"),
        ({"host": ""}, "host"),
    ],
)
def test_acls_that_cannot_be_created(node: Guarded, change: dict[str, Any], error: str) -> None:
    wrong = creation("Topic t", ANN, "Read")
    for key, value in change.items():
        setattr(wrong, key, value)
    response = node.ask(m.CreateAclsRequest(creations=[creation("Topic t", ANN, "Read"), wrong]), 2)
    assert [each.error_code for each in response.results] == [0, ErrorCode.INVALID_REQUEST]
    assert error in response.results[1].error_message
    assert len(node.listed()) == 1


@pytest.mark.parametrize("field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
def test_filters_that_cannot_be_used(node: Guarded, field: str) -> None:
    node.grant("Topic t", ANN, "Read")
    fields = {**ANY_FILTER, "pattern_type_filter": 1, field: 99}
    response = node.ask(m.DescribeAclsRequest(**fields), 2)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    wrong = m.DeleteAclsRequest.DeleteAclsFilter(**fields)
    response = node.ask(m.DeleteAclsRequest(filters=[wrong]), 2)
    assert response.filter_results[0].error_code == ErrorCode.INVALID_REQUEST
    assert len(node.listed()) == 1


def test_without_an_authorizer_security_is_disabled() -> None:
    node = Node()
    one = creation("Topic t", ANN, "Read")
    for request in (
        m.DescribeAclsRequest(**ANY_FILTER),
        m.CreateAclsRequest(creations=[one]),
        m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter(**ANY_FILTER)]),
    ):
        for version in range(4):
            assert set(errors_in(node.ask(request, version))) == {ErrorCode.SECURITY_DISABLED}


def test_a_large_request_is_handled_in_parts_and_limited(node: Guarded) -> None:
    creations = [creation(f"Topic t-{number % 300}", f"User:u{number}", "Read") for number in range(1000)]
    response = node.ask(m.CreateAclsRequest(creations=creations), 2)
    assert {each.error_code for each in response.results} == {0}
    assert len(response.results) == len(node.listed()) == 1000
    assert len(node.listed(principal_filter="User:u7")) == 1
    assert node.revoke() == 1000
    many = [creation(f"Topic m-{number // 50}", f"User:{number}", "All") for number in range(CHANGES_MAX + 10)]
    errors = [each.error_code for each in node.ask(m.CreateAclsRequest(creations=many), 2).results]
    assert errors[:CHANGES_MAX] == [0] * CHANGES_MAX
    assert errors[CHANGES_MAX:] == [ErrorCode.POLICY_VIOLATION] * 10


def test_each_change_of_acls_is_in_the_audit_log(node: Guarded, caplog) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    node.grant("Topic t", ANN, "Read")
    node.grant("Topic t", ANN, "Read")
    node.revoke()
    lines = [line for line in caplog.messages if line.startswith("changed ")]
    shared = 'changed principal="User:boss" host="127.0.0.1" listener="PLAINTEXT" kind="acl"'
    acl = 'acl="Allow Read for User:ann from host * on Topic:LITERAL:t"'
    assert lines == [f'{shared} operation="create" {acl}', f'{shared} operation="delete" {acl}']


def test_each_change_of_users_and_quotas_is_in_the_audit_log(node: Guarded, caplog) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    upsertion = m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="ann", mechanism=1, iterations=4096, salt=b"secret-salt", salted_password=b"x" * 32
    )
    deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="ann", mechanism=1)
    for request in (
        m.AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]),
        m.AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]),
        m.AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]),  # nothing is changed
    ):
        node.ask(request, 0)
    quota = m.AlterClientQuotasRequest
    ops = [quota.OpData(key="producer_byte_rate", value=10), quota.OpData(key="consumer_byte_rate", remove=True)]
    entry = quota.EntryData(entity=[quota.EntityData(entity_type="user", entity_name="ann")], ops=ops)
    for only_validate in (True, False):
        answer = node.ask(quota(entries=[entry], validate_only=only_validate), 1)
        assert answer.entries[0].error_code == 0, answer
    shared = 'changed principal="User:boss" host="127.0.0.1" listener="PLAINTEXT"'
    assert [line for line in caplog.messages if line.startswith("changed ")] == [
        f'{shared} kind="user" operation="set" user="ann" mechanism="SCRAM-SHA-256"',
        f'{shared} kind="user" operation="delete" user="ann" mechanism="SCRAM-SHA-256"',
        f'{shared} kind="quota" entity="users/ann" changes="producer_byte_rate=10.0, consumer_byte_rate="',
    ]


def test_brokers_of_a_cluster_learn_of_changes() -> None:
    cluster = HandCluster(SETTINGS)
    boss = connection("User:boss")
    first, second = cluster[1], cluster[2]
    first.answer(first.send(m.CreateAclsRequest(creations=[creation("Topic t", ANN, "Create")]), 2, boss))
    cluster.pass_ms(1000)
    response = second.answer(second.send(m.DescribeAclsRequest(**ANY_FILTER, pattern_type_filter=1), 2, boss))
    assert [each.resource_name for each in response.resources] == ["t"]
    # Every broker refuses by itself; only the controller creates topics.
    wanted = m.CreateTopicsRequest(
        topics=[
            m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in ("t", "u")
        ],
        timeout_ms=5000,
    )
    for member in (first, second):
        topics = member.answer(member.send(wanted, 5, connection(ANN))).topics
        codes = {each.name: each.error_code for each in topics}
        assert codes["u"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert codes["t"] == (0 if member is cluster.controller else ErrorCode.NOT_CONTROLLER)
