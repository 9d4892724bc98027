"""Random decisions of a whole broker against an independent model: ACLs and questions are requests over the wire.

Zone: real. Connections are kept while ACLs change, so that cached decisions are among the answers.
"""

from __future__ import annotations

import random

import pytest
from tests.handnode import Asker
from tests.security.authorization.acl_model import PRINCIPALS, decide, random_acls
from tests.security.authorization.guarded import Guarded, connection

from ottla.acls import SUPPORTED_OPERATIONS, AclBinding, Operation, ResourceType
from ottla.errors import ErrorCode
from ottla.requests import NOT_ASKED
from ottla.sim.mutants.ablation import mutated_code
from ottla.sim.mutants.mutant import Edit, Mutant
from ottla.wire import messages as m

TOPICS = ("a", "ab", "abc", "abd", "b", "ba", "abcd", "x")
GROUPS = (*TOPICS, "*", "é", "a*")
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
DECISIONS = 100_000


class Questions:
    """Compares the answers of a broker with the model."""

    def __init__(self, seed: int, *, default: bool) -> None:
        self.rng = random.Random(seed)
        self.default = default
        self.node = Guarded(allow_everyone_if_no_acl_found=str(default).lower())
        for name in TOPICS:
            self.node.create(name)
        self.node.ask(m.FindCoordinatorRequest(key="g"), 3)
        self.node.pass_ms(3000)
        self.acls: frozenset[AclBinding] = frozenset()
        self.peers = {(who, host): connection(who, host) for who in PRINCIPALS[:3] for host in HOSTS}
        self.decisions = 0

    def change(self) -> None:
        """Replace some ACLs, by requests."""
        kept = frozenset(acl for acl in self.acls if self.rng.random() < 0.6)
        wanted = kept | random_acls(self.rng, self.rng.randrange(10))
        removed, added = self.acls - wanted, wanted - self.acls
        filters = [
            m.DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=acl.resource.resource_type,
                resource_name_filter=acl.resource.name,
                pattern_type_filter=acl.resource.pattern_type,
                principal_filter=acl.entry.principal,
                host_filter=acl.entry.host,
                operation=acl.entry.operation,
                permission_type=acl.entry.permission,
            )
            for acl in sorted(removed)
        ]
        results = self.node.ask(m.DeleteAclsRequest(filters=filters), 2).filter_results
        assert [len(each.matching_acls) for each in results] == [1] * len(filters)
        creations = [
            m.CreateAclsRequest.AclCreation(
                resource_type=acl.resource.resource_type,
                resource_name=acl.resource.name,
                resource_pattern_type=acl.resource.pattern_type,
                principal=acl.entry.principal,
                host=acl.entry.host,
                operation=acl.entry.operation,
                permission_type=acl.entry.permission,
            )
            for acl in sorted(added)
        ]
        answers = self.node.ask(m.CreateAclsRequest(creations=creations), 2).results
        assert all(each.error_code == 0 for each in answers)
        self.acls = wanted

    def compare(self) -> None:
        """Ask for the authorized operations of all topics and groups, on every connection."""
        asked = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in TOPICS]
        topics = m.MetadataRequest(topics=asked, include_topic_authorized_operations=True)
        groups = m.DescribeGroupsRequest(groups=list(GROUPS), include_authorized_operations=True)
        for (who, host), peer in self.peers.items():
            for topic in self._ask(topics, 9, peer).topics:
                shown = topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
                self._check(who, host, (ResourceType.TOPIC, topic.name), shown, topic.topic_authorized_operations)
            for group in self._ask(groups, 5, peer).groups:
                shown = group.error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED
                self._check(who, host, (ResourceType.GROUP, group.group_id), shown, group.authorized_operations)

    def _ask(self, request, version: int, peer: Asker):
        return self.node.answer(self.node.send(request, version, peer))

    def _check(self, who: str, host: str, resource: tuple[ResourceType, str], shown: bool, operations: int) -> None:
        def expected(operation: Operation) -> bool:
            return decide(self.acls, who, host, operation, resource, default=self.default)

        assert shown is expected(Operation.DESCRIBE), (who, host, resource, sorted(self.acls))
        self.decisions += 1
        if not shown:
            assert operations == NOT_ASKED
            return
        for operation in SUPPORTED_OPERATIONS[resource[0]]:
            allowed = bool(operations >> operation & 1)
            assert allowed is expected(operation), (who, host, operation, resource, sorted(self.acls))
            self.decisions += 1


@pytest.mark.parametrize("default", [False, True])
def test_some_random_decisions(default: bool) -> None:
    questions = Questions(7, default=default)
    for _ in range(3):
        questions.change()
        questions.compare()
    assert questions.decisions > 500


@pytest.mark.slow
def test_100_000_random_decisions_of_a_broker_are_those_of_the_model() -> None:
    decisions = seed = 0
    while decisions < DECISIONS:
        questions = Questions(seed, default=seed % 3 == 0)
        for _ in range(40):
            questions.change()
            questions.compare()
        decisions += questions.decisions
        seed += 1


AUTHORIZER, INDEX, CACHE = (
    f"ottla.security.authorization.{name}" for name in ("authorizer", "acl_index", "decision_cache")
)
MUTANTS = {
    "a denial wins": Edit(
        AUTHORIZER,
        "Authorizer.allowed_operations",
        "return rights & EVERY_OPERATION & ~denied",
        "return rights & EVERY_OPERATION",
    ),
    "a denial of everything wins": Edit(AUTHORIZER, "Authorizer.allowed_operations", "if denied & _ALL:", "if False:"),
    "prefixes": Edit(INDEX, "_Prefixes.prefixes_of", "if prefix in self.rights:", "if prefix == name:"),
    "other resources' prefixes": Edit(
        INDEX, "_Prefixes.prefixes_of", "prefix = name[:length]", "prefix = next(iter(self.rights))"
    ),
    "the cache forgets": Edit(
        CACHE,
        "DecisionCache.is_allowed",
        "if self._generation != self._authorizer.generation:",
        "if False:",
    ),
    "a change has an effect on caches": Edit(AUTHORIZER, "Authorizer.replace_acls", "self.generation += 1", "pass"),
    "implied operations": Edit(
        AUTHORIZER, "Authorizer.allowed_operations", "if rights & _IMPLIES_DESCRIBE:", "if False:"
    ),
    "hosts": Edit(INDEX, "AclIndex.rights_of", "(principal, WILDCARD)", "(principal, host)"),
}


def compare_worlds() -> None:
    """Some random worlds, each with a few changes."""
    for seed in range(20):
        questions = Questions(seed, default=False)
        for _ in range(5):
            questions.change()
            questions.compare()


@pytest.mark.parametrize("edit", MUTANTS.values(), ids=[name.replace(" ", "-") for name in MUTANTS])
def test_a_rule_that_is_left_out_is_noticed(edit: Edit) -> None:
    changes = mutated_code(Mutant("security.rule", "", (edit,)))
    before = [(function, function.__code__) for function, _ in changes]
    try:
        for function, code in changes:
            function.__code__ = code
        with pytest.raises(AssertionError):
            compare_worlds()
    finally:
        for function, code in before:
            function.__code__ = code
