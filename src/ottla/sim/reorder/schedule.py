"""One schedule: what is held back, what fails over, what arrives late.

Zone: deterministic. Whatever can differ between two schedules is asked of `Choices`, here and nowhere else:

- every request, of the producer or of a broker, arrives, or it is held back; who waits for its answer hears nothing, or
  in time that there will be none. What the producer does then is part of the choice.
- before every step anything that is held back may arrive, in any order. What arrives at once had only its answer lost.
- at every step a coordinator may fail over: before the request arrives, or right behind it, with what the request has
  made it write, or without.

In the end everything has arrived, and time passes until every transaction is too old.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Any, Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.replication.safeguards import ReplicationSafeguards
from ottla.seams import Failure, Kind
from ottla.sim.reorder.choices import Choices
from ottla.sim.reorder.client import PASSING, Dies, Producer, Reaction, Say, Sleep
from ottla.sim.reorder.digest import digest, said
from ottla.sim.reorder.harness import OFFSETS, STATE, Harness, Sent
from ottla.sim.world import MS, SECOND
from ottla.transactions.safeguards import TransactionSafeguards
from ottla.types import TopicPartition
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode
from ottla.wire.header import response_body_pos

SETTLE_MS: Final = 80_000
PATIENCE_MS: Final = 31_000
"""How long the producer waits when nothing is held back."""
MOST_IN_VAIN: Final = 2
"""How often the producer asks in vain before what holds it up arrives."""
STEPS: Final = 2000
"""More than that is a producer that never gets on."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a search covers."""

    version: int = 2
    """The producer's transaction version."""
    plan: tuple[bool, ...] = (True, False)
    """Which of its transactions it means to commit."""
    delays: int = 2
    """Requests held back in one schedule, at most."""
    failovers: int = 1
    brokers_too: bool = False
    """Whether what brokers say to each other is held back, too: the adding of partitions, and markers."""
    without: str | None = None
    """A safeguard that is switched off: `replication.…` or `transactions.…`."""

    def safeguards(self) -> tuple[ReplicationSafeguards, TransactionSafeguards]:
        """All but one."""
        room, _, name = (self.without or "").partition(".")
        off = {name: False}
        replication = ReplicationSafeguards(**off) if room == "replication" else ReplicationSafeguards()
        return replication, TransactionSafeguards(**off) if room == "transactions" else TransactionSafeguards()


class Delay(Enum):
    """How a request of a broker is held back."""

    TIMED_OUT = "is held back, and its sender is told so"
    SLOW = "is held back"
    ANSWER = "arrives, its answer is held back"


class When(Enum):
    """When a coordinator fails over at a step."""

    BEFORE = "before"
    LOSING = "behind it, losing what it wrote"
    KEEPING = "behind it"


FAILOVERS: Final = tuple(product((STATE, OFFSETS), When))
BROKERS_DELAYS: Final = tuple(Delay)


class Late(NamedTuple):
    """What is held back."""

    name: str
    state: object
    """What tells it from others."""
    lane: tuple[int, str] | None
    """Nothing else arrives in this lane meanwhile; None: there is another connection by now."""
    arrive: Callable[[], None]


class Redundant(Exception):
    """What follows is the same as in another schedule."""


class Play:
    """One schedule."""

    def __init__(
        self,
        bounds: Bounds,
        choices: Choices,
        trace: Callable[[str], None] | None = None,
        known: set[bytes] | None = None,
    ) -> None:
        """`known`: states in which forks were met before; None: nobody keeps them."""
        self._known = known
        self.stage = Harness(*bounds.safeguards())
        self.producer = Producer(bounds.version, bounds.plan)
        self._bounds = bounds
        self._choices = choices
        self._trace = trace
        self._delays = bounds.delays
        self._failovers = bounds.failovers
        self._late: list[Late] = []
        self._life: Generator[Say | Sleep, Any, None] = self.producer.life()
        self._said: Say | None = None
        """What the producer waits for an answer to; None: it sleeps, or its life is over."""
        self._heard: Any = None
        self._wakes_ns = 0
        self._over = False
        self._in_vain = 0
        """Answers in a row that said no more than to ask again, and times it gave up waiting."""

    def run(self) -> None:
        """Play it to its end. Raises Redundant; AssertionError when something leaves a turn."""
        self._go_on(None)
        for _ in range(STEPS):
            if self._over and self._next() is None:
                break
            self._advance()
        else:
            self.producer.complaints.append("the producer never comes to an end")
        self._release()
        self._settle()
        while self._late:
            self._arrive(0)
            self._settle()

    def _log_step(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.stage.timeline.now_ns / SECOND:9.3f}  {text}")

    def _choose(self, width: int, *more: object) -> int:
        """A fork. Raises Redundant where one has been met in the very same state, with the same left to do."""
        if self._known is not None and self._choices.is_new:
            late = [(each.name, each.lane, each.state) for each in self._late]
            left = self._delays, self._failovers, self._in_vain, self._over, self._wakes_ns, self._heard is None
            state = digest(self.stage, self.producer, (width, more, late, left))
            if state in self._known:
                raise Redundant
            self._known.add(state)
        return self._choices.choose(width)

    # -- the producer --------------------------------------------------------------------------------------------------

    def _go_on(self, heard: Any) -> None:
        """Let the producer go on: to its next request, or its next sleep."""
        self._said, self._heard = None, None
        try:
            wanted = self._life.send(heard)
        except (StopIteration, Dies):
            self._over = True
            return
        if isinstance(wanted, Sleep):
            self._wakes_ns = self.stage.timeline.now_ns + wanted.ms * MS
        else:
            self._said = wanted
            self.stage.send(wanted.request, wanted.version, wanted.name, self._hear_of(wanted))

    def _hear_of(self, wanted: Say) -> Callable[[Any], None]:
        def hear(content: memoryview) -> None:
            if self._said is wanted and self._heard is None:
                key = wanted.request.API_KEY
                pos = response_body_pos(key, wanted.version, content)
                self._heard, _ = decode(API_TABLE[key].response, wanted.version, content, pos)
                code = ErrorCode(wanted.code(self._heard))
                self._in_vain = self._in_vain + 1 if code in PASSING else 0
                self._log_step(f"the producer hears {code.name} of {wanted.name}")

        return hear

    def _advance(self) -> None:
        """What comes next: an answer, a request that arrives, or time."""
        sent = self._next()
        if self._heard is not None:
            self._go_on(self._heard)
        elif sent is not None:
            self._step(sent)
        elif self._said is None:
            self._sleep()
        else:
            self._wait(self._said)

    def _next(self) -> Sent | None:
        """The oldest request that nothing in its lane holds up."""
        busy = [late.lane for late in self._late if late.lane is not None]
        return next((sent for sent in self.stage.outbox if sent.by_client or sent.lane not in busy), None)

    def _sleep(self) -> None:
        stage = self.stage
        left_ms = -(-(self._wakes_ns - stage.timeline.now_ns) // MS)
        if left_ms > 0:
            stage.wait(lambda: not stage.outbox, left_ms)
        if stage.timeline.now_ns >= self._wakes_ns:
            self._go_on(None)

    def _wait(self, wanted: Say) -> None:
        """A broker takes its time; if that is because something is held back, the producer gives up first."""
        stage = self.stage
        stage.wait(lambda: self._heard is None and self._next() is None, 1000 if self._late else PATIENCE_MS)
        if self._heard is not None or self._next() is not None:
            return
        if not self._late:
            self.producer.complaints.append(f"{wanted.name} gets no answer")
            self._go_on(Reaction.AGAIN)
        elif wanted.reactions and not self._in_vain:
            self._in_vain += 1
            reaction = wanted.reactions[self._choose(len(wanted.reactions), "reaction")]
            self._log_step(f"the producer has no answer to {wanted.name}: it {reaction.value}")
            self._go_on(reaction)
        else:
            self._arrive(0)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _step(self, sent: Sent) -> None:
        """One request arrives, or is held back."""
        if self._in_vain >= MOST_IN_VAIN:
            self._release_slow()
        self._release()
        if sent not in self.stage.outbox:
            return  # what has arrived late brought it along
        self.stage.outbox.remove(sent)
        if self._delays and self._hold_back(sent):
            return
        place, when = self._failover(sent)
        if place is None:
            self._log_step(f"{sent.name} arrives")
            self.stage.deliver(sent)
            return
        self._failovers -= 1
        self._log_step(f"{sent.name} arrives; {place} fails over {when.value}")
        if when is When.BEFORE:
            self.stage.fail_over(place, lose=False)
            self.stage.deliver(sent)
            return
        self.stage.held = place
        self.stage.deliver(sent)
        if not self.stage.uncommitted(place):
            raise Redundant
        self.stage.fail_over(place, when is When.LOSING)

    def _failover(self, sent: Sent) -> tuple[TopicPartition | None, When]:
        if not self._failovers:
            return None, When.BEFORE
        choice = self._choose(1 + len(FAILOVERS), "failover", said(sent))
        return FAILOVERS[choice - 1] if choice else (None, When.BEFORE)

    def _hold_back(self, sent: Sent) -> bool:
        """Whether a request is held back, and what comes of that."""
        if sent.by_client:
            return self._said is not None and self._hold_request(sent, self._said)
        return self._bounds.brokers_too and self._hold_call(sent)

    def _hold_request(self, sent: Sent, wanted: Say) -> bool:
        choice = self._choose(1 + len(wanted.reactions), "hold", said(sent))
        if not choice:
            return False
        self._delays -= 1
        reaction = wanted.reactions[choice - 1]
        self._log_step(f"{sent.name} is held back: the producer {reaction.value}")
        self._late.append(Late(sent.name, said(sent), None, lambda: self.stage.deliver(sent)))
        self._go_on(reaction)
        return True

    def _hold_call(self, sent: Sent) -> bool:
        choice = self._choose(1 + len(BROKERS_DELAYS), "hold", said(sent))
        if not choice:
            return False
        self._delays -= 1
        delay = BROKERS_DELAYS[choice - 1]
        self._log_step(f"{sent.name} {delay.value}")
        if delay is Delay.ANSWER:
            self._hold_answer(sent)
            return True
        lane = sent.lane if delay is Delay.SLOW else None
        answer, stage = sent.on_answer, self.stage
        if delay is Delay.TIMED_OUT:
            sent.on_answer = _do_nothing
        self._late.append(Late(sent.name, (delay, said(sent)), lane, lambda: stage.deliver(sent)))
        if delay is Delay.TIMED_OUT:
            answer(_timed_out())
            stage.pass_ms(0)
        return True

    def _hold_answer(self, sent: Sent) -> None:
        answer, stage = sent.on_answer, self.stage
        answers: list[Any] = []
        sent.on_answer = answers.append
        stage.deliver(sent)

        def arrive() -> None:
            sent.on_answer = answer  # what comes yet takes the usual way
            for each in answers:
                answer(each)
            stage.pass_ms(0)

        self._late.append(Late(f"the answer to {sent.name}", _bytes(answers), sent.lane, arrive))

    # -- what arrives late ---------------------------------------------------------------------------------------------

    def _release(self) -> None:
        """Anything that is held back may arrive now."""
        while self._late:
            choice = self._choose(1 + len(self._late), "release")
            if not choice:
                return
            self._arrive(choice - 1)

    def _release_slow(self) -> None:
        """The producer asks in vain: what holds it up arrives."""
        at = next((at for at, late in enumerate(self._late) if late.lane is not None), None)
        if at is not None:
            self._arrive(at)

    def _arrive(self, at: int) -> None:
        self._in_vain = 0
        late = self._late.pop(at)
        self._log_step(f"{late.name} arrives late")
        late.arrive()

    def _settle(self) -> None:
        """Everything on its way arrives, and every transaction gets too old."""
        stage = self.stage
        end_ns = stage.timeline.now_ns + SETTLE_MS * MS
        while stage.timeline.now_ns < end_ns:
            sent = self._next()
            if sent is not None:
                stage.outbox.remove(sent)
                stage.deliver(sent)
            else:
                stage.wait(lambda: self._next() is None, -(-(end_ns - stage.timeline.now_ns) // MS))


def _do_nothing(_: object) -> None:
    """Nobody waits for the answer."""


def _bytes(answers: list[Any]) -> list[bytes]:
    return [bytes(answer) for answer in answers]


def _timed_out() -> Failure:
    return Failure(Kind.TIMEOUT, "no answer in time")
