"""The target of a due record: the topic it came from, or the dead letters.

Zone: pure. A record with its headers in, topic and headers out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from ottla.client.consumer.record import ConsumerRecord
from ottla.retry.headers import SPRING, Failure, Headers, Names, Origin, Trail, read_due_ms, read_trail, with_trail
from ottla.retry.policy import RetryPolicy, dead_topic, origin_of

DEFAULT_ATTEMPTS: Final = 100
"""Deliveries after which a record becomes a dead letter, regardless of the policy of its sender."""
TOO_OFTEN: Final = "ottla.retry.TooManyAttempts"
LOOP: Final = "ottla.retry.RetryLoop"
NOWHERE: Final = "ottla.retry.NoDestination"
REFUSED: Final = "ottla.retry.DestinationRefused"


class Route(NamedTuple):
    """A record to write."""

    topic: str
    headers: Headers
    is_dead: bool


class Router:
    """Decides where the mover forwards a record."""

    def __init__(self, policy: RetryPolicy | None = None, names: Names = SPRING) -> None:
        """policy: limits the attempts, has the delay of records without a delay header, and names the dead-letter
        topic; None: 100 attempts, no delay."""
        self._policy = policy
        self._attempts = policy.attempts if policy is not None else DEFAULT_ATTEMPTS
        self.names = names

    def due_ms(self, record: ConsumerRecord) -> int:
        """When a record of a retry topic is due: from its header, or else its timestamp plus the delay of its level."""
        due = read_due_ms(record.headers, self.names)
        if due is not None:
            return min(due, 2**50)  # some 35,000 years
        return max(0, record.timestamp) + self._delay_ms(record.topic)

    def _delay_ms(self, topic: str) -> int:
        level = origin_of(topic)
        if self._policy is None or level is None or self._policy.levels == 0:
            return 0
        return self._policy.delay_ms(level[1])

    def route_due(self, record: ConsumerRecord) -> Route:
        """The route of a due record."""
        # To the dead letters: 1. no topic to forward it to, 2. that is a retry topic, or the record's own, so that it
        # would come back for ever, 3. too many deliveries. 4. Otherwise to its topic.
        trail = read_trail(record.headers, self.names)
        origin = trail.origin or _origin_from_name(record.topic)
        trail = replace(trail, attempts=max(trail.attempts, trail.passes + 2), origin=origin, due_ms=None)
        target = trail.back_to or (origin.topic if origin is not None else None)
        if target is None:
            return self._route_dead(
                record, trail, NOWHERE, "its headers name no topic, and neither does its topic's name"
            )
        if target == record.topic or origin_of(target) is not None:
            return self._route_dead(record, trail, LOOP, f"it would go from {record.topic} to {target}")
        if trail.failures >= self._attempts:
            return self._route_dead(record, trail, TOO_OFTEN, f"delivered {trail.failures} times")
        trail = replace(trail, passes=trail.passes + 1)
        return Route(target, with_trail(record.headers, trail, self.names), is_dead=False)

    def route_refused(self, record: ConsumerRecord, why: str) -> Route:
        """The route of a record that its target topic refused."""
        trail = read_trail(record.headers, self.names)
        return self._route_dead(
            record, replace(trail, origin=trail.origin or _origin_from_name(record.topic)), REFUSED, why
        )

    def _route_dead(self, record: ConsumerRecord, trail: Trail, kind: str, why: str) -> Route:
        """A route to the dead letters; after too many attempts the application's own failure is kept as the reason."""
        failure = trail.failure
        if failure is None or kind != TOO_OFTEN:
            failure = Failure(kind, why, None if failure is None else failure.kind)
        base = trail.origin.topic if trail.origin is not None else record.topic
        topic = dead_topic(base) if self._policy is None else self._policy.dead_topic(base)
        return Route(topic, with_trail(record.headers, replace(trail, failure=failure), self.names), is_dead=True)


def _origin_from_name(topic: str) -> Origin | None:
    found = origin_of(topic)
    return None if found is None else Origin(found[0])
