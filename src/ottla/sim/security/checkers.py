"""What must hold of a cluster with an authorizer, beyond what holds of a cluster.

Zone: pure. The answers are judged by `rules`, a model of ACLs that shares no code with the authorizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from ottla.sim import checkers
from ottla.sim.cluster.checkers import CHECKERS as OF_CLUSTERS
from ottla.sim.history import NEVER
from ottla.sim.security.history import Attempt, SecurityHistory
from ottla.sim.security.rules import REFUSED, Need, Verdict, When

NO_LIFE: Final = -1
"""The life of a broker that is not known: only rules that never change are certain."""

OTHER_ERRORS: Final = frozenset({"fetch offsets"})
"""Requests for which an error of the whole, such as NOT_COORDINATOR, takes the place of those of its topics."""


def judge_attempt(history: SecurityHistory, attempt: Attempt, when: When) -> list[tuple[Verdict, int]]:
    """For everything that the attempt needs: the verdict, and the error of a denial."""
    return [(_judge_need(history, attempt, need, when), REFUSED[need[0].kind]) for need in attempt.needs]


def _judge_need(history: SecurityHistory, attempt: Attempt, need: tuple[Need, ...], when: When) -> Verdict:
    """Alternatives: one that is allowed is enough."""
    rules = history.rules
    found = {rules.judge_need(attempt.principal, attempt.host, each, when) for each in need}
    if Verdict.ALLOWED in found:
        return Verdict.ALLOWED
    return Verdict.DENIED if found == {Verdict.DENIED} else Verdict.DOUBTFUL


def whole_verdict(judged: list[tuple[Verdict, int]]) -> Verdict:
    """The verdict about a request that needs all of these."""
    verdicts = {verdict for verdict, _ in judged}
    if Verdict.DENIED in verdicts:
        return Verdict.DENIED
    return Verdict.ALLOWED if verdicts == {Verdict.ALLOWED} else Verdict.DOUBTFUL


def count_verdicts(history: SecurityHistory) -> Counter[Verdict]:
    """How many answers the rules allowed, denied, or left open."""
    answered = (attempt for attempt in history.attempts if attempt.code is not None)
    return Counter(whole_verdict(judge_attempt(history, attempt, attempt.when)) for attempt in answered)


def denied_is_refused(history: SecurityHistory) -> Iterator[str]:
    """A request that all rules in force deny is refused with the error for that, whatever else is wrong with it."""
    for attempt in history.attempts:
        if attempt.code is None:
            continue
        judged = judge_attempt(history, attempt, attempt.when)
        expected = {code for verdict, code in judged if verdict is not Verdict.ALLOWED}
        is_refused = attempt.code in expected or (attempt.code != 0 and attempt.api in OTHER_ERRORS)
        if whole_verdict(judged) is Verdict.DENIED and not is_refused:
            yield f"denied, but answered with error {attempt.code}: {attempt.text}"


def allowed_is_served(history: SecurityHistory) -> Iterator[str]:
    """A request is not refused for a resource at which all rules in force allow it."""
    for attempt in history.attempts:
        if attempt.code not in REFUSED.values():
            continue
        judged = judge_attempt(history, attempt, attempt.when)
        if attempt.code not in {code for verdict, code in judged if verdict is not Verdict.ALLOWED}:
            yield f"allowed, but refused with error {attempt.code}: {attempt.text}"


def denied_has_no_effect(history: SecurityHistory) -> Iterator[str]:
    """A request that was denied all the time, or refused as denied, has written nothing."""
    for number in sorted(history.effects):
        attempt = history.attempts[number]
        if attempt.code in REFUSED.values():
            yield f"refused with error {attempt.code}, but carried out: {attempt.text}"
        elif attempt.code is None:
            when = When(attempt.broker, NO_LIFE, attempt.sent_ns, NEVER)
            if whole_verdict(judge_attempt(history, attempt, when)) is Verdict.DENIED:
                yield f"denied, but carried out: {attempt.text}"


def producer_ids_keep_their_transactional_id(history: SecurityHistory) -> Iterator[str]:
    """Under a transactional id the coordinator accepts no producer id of another one (KIP-98)."""
    for attempt in history.attempts:
        if attempt.is_foreign and attempt.code == 0:
            yield f"accepted with the producer of another transactional id: {attempt.text}"


def sessions_end(history: SecurityHistory) -> Iterator[str]:
    """After the lifetime of a session nothing is answered on its connection, unless it is renewed (KIP-368)."""
    for text in history.outlived:
        yield f"answered after the end of its session: {text}"


def logins_succeed(history: SecurityHistory) -> Iterator[str]:
    """The right password is accepted."""
    yield from history.refused_logins


Checker = Callable[[SecurityHistory], Iterator[str]]
OF_SECURITY: Final[tuple[Checker, ...]] = (
    denied_is_refused,
    allowed_is_served,
    denied_has_no_effect,
    producer_ids_keep_their_transactional_id,
    sessions_end,
    logins_succeed,
)
CHECKERS: Final = (*OF_CLUSTERS, *OF_SECURITY)


def find_violations(history: SecurityHistory, at_most: int = 5) -> list[tuple[str, str]]:
    """The violations in a history: (property, sentence), at most `at_most` per property."""
    return checkers.check_properties(history, CHECKERS, at_most)
