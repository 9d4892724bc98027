"""The administrator of ACLs: adds and removes rules for as long as a run takes.

Zone: deterministic. A change is requested from any broker, and again until one acknowledges it. If none does, the rule
stays doubtful until its next change. A request without an answer may be carried out late; so its rule is not changed
again before that is over.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.entropy import Stream
from ottla.sim.security.history import SecurityHistory
from ottla.sim.security.logins import LoginClient
from ottla.sim.security.requests import Sending, codes_in
from ottla.sim.security.restricted_clients import GROUPS, IDS, TOPICS
from ottla.sim.security.rules import (
    ALL,
    ALLOW,
    ALTER,
    CLUSTER,
    DENY,
    DESCRIBE,
    EVERY,
    EVERYONE,
    GROUP,
    IDEMPOTENT_WRITE,
    LITERAL,
    PREFIXED,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Change,
    Rule,
)
from ottla.sim.world import MS, SECOND
from ottla.wire.messages import CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse
from ottla.wire.schema import Message

LATE_NS: Final = 20 * SECOND
"""A request that was sent before has been carried out, or is lost: longer than any fault lasts."""
PAUSE_NS: Final = 500 * MS
"""Mean time between two changes."""
RETRY_NS: Final = 200 * MS
ATTEMPTS: Final = 20
"""How often a change is requested again."""
RULES: Final = 40
"""Rules of a run, in force or not."""
DENIALS: Final = 0.15
VERSION: Final = 1

_NAMES: Final = {TOPIC: TOPICS, GROUP: GROUPS, TRANSACTIONAL_ID: IDS}
_OPERATIONS: Final = {
    TOPIC: (READ, WRITE, WRITE, DESCRIBE, ALL),
    GROUP: (READ, READ, DESCRIBE, ALL),
    TRANSACTIONAL_ID: (WRITE, WRITE, DESCRIBE, ALL),
    CLUSTER: (IDEMPOTENT_WRITE, ALTER),
}


def draw_rule(random: Stream, users: tuple[str, ...], hosts: tuple[str, ...]) -> Rule:
    """A rule about what restricted clients use: a name, a prefix or everything."""
    kind = random.choice((TOPIC, TOPIC, TOPIC, GROUP, GROUP, TRANSACTIONAL_ID, TRANSACTIONAL_ID, CLUSTER))
    name, pattern = _draw_pattern(random, kind)
    permission = DENY if random.chance(DENIALS) else ALLOW
    principal = EVERYONE if random.chance(0.1) else f"User:{random.choice(users)}"
    host = EVERY if random.chance(0.7) else random.choice(hosts)
    return Rule(kind, name, pattern, principal, host, random.choice(_OPERATIONS[kind]), permission)


def _draw_pattern(random: Stream, kind: int) -> tuple[str, int]:
    if kind == CLUSTER:
        return "kafka-cluster", LITERAL
    draw = random.random_below(10)
    if draw < 5:
        return random.choice(_NAMES[kind]), LITERAL
    return (random.choice(("red-", "blue-")), PREFIXED) if draw < 9 else (EVERY, LITERAL)


class Administrator:
    """Changes one rule after the other."""

    def __init__(
        self,
        client: LoginClient,
        random: Stream,
        history: SecurityHistory,
        users: tuple[str, ...],
        hosts: tuple[str, ...],
    ) -> None:
        self._client = client
        self._random = random
        self._changes = history.rules.changes
        drawn = (draw_rule(random, users, hosts) for _ in range(RULES))
        self._rules = list(dict.fromkeys(drawn))
        self._quiet_until: dict[Rule, int] = {}
        """Rules about which a request may still be on its way, with the time at which it certainly is not."""
        self._initial = [rule for rule in self._rules if random.chance(0.7)]
        self.working = True
        self.acknowledged = 0
        """Changes that were acknowledged."""

    def start_changing(self) -> None:
        """Add the first rules; then change one after the other."""
        if self._initial:
            self._begin_change(self._initial.pop())
        elif self.working:
            now_ns = self._client.timeline.now_ns
            free = [rule for rule in self._rules if self._quiet_until.get(rule, 0) <= now_ns]
            if free:
                self._begin_change(self._random.choice(free))
            else:
                self._wait(PAUSE_NS)

    def _wait(self, mean_ns: int) -> None:
        self._client.timeline.schedule_after(int(self._random.exponential(mean_ns)), "acls", self.start_changing)

    def _begin_change(self, rule: Rule) -> None:
        changes = self._changes.setdefault(rule, [])
        changes.append(Change(not (changes and changes[-1].adds), self._client.timeline.now_ns))
        self._request_change(rule, changes[-1])

    def _request_change(self, rule: Rule, change: Change, attempts: int = ATTEMPTS) -> None:
        timeline = self._client.timeline

        def on_response(response: Message | None, _node: int) -> None:
            if response is None:
                self._quiet_until[rule] = timeline.now_ns + LATE_NS
            if response is not None and _has_changed(response):
                change.acknowledged_ns = timeline.now_ns
                self.acknowledged += 1
            if change.acknowledged_ns is not None or not attempts:
                self._wait(PAUSE_NS // 20 if self._initial else PAUSE_NS)
            else:
                timeline.schedule_after(RETRY_NS, "acls", self._request_change, rule, change, attempts - 1)

        sending = addition_of(rule) if change.adds else removal_of(rule)
        self._client.send_request(sending.message, sending.version, sending.response, on_response)


def _has_changed(response: Message) -> bool:
    """Whether the change was made. DeleteAcls removes what the answering broker has heard of, as in Kafka; if that is
    nothing, the rule may be there."""
    if any(codes_in(response)):
        return False
    if isinstance(response, DeleteAclsResponse):
        return any(result.matching_acls for result in response.filter_results)
    return True


def addition_of(rule: Rule) -> Sending:
    """CreateAcls with one rule."""
    row = CreateAclsRequest.AclCreation(
        resource_type=rule.kind,
        resource_name=rule.name,
        resource_pattern_type=rule.pattern,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )
    return Sending(CreateAclsRequest(creations=[row]), VERSION, CreateAclsResponse)


def removal_of(rule: Rule) -> Sending:
    """DeleteAcls with a filter that selects one rule."""
    row = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=rule.kind,
        resource_name_filter=rule.name,
        pattern_type_filter=rule.pattern,
        principal_filter=rule.principal,
        host_filter=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )
    return Sending(DeleteAclsRequest(filters=[row]), VERSION, DeleteAclsResponse)
