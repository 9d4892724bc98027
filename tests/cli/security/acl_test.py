"""`ottla acl`."""

from __future__ import annotations

import json

import pytest
from tests.cli.security.fake_cluster import FakeCluster


def rules(fake: FakeCluster) -> set[str]:
    return {str(binding) for binding in fake.acls}


def test_add_list_remove(fake, run) -> None:
    words = ("--allow", "ann", "--allow-host", "10.0.0.1", "--deny", "User:eve", "-O", "read", "-O", "DescribeConfigs")
    made = run("acl", "add", *words, "--topic", "orders", "-o", "jsonl")
    assert made.exit_code == 0
    assert rules(fake) == {
        "Allow Read for User:ann from host 10.0.0.1 on Topic:LITERAL:orders",
        "Allow DescribeConfigs for User:ann from host 10.0.0.1 on Topic:LITERAL:orders",
        "Deny Read for User:eve from host * on Topic:LITERAL:orders",
        "Deny DescribeConfigs for User:eve from host * on Topic:LITERAL:orders",
    }
    assert json.loads(made.stdout.splitlines()[0]) == {
        "resource_type": "TOPIC",
        "name": "orders",
        "pattern_type": "LITERAL",
        "permission": "ALLOW",
        "principal": "User:ann",
        "host": "10.0.0.1",
        "operation": "READ",
    }
    listed = [line.split() for line in run("acl", "list", "--principal", "eve").stdout.splitlines()]
    assert listed == [
        ["RESOURCE", "NAME", "PATTERN", "PERMISSION", "PRINCIPAL", "HOST", "OPERATION"],
        ["TOPIC", "orders", "LITERAL", "DENY", "User:eve", "*", "READ"],
        ["TOPIC", "orders", "LITERAL", "DENY", "User:eve", "*", "DESCRIBE_CONFIGS"],
    ]
    gone = run("acl", "remove", "--deny", "eve", "--topic", "orders", "--yes", "-o", "json")
    assert [each["principal"] for each in json.loads(gone.stdout)] == ["User:eve", "User:eve"]
    assert not any("eve" in rule for rule in rules(fake))
    assert run("acl", "remove", "--deny", "eve", "--yes").exit_code == 3


def test_the_shorthands_are_those_of_kafka_acls(fake, run) -> None:
    words = ("--topic", "orders", "--group", "g", "--transactional-id", "tx")
    made = run("acl", "add", "--allow", "ann", "--producer", "--consumer", "--idempotent", *words)
    assert made.exit_code == 0
    assert {rule.removeprefix("Allow ").replace(" for User:ann from host *", "") for rule in rules(fake)} == {
        "Write on Topic:LITERAL:orders",
        "Describe on Topic:LITERAL:orders",
        "Create on Topic:LITERAL:orders",
        "Read on Topic:LITERAL:orders",
        "Read on Group:LITERAL:g",
        "Write on TransactionalId:LITERAL:tx",
        "Describe on TransactionalId:LITERAL:tx",
        "IdempotentWrite on Cluster:LITERAL:kafka-cluster",
    }
    assert run("acl", "remove", "--allow", "ann", "--producer", "--topic", "orders", "--yes").exit_code == 0
    assert len(fake.acls) == 5


def test_prefixes_and_all_kinds_of_resources(fake, run) -> None:
    kinds = (
        "--topic",
        "t-",
        "-g",
        "g-",
        "--transactional-id",
        "x-",
        "--delegation-token",
        "d-",
        "--user-principal",
        "u",
    )
    made = run("acl", "add", "--allow", "*", "-O", "describe-tokens", "--pattern", "prefixed", *kinds)
    assert made.exit_code == 2
    assert "'describe-tokens' is not an operation: use one of All, Read" in made.stderr
    made = run("acl", "add", "--allow", "*", "-O", "ALL", "--pattern", "prefixed", *kinds, "--cluster")
    assert made.exit_code == 0
    assert {rule.partition(" on ")[2] for rule in rules(fake)} == {
        "Topic:PREFIXED:t-",
        "Group:PREFIXED:g-",
        "TransactionalId:PREFIXED:x-",
        "DelegationToken:PREFIXED:d-",
        "User:PREFIXED:User:u",
        "Cluster:LITERAL:kafka-cluster",
    }
    assert run("acl", "list", "-t", "t-1").stdout.count("\n") == 2
    assert run("acl", "list", "-t", "t-1", "--pattern", "literal").stdout.count("\n") == 1
    assert run("acl", "list", "-t", "t-", "--pattern", "prefixed").stdout.count("\n") == 2


def test_nothing_is_removed_that_was_not_named(fake, run) -> None:
    run("acl", "add", "--allow", "ann", "-O", "Read", "-t", "a", "-t", "b")
    for words in ((), ("--all", "--topic", "a")):
        assert run("acl", "remove", "--yes", *words).exit_code == 2
    asked = run("acl", "remove", "--topic", "a")
    assert asked.exit_code == 2
    assert "add --yes" in asked.stderr
    assert len(fake.acls) == 2
    assert run("acl", "remove", "--yes", "--topic", "a").exit_code == 0
    assert rules(fake) == {"Allow Read for User:ann from host * on Topic:LITERAL:b"}
    assert run("acl", "remove", "--yes", "--all").exit_code == 0
    assert fake.acls == set()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--topic t -O Read", "name a user"),
        ("--allow ann -O Read", "name a resource"),
        ("--allow ann --topic t", "name an operation"),
        ("--allow User: --topic t -O Read", "'User:' is not a user"),
        ("--allow ann --topic t -O Fly", "'Fly' is not an operation"),
        ("--allow ann --group g -O Write", "Write does not exist for a Group"),
        ("--allow ann --deny-host 1.1.1.1 --topic t -O Read", "--deny-host needs --deny"),
        ("--allow ann --consumer --topic t", "--consumer needs --group"),
        ("--allow ann --producer --group g", "need --topic"),
        ("--allow ann --producer --topic t --group g", "no operation on a Group"),
        ("--allow ann --producer --topic t -O Read", "leave out --operation"),
        ("--deny ann --producer --topic t", "leave out --operation and --deny"),
        ("--allow ann --consumer --topic t --group g --idempotent", "--idempotent belongs to --producer"),
        ("--allow ann --topic t -O Read --idempotent", "--idempotent belongs to --producer"),
    ],
)
def test_wrong_words_are_exit_code_2(fake, run, words: str, text: str) -> None:
    refused = run("acl", "add", *words.split())
    assert refused.exit_code == 2
    assert text in refused.stderr
    assert fake.acls == set()


def test_refused_acls_are_named_one_by_one(fake, run) -> None:
    made = run("acl", "add", "--allow", "ann", "-O", "Read", "--topic", "", "--topic", "good")
    assert made.exit_code == 1
    assert "good" in made.stdout
    assert "INVALID_REQUEST: Resource name should not be empty" in made.stderr


def test_check_decides_as_the_broker_and_names_the_rule(fake, run) -> None:
    fake.settings = {"super.users": "User:root;User:boss", "allow.everyone.if.no.acl.found": "false"}
    run("acl", "add", "--allow", "ann", "-O", "Write", "--topic", "or", "--pattern", "prefixed")
    run("acl", "add", "--deny", "ann", "--deny-host", "10.0.0.9", "-O", "Write", "--topic", "*")
    implied = run("acl", "check", "ann", "Describe", "--topic", "orders")
    assert implied.exit_code == 0
    assert implied.stdout == "yes: allowed by: Allow Write for User:ann from host * on Topic:PREFIXED:or\n"
    denied = run("acl", "check", "ann", "write", "-t", "orders", "--host", "::ffff:10.0.0.9", "-o", "json")
    assert denied.exit_code == 1
    document = json.loads(denied.stdout)
    assert (document["allowed"], document["host"], document["principal"]) == (False, "10.0.0.9", "User:ann")
    assert (document["acl"]["permission"], document["acl"]["name"]) == ("DENY", "*")
    assert run("acl", "check", "ann", "Read", "-t", "orders").stdout.startswith(
        "no: no ACL of the resource allows Read"
    )
    assert run("acl", "check", "boss", "All", "--cluster").stdout == "yes: User:boss is a super user\n"
    assert run("acl", "check", "ann", "Read", "--group", "g").stdout == (
        "no: the resource has no ACL, and allow.everyone.if.no.acl.found=false\n"
    )
    fake.settings["allow.everyone.if.no.acl.found"] = "true"
    assert run("acl", "check", "ann", "Read", "--group", "g").exit_code == 0


def test_check_notes_what_the_brokers_hide(fake, run) -> None:
    fake.settings = {"super.users": None}
    hidden = run("acl", "check", "root", "Create", "--cluster")
    assert hidden.exit_code == 1
    assert "the brokers do not disclose super.users: taken as unset" in hidden.stderr
    given = run("acl", "check", "root", "Create", "--cluster", "--super-users", "User:root")
    assert given.exit_code == 0
    assert "super.users" not in given.stderr
    assert run("acl", "check", "root", "Create", "--cluster", "--super-users", "root").exit_code == 2


@pytest.mark.parametrize("words", ["Read", "Read --topic a --group b", "Fly --topic a", "Write --group g"])
def test_check_wants_one_case(run, words: str) -> None:
    assert run("acl", "check", "ann", *words.split()).exit_code == 2
