"""What an ACL means, written a second time: the model that judges the answers of brokers.

Zone: pure. Nothing here uses the product's authorizer. The rules are those of Apache Kafka's AclAuthorizer: a denial
wins, an operation needs an ACL that allows it, and some operations imply Describe.

A broker learns of a change some time after the request and before the notification has reached it. Meanwhile the rule
is DOUBTFUL there, and nothing that depends on it is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

TOPIC: Final = 2
GROUP: Final = 3
CLUSTER: Final = 4
TRANSACTIONAL_ID: Final = 5
"""Types of resources, by their numbers in the protocol (KIP-11, KIP-98)."""
ALL: Final = 2
READ: Final = 3
WRITE: Final = 4
DELETE: Final = 6
ALTER: Final = 7
DESCRIBE: Final = 8
IDEMPOTENT_WRITE: Final = 12
"""Operations, by their numbers in the protocol."""
LITERAL: Final = 3
PREFIXED: Final = 4
DENY: Final = 2
ALLOW: Final = 3
EVERY: Final = "*"
EVERYONE: Final = "User:*"
ANY_TOPIC: Final = ""
"""The name of a resource that stands for at least one topic, whichever (KIP-679)."""
IMPLYING: Final = {DESCRIBE: (DESCRIBE, READ, WRITE, DELETE, ALTER)}
"""Operations of which an ACL that allows one allows the key as well; of others only themselves."""
REFUSED: Final = {TOPIC: 29, GROUP: 30, CLUSTER: 31, TRANSACTIONAL_ID: 53}
"""The error of a denied operation, by the type of the resource."""


class Rule(NamedTuple):
    """One ACL."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    def matches_name(self, name: str) -> bool:
        """Whether it is about the resource of that name."""
        if self.pattern == PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, EVERY)

    def matches_client(self, principal: str, host: str) -> bool:
        """Whether it is about that client."""
        return self.principal in (principal, EVERYONE) and self.host in (host, EVERY)


class Need(NamedTuple):
    """What a request needs: an operation at a resource."""

    operation: int
    kind: int
    name: str


class Verdict(Enum):
    """What the rules say about a request during some time at some broker."""

    ALLOWED = "allowed"
    DENIED = "denied"
    DOUBTFUL = "doubtful"


class State(Enum):
    """Whether a rule is in force."""

    ABSENT = "absent"
    DOUBTFUL = "doubtful"
    PRESENT = "present"


@dataclass(slots=True)
class Change:
    """A rule that is added or removed; it is requested until a broker acknowledges it."""

    adds: bool
    sent_ns: int
    """When it was requested first."""
    acknowledged_ns: int | None = None


class When(NamedTuple):
    """The time between a request and its answer, at the broker that answered."""

    broker: int
    life: int
    sent_ns: int
    answered_ns: int


Settled = Callable[[int, int, int], int | None]
"""When a life of a broker has certainly heard of what was acknowledged at a time: (broker, life, time)."""


@dataclass(slots=True)
class RuleBook:
    """All changes of all rules."""

    settled_ns: Settled
    changes: dict[Rule, list[Change]] = field(default_factory=dict)

    def _states(self, rule: Rule, when: When) -> set[State]:
        """The states that the rule may have had."""
        changes = self.changes[rule]
        # The last change before the request decides; one during the request leaves both states possible.
        before = [change for change in changes if change.sent_ns <= when.sent_ns]
        found = {self._state_after(before[-1], when) if before else State.ABSENT}
        if any(when.sent_ns < change.sent_ns <= when.answered_ns for change in changes):
            found.add(State.DOUBTFUL)
        return found

    def _state_after(self, change: Change, when: When) -> State:
        acknowledged_ns = change.acknowledged_ns
        # Not acknowledged: it may have been carried out, and its answer lost.
        if acknowledged_ns is None:
            return State.DOUBTFUL
        settled_ns = self.settled_ns(when.broker, when.life, acknowledged_ns)
        if settled_ns is None or settled_ns > when.sent_ns:
            return State.DOUBTFUL
        return State.PRESENT if change.adds else State.ABSENT

    def judge_need(self, principal: str, host: str, need: Need, when: When) -> Verdict:
        """Whether every set of rules that may have been in force allows it, or every one denies it."""
        if need.name == ANY_TOPIC:
            return self._judge_any_topic(principal, host, need, when)
        allowing, denying = set[State](), set[State]()
        is_allowed = is_denied = False
        for rule in self.changes:
            if rule.kind != need.kind or not rule.matches_name(need.name) or not rule.matches_client(principal, host):
                continue
            implying = (need.operation,) if rule.permission == DENY else _implying(need.operation)
            if rule.operation not in (ALL, *implying):
                continue
            states = self._states(rule, when)
            if rule.permission == DENY:
                denying |= states
                is_denied |= states == {State.PRESENT}
            else:
                allowing |= states
                is_allowed |= states == {State.PRESENT}
        if is_denied or allowing <= {State.ABSENT}:
            return Verdict.DENIED
        return Verdict.ALLOWED if is_allowed and denying <= {State.ABSENT} else Verdict.DOUBTFUL

    def _judge_any_topic(self, principal: str, host: str, need: Need, when: When) -> Verdict:
        """Judge what needs the operation at one topic at least: those with a literal rule are tried."""
        rules = [
            rule
            for rule in self.changes
            if rule.kind == need.kind
            and rule.permission == ALLOW
            and rule.operation in (ALL, need.operation)
            and rule.matches_client(principal, host)
            and self._states(rule, when) != {State.ABSENT}
        ]
        if not rules:
            return Verdict.DENIED
        names = {rule.name for rule in rules if rule.pattern == LITERAL and rule.name != EVERY}
        judged = (self.judge_need(principal, host, need._replace(name=name), when) for name in sorted(names))
        return Verdict.ALLOWED if Verdict.ALLOWED in judged else Verdict.DOUBTFUL


def _implying(operation: int) -> tuple[int, ...]:
    return IMPLYING.get(operation, (operation,))
