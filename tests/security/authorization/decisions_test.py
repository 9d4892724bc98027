"""Random decisions against an independent model, through changes of the ACLs and the cache of a connection.

Zone: pure.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable

import pytest
from tests.security.authorization.acl_model import (
    HOSTS,
    NAMES,
    PRINCIPALS,
    decide,
    decide_anywhere,
    random_acl,
    random_acls,
    random_question,
)

from ottla.acls import (
    SUPPORTED_OPERATIONS,
    AclBinding,
    AclFilter,
    EntryFilter,
    Operation,
    PatternType,
    Permission,
    ResourceFilter,
    ResourceType,
)
from ottla.security.authorization.authorizer import Authorizer
from ottla.security.authorization.decision_cache import DecisionCache

WORLDS = 200
QUESTIONS = 500


def new_authorizer(*arguments, **settings) -> Authorizer:
    """An authorizer that has read all ACLs."""
    authorizer = Authorizer(*arguments, **settings)
    authorizer.mark_loaded()
    return authorizer


def load(authorizer: Authorizer, acls: Iterable[AclBinding], before: Iterable[AclBinding] = ()) -> None:
    """Bring the authorizer from one set of ACLs to another, resource by resource as the store reports them."""
    entries = defaultdict(set)
    for resource, entry in acls:
        entries[resource].add(entry)
    for resource in {acl.resource for acl in before} | set(entries):
        authorizer.replace_acls(resource, entries[resource])


@pytest.mark.parametrize("seed", range(4))
def test_100_000_random_decisions_are_those_of_the_model(seed: int) -> None:
    for world in range(seed * WORLDS // 4, (seed + 1) * WORLDS // 4):
        rng = random.Random(world)
        default = rng.random() < 0.3
        authorizer = new_authorizer(allow_without_acl=default)
        acls: frozenset[AclBinding] = frozenset()
        caches: dict[tuple[str, str], DecisionCache] = {}
        for _ in range(5):
            kept = frozenset(acl for acl in acls if rng.random() < 0.7)
            changed = kept | random_acls(rng, rng.randrange(12))
            load(authorizer, changed, acls)
            acls = changed
            for _ in range(QUESTIONS // 5):
                principal, host, operation, resource = random_question(rng)
                expected = decide(acls, principal, host, operation, resource, default=default)
                cache = caches.setdefault((principal, host), DecisionCache(authorizer, principal, host))
                asked = (principal, host, operation, resource)
                assert cache.is_allowed(operation, *resource) is expected, (world, asked, sorted(acls))
                assert authorizer.is_allowed(*asked) is expected, (world, asked, sorted(acls))


@pytest.mark.parametrize("rule", ["deny", "prefix", "wildcard", "implied", "host", "principal"])
def test_a_model_without_one_rule_is_noticed(rule: str) -> None:
    """The random ACLs and questions exercise every rule: leaving one out changes some of 20,000 decisions."""
    differences = 0
    for world in range(25):
        rng = random.Random(world)
        acls, authorizer = random_acls(rng, 20), new_authorizer()
        load(authorizer, acls)
        for _ in range(QUESTIONS):
            question = random_question(rng)
            differences += authorizer.is_allowed(*question) is not decide(acls, *question, without=rule)
    assert differences > 20


def test_decisions_about_any_resource_of_a_type_are_those_of_the_model() -> None:
    outcomes = set()
    for world in range(1_000):
        rng = random.Random(world)
        acls, authorizer = random_acls(rng, rng.randrange(40)), new_authorizer()
        load(authorizer, acls)
        for principal in PRINCIPALS[:3]:
            operation = rng.choice((Operation.READ, Operation.WRITE, Operation.DESCRIBE))
            expected = decide_anywhere(acls, principal, HOSTS[0], operation, ResourceType.TOPIC)
            cache = DecisionCache(authorizer, principal, HOSTS[0])
            for _ in range(2):
                assert cache.is_allowed_anywhere(operation, ResourceType.TOPIC) is expected, (world, sorted(acls))
            outcomes.add(expected)
    assert outcomes == {True, False}


def test_explanations_have_the_outcome_of_the_decision_and_a_matching_acl() -> None:
    for world in range(100):
        rng = random.Random(world)
        acls, authorizer = random_acls(rng, 12), new_authorizer(["User:bob"], allow_without_acl=world % 2 == 0)
        load(authorizer, acls)
        for _ in range(50):
            question = random_question(rng)
            decision = authorizer.explain_decision(*question)
            assert decision.allowed is authorizer.is_allowed(*question)
            assert decision.reason
            if decision.acl is not None:
                assert decision.acl in acls
                assert decision.allowed is (decision.acl.entry.permission is Permission.ALLOW)
                assert decide([decision.acl], *question) is decision.allowed


def test_reported_operations_are_the_allowed_ones_that_the_type_has() -> None:
    for world in range(100):
        rng = random.Random(world)
        acls, authorizer = random_acls(rng, 12), new_authorizer()
        load(authorizer, acls)
        principal, host, _, (kind, name) = random_question(rng)
        bits = authorizer.reported_operations(principal, host, kind, name)
        for operation in Operation:
            expected = operation in SUPPORTED_OPERATIONS[kind] and decide(
                acls, principal, host, operation, (kind, name)
            )
            assert bool(bits >> operation & 1) is expected


def test_filters_select_what_a_walk_over_all_acls_selects() -> None:
    selected_some = 0
    for world in range(300):
        rng = random.Random(world)
        acls, authorizer = random_acls(rng, 30), new_authorizer()
        load(authorizer, acls)
        wanted = AclFilter(
            ResourceFilter(
                rng.choice((ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.UNKNOWN)),
                rng.choice((None, "abcd", *NAMES)),
                rng.choice((PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED)),
            ),
            EntryFilter(
                rng.choice((None, None, *PRINCIPALS)),
                rng.choice((None, None, *HOSTS)),
                rng.choice((Operation.ANY, Operation.ANY, Operation.READ, Operation.ALL)),
                rng.choice((Permission.ANY, Permission.ALLOW)),
            ),
        )
        found = list(authorizer.acls.select_acls(wanted))
        assert len(found) == len(set(found))
        assert set(found) == {acl for acl in acls if wanted.matches_binding(acl)}, (world, wanted)
        selected_some += bool(found)
    assert selected_some > 30


def test_removing_one_acl_leaves_the_others() -> None:
    """A removal that also dropped other ACLs of the resource, or its denials, was a vulnerability of Kafka."""
    rng = random.Random(1)
    acls, authorizer = set(random_acls(rng, 300)), new_authorizer()
    load(authorizer, acls)
    while acls:
        gone = rng.choice(sorted(acls))
        acls.remove(gone)
        left = {acl.entry for acl in acls if acl.resource == gone.resource}
        authorizer.replace_acls(gone.resource, left)
        assert authorizer.acls.entries_at(gone.resource) == left
        assert set(authorizer.acls.select_acls(AclFilter())) == acls
    empty = new_authorizer(allow_without_acl=True)
    assert vars(authorizer.acls)["_names"] == vars(empty.acls)["_names"] == {}


def test_a_change_is_seen_by_every_cache_at_once_and_none_by_an_equal_write() -> None:
    authorizer = new_authorizer(allow_without_acl=True)
    cache = DecisionCache(authorizer, "User:ann", "h")
    assert cache.is_allowed(Operation.READ, ResourceType.TOPIC, "t")
    acl = random_acl(random.Random(3))._replace()
    resource = acl.resource._replace(resource_type=ResourceType.TOPIC, name="t", pattern_type=PatternType.LITERAL)
    deny = acl.entry._replace(principal="User:ann", host="*", operation=Operation.ALL, permission=Permission.DENY)
    authorizer.replace_acls(resource, [deny])
    assert not cache.is_allowed(Operation.READ, ResourceType.TOPIC, "t")
    before = authorizer.generation
    authorizer.replace_acls(resource, [deny, deny])
    assert authorizer.generation == before
    authorizer.replace_acls(resource, [])
    assert cache.is_allowed(Operation.READ, ResourceType.TOPIC, "t")
    assert not authorizer.acls.entries_at(resource)
