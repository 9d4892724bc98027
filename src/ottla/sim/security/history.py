"""What happened in a run with an authorizer: requests that need permission, rules, and sessions.

Zone: pure. Facts only; `checkers` judges them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.security.notified import Notified
from ottla.sim.security.rules import Need, RuleBook, When


@dataclass(slots=True)
class Attempt:
    """A request that needs permission, and its answer."""

    number: int
    """Records and positions that it wrote contain the number."""
    api: str
    principal: str
    host: str
    broker: int
    needs: tuple[tuple[Need, ...], ...]
    """All of them are needed; of each, one alternative is enough."""
    sent_ns: int
    code: int | None = None
    """The error of the answer; None: there was no answer."""
    life: int = 0
    """The life of the broker that answered."""
    answered_ns: int = 0
    text: str = ""
    """Its client and place, for sentences."""
    is_foreign: bool = False
    """Whether the producer id belongs to another transactional id."""

    @property
    def when(self) -> When:
        """The time between request and answer, at the broker that answered."""
        return When(self.broker, self.life, self.sent_ns, self.answered_ns)


@dataclass(slots=True)
class SecurityHistory(ClusterHistory):
    """Input of the checkers of a run with an authorizer."""

    attempts: list[Attempt] = field(default_factory=list)
    notified: Notified = field(default_factory=Notified)
    rules: RuleBook = field(init=False)
    effects: set[int] = field(default_factory=set)
    """Numbers of attempts whose records, or positions, were found at the end."""
    outlived: list[str] = field(default_factory=list)
    """Requests that were answered although the session of their connection had ended before they were sent."""
    refused_logins: list[str] = field(default_factory=list)
    """Logins with the right password that were refused."""
    expired: int = 0
    """Requests after the end of a session that were not answered."""
    renewed: int = 0
    """Re-authentications."""
    logins: int = 0

    def __post_init__(self) -> None:
        self.rules = RuleBook(self.notified.settled_ns)
