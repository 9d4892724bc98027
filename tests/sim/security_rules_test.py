"""The model of ACLs that judges runs with an authorizer, and the checkers that use it.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.acls import AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from ottla.security.authorization.authorizer import Authorizer
from ottla.sim.entropy import Streams
from ottla.sim.security.administrator import draw_rule
from ottla.sim.security.checkers import find_violations
from ottla.sim.security.history import Attempt, SecurityHistory
from ottla.sim.security.notified import HEARD_NS, LOOK_NS, Notified
from ottla.sim.security.requests import NEEDS, SINGLE, Place, needs_of
from ottla.sim.security.restricted_clients import GROUPS, IDS, TOPICS
from ottla.sim.security.rules import (
    ALL,
    ALLOW,
    CLUSTER,
    DENY,
    DESCRIBE,
    EVERY,
    EVERYONE,
    GROUP,
    LITERAL,
    PREFIXED,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Change,
    Need,
    Rule,
    RuleBook,
    Verdict,
    When,
)
from ottla.sim.security.workload import HOSTS, USERS

ALICE, BOB = "User:alice", "User:bob"
PLACE = Place("red-one", "red-group", "red-id")
REACHED_NS = 100
"""When the broker has heard of a change, after its acknowledgement."""


def allow(operation: int, name: str = "red-one", pattern: int = LITERAL, host: str = EVERY, who: str = ALICE) -> Rule:
    return Rule(TOPIC, name, pattern, who, host, operation, ALLOW)


def book(*rules: Rule) -> RuleBook:
    """Rules that have been in force since the beginning."""
    found = RuleBook(lambda _broker, _life, changed_ns: changed_ns + REACHED_NS)
    for rule in rules:
        found.changes[rule] = [Change(True, 0, 0)]
    return found


def verdict(rules: RuleBook, operation: int, name: str = "red-one", at_ns: int = 1000, took_ns: int = 10) -> Verdict:
    return rules.judge_need(ALICE, "alice-1", Need(operation, TOPIC, name), When(1, 1, at_ns, at_ns + took_ns))


# -- the model ---------------------------------------------------------------------------------------------------------


def test_without_a_rule_everything_is_denied() -> None:
    assert verdict(book(), READ) is Verdict.DENIED


@pytest.mark.parametrize(
    "rule",
    [
        allow(READ),
        allow(ALL),
        allow(READ, "red-", PREFIXED),
        allow(READ, EVERY),
        allow(READ, who=EVERYONE),
        allow(READ, host="alice-1"),
    ],
)
def test_what_allows(rule: Rule) -> None:
    assert verdict(book(rule), READ) is Verdict.ALLOWED
    denial = Rule(TOPIC, EVERY, LITERAL, EVERYONE, EVERY, ALL, DENY)
    assert verdict(book(rule, denial), READ) is Verdict.DENIED


@pytest.mark.parametrize(
    "rule",
    [
        allow(WRITE),
        allow(READ, "red-two"),
        allow(READ, "blue-", PREFIXED),
        allow(READ, "red-one-", PREFIXED),
        allow(READ, who=BOB),
        allow(READ, host="alice-2"),
        Rule(GROUP, "red-one", LITERAL, ALICE, EVERY, READ, ALLOW),
    ],
)
def test_what_does_not(rule: Rule) -> None:
    assert verdict(book(rule), READ) is Verdict.DENIED


def test_reading_and_writing_imply_describe_and_their_denial_does_not() -> None:
    assert verdict(book(allow(WRITE)), DESCRIBE) is Verdict.ALLOWED
    denial = allow(READ)._replace(permission=DENY)
    assert verdict(book(allow(WRITE), denial), DESCRIBE) is Verdict.ALLOWED


def test_a_change_is_doubtful_from_its_request_until_it_is_heard() -> None:
    rules = book()
    change = Change(True, 500)
    rules.changes[allow(READ)] = [change]
    assert verdict(rules, READ, at_ns=400) is Verdict.DENIED
    assert verdict(rules, READ, at_ns=400, took_ns=200) is Verdict.DOUBTFUL, "it may have been in force"
    assert verdict(rules, READ, at_ns=10_000) is Verdict.DOUBTFUL, "no broker has acknowledged it"
    change.acknowledged_ns = 600
    assert verdict(rules, READ, at_ns=600 + REACHED_NS - 1) is Verdict.DOUBTFUL
    assert verdict(rules, READ, at_ns=600 + REACHED_NS) is Verdict.ALLOWED


def test_one_topic_is_enough_for_a_producer_id() -> None:
    need, when = Need(WRITE, TOPIC, ""), When(1, 1, 1000, 1010)
    assert book(allow(READ)).judge_need(ALICE, "alice-1", need, when) is Verdict.DENIED
    assert book(allow(WRITE)).judge_need(ALICE, "alice-1", need, when) is Verdict.ALLOWED


@pytest.mark.parametrize("seed", range(40))
def test_the_model_and_the_authorizer_agree(seed: int) -> None:
    random = Streams(seed).named_stream("rules")
    rules = dict.fromkeys(draw_rule(random, USERS, HOSTS) for _ in range(random.between(1, 30)))
    authorizer, by_resource = Authorizer(), dict[ResourcePattern, list[AclEntry]]()
    for rule in rules:
        resource = ResourcePattern(ResourceType(rule.kind), rule.name, PatternType(rule.pattern))
        entry = AclEntry(rule.principal, rule.host, Operation(rule.operation), Permission(rule.permission))
        by_resource.setdefault(resource, []).append(entry)
    for resource, entries in by_resource.items():
        authorizer.replace_acls(resource, entries)
    authorizer.mark_loaded()
    model, when = book(*rules), When(1, 1, 1000, 1010)
    resources = [*((TOPIC, name) for name in TOPICS), *((GROUP, name) for name in GROUPS)]
    resources += [*((TRANSACTIONAL_ID, name) for name in IDS), (CLUSTER, "kafka-cluster")]
    for kind, name in resources:
        for operation in Operation:
            for host, user in (("alice-1", "alice"), ("alice-2", "alice"), ("bob-1", "bob")):
                if operation in (Operation.UNKNOWN, Operation.ANY, Operation.ALL, Operation.DESCRIBE_CONFIGS):
                    continue
                resource_of = (ResourceType(kind), name)
                is_allowed = authorizer.is_allowed(f"User:{user}", host, operation, resource_of)
                found = model.judge_need(f"User:{user}", host, Need(operation, kind, name), when)
                assert found is (Verdict.ALLOWED if is_allowed else Verdict.DENIED), (kind, name, operation, user)


def test_every_request_of_guests_needs_something() -> None:
    assert set(NEEDS) < set(SINGLE)
    assert all(needs_of(api, PLACE) for api in SINGLE)


# -- when brokers have heard -------------------------------------------------------------------------------------------


def test_a_broker_has_heard_after_a_time_without_a_break() -> None:
    notified = Notified()
    for at in range(60):
        session = 1 if at < 10 else 2
        notified.note_span(1, 1, session, at * LOOK_NS)
    second_ns = 10 * LOOK_NS
    assert notified.settled_ns(1, 1, 0) == second_ns + HEARD_NS, "the first session was too short"
    assert notified.settled_ns(1, 1, 12 * LOOK_NS) == 12 * LOOK_NS + HEARD_NS
    assert notified.settled_ns(1, 1, 50 * LOOK_NS) is None
    assert notified.settled_ns(1, 2, 0) is None, "another life reads all ACLs for itself"


# -- the checkers ------------------------------------------------------------------------------------------------------


def history(api: str, code: int | None, *rules: Rule) -> SecurityHistory:
    """One request of alice, and its answer."""
    found = SecurityHistory()
    found.rules = book(*rules)
    found.attempts.append(
        Attempt(0, api, ALICE, "alice-1", 1, needs_of(api, PLACE), 1000, code, 1, 1010, "the request")
    )
    return found


IN_TRANSACTION = Rule(TRANSACTIONAL_ID, "red-id", LITERAL, ALICE, EVERY, WRITE, ALLOW)


@pytest.mark.parametrize(
    ("api", "code", "rules"),
    [
        ("fetch", 29, []),
        ("fetch", 0, [allow(READ)]),
        ("fetch", 6, [allow(READ)]),
        ("produce in transaction", 53, [allow(WRITE)]),
        ("produce in transaction", 29, [IN_TRANSACTION]),
        ("commit offsets", 30, []),
        ("fetch offsets", 16, []),
        ("init without transaction", 31, []),
        ("init without transaction", 0, [allow(WRITE)]),
        ("fetch", None, []),
    ],
)
def test_what_may_be_answered(api: str, code: int | None, rules: list[Rule]) -> None:
    assert find_violations(history(api, code, *rules)) == []


@pytest.mark.parametrize(
    ("api", "code", "rules", "broken"),
    [
        ("fetch", 0, [], "denied_is_refused"),
        ("fetch", 6, [], "denied_is_refused"),
        ("fetch offsets", 0, [], "denied_is_refused"),
        ("produce in transaction", 0, [allow(WRITE)], "denied_is_refused"),
        ("init without transaction", 0, [allow(READ)], "denied_is_refused"),
        ("fetch", 29, [allow(READ)], "allowed_is_served"),
        ("produce in transaction", 29, [allow(WRITE)], "allowed_is_served"),
    ],
)
def test_what_may_not(api: str, code: int, rules: list[Rule], broken: str) -> None:
    assert broken in {name for name, _ in find_violations(history(api, code, *rules))}


@pytest.mark.parametrize(
    ("code", "rules", "is_broken"),
    [
        (29, [], True),
        (None, [], True),
        (0, [allow(WRITE)], False),
        (None, [allow(WRITE)], False),
    ],
)
def test_what_was_denied_has_no_effect(code: int | None, rules: list[Rule], is_broken: bool) -> None:
    found = history("produce", code, *rules)
    found.effects.add(0)
    assert ("denied_has_no_effect" in {name for name, _ in find_violations(found)}) is is_broken


def test_a_producer_of_another_transactional_id_is_refused() -> None:
    found = history("end", 0, IN_TRANSACTION)
    assert find_violations(found) == []
    found.attempts[0].is_foreign = True
    assert [name for name, _ in find_violations(found)] == ["producer_ids_keep_their_transactional_id"]


def test_sessions_and_logins() -> None:
    found = history("fetch", 29)
    found.outlived.append("fetch by alice")
    found.refused_logins.append("alice-1: Authentication failed")
    assert [name for name, _ in find_violations(found)] == ["sessions_end", "logins_succeed"]
