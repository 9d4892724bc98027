"""One schedule: requests that are held back, failovers, late arrivals.

Zone: deterministic. `Choices` decides everything in which two schedules can differ, and only this module asks it:

1. A request of the producer or of a broker arrives, or it is held back. Its sender then gets no answer, or a timeout.
   The reaction of the producer is part of the choice.
2. Before every step any of the held requests may arrive, in any order. One that arrives at once only lost its answer.
3. At every step a coordinator may fail over: before the request arrives, or right after it, with or without the records
   that the request made it write.

At the end everything has arrived, and time passes until every transaction has timed out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Any, Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.seams import Failure, Kind
from ottla.sim.reorder.choices import Choices
from ottla.sim.reorder.client import PASSING, Dies, Producer, Reaction, Say, Sleep
from ottla.sim.reorder.digest import request_identity, state_digest
from ottla.sim.reorder.harness import Harness
from ottla.sim.reorder.network import Sent
from ottla.sim.reorder.partitions import OFFSETS, STATE
from ottla.sim.world import MS, SECOND
from ottla.types import TopicPartition
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode
from ottla.wire.header import response_body_pos

SETTLE_MS: Final = 80_000
PATIENCE_MS: Final = 31_000
"""How long the producer waits for an answer when nothing is held back."""
MOST_IN_VAIN: Final = 2
"""How often the producer retries in vain before the request that blocks it arrives."""
STEPS: Final = 2000
"""A producer that needs more steps makes no progress."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a search."""

    version: int = 2
    """The producer's transaction version."""
    plan: tuple[bool, ...] = (True, False)
    """For each transaction of the producer, whether it is to be committed."""
    delays: int = 2
    """Maximum of requests that are held back in one schedule."""
    failovers: int = 1
    brokers_too: bool = False
    """Whether requests between brokers are also held back: AddPartitionsToTxn and WriteTxnMarkers."""
    without: str | None = None
    """The safeguard that is switched off: `replication.…` or `transactions.…`."""


class Delay(Enum):
    """How a request of a broker is held back."""

    TIMED_OUT = "is held back, and its sender gets a timeout"
    SLOW = "is held back"
    ANSWER = "arrives, its answer is held back"


class When(Enum):
    """When a coordinator fails over at a step."""

    BEFORE = "before"
    LOSING = "after it, and loses its records"
    KEEPING = "after it"


FAILOVERS: Final = tuple(product((STATE, OFFSETS), When))
BROKERS_DELAYS: Final = tuple(Delay)


class Late(NamedTuple):
    """A request or an answer that is held back."""

    name: str
    state: object
    """Its identity, for the digest."""
    lane: tuple[int, str] | None
    """The lane that it blocks; None: its sender uses a new connection by now."""
    arrive: Callable[[], None]


class Redundant(Exception):
    """The rest is the same as in another schedule."""


class Play:
    """Runs one schedule."""

    def __init__(
        self,
        bounds: Bounds,
        choices: Choices,
        trace: Callable[[str], None] | None = None,
        known: set[bytes] | None = None,
    ) -> None:
        """`known`: states in which forks were met before; None: do not recognize them."""
        self._known = known
        self.stage = Harness()
        self.producer = Producer(bounds.version, bounds.plan)
        self._bounds = bounds
        self._choices = choices
        self._trace = trace
        self._delays = bounds.delays
        self._failovers = bounds.failovers
        self._late: list[Late] = []
        self._life: Generator[Say | Sleep, Any, None] = self.producer.run_life()
        self._said: Say | None = None
        """The request whose answer the producer waits for; None: it sleeps, or it is finished."""
        self._heard: Any = None
        self._wakes_ns = 0
        self._over = False
        self._in_vain = 0
        """Retriable errors in a row, plus answers that the producer gave up waiting for."""

    def run_to_end(self) -> None:
        """Run it to its end. Raises Redundant, and AssertionError when an exception leaves a turn."""
        self._resume_producer(None)
        for _ in range(STEPS):
            if self._over and self._next_request() is None:
                break
            self._run_next()
        else:
            self.producer.complaints.append("the producer makes no progress")
        self._release_held()
        self._settle_all()
        while self._late:
            self._deliver_late(0)
            self._settle_all()

    def _log_step(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.stage.timeline.now_ns / SECOND:9.3f}  {text}")

    def _choose_option(self, width: int, *more: object) -> int:
        """Choose at a fork. Raises Redundant if a fork in the same state was met before."""
        if self._known is not None and self._choices.is_new:
            late = [(each.name, each.lane, each.state) for each in self._late]
            left = self._delays, self._failovers, self._in_vain, self._over, self._wakes_ns, self._heard is None
            state = state_digest(self.stage, self.producer, (width, more, late, left))
            if state in self._known:
                raise Redundant
            self._known.add(state)
        return self._choices.choose_option(width)

    # -- the producer --------------------------------------------------------------------------------------------------

    def _resume_producer(self, heard: Any) -> None:
        """Resume the producer, up to its next request or sleep."""
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
            self.stage.send_request(wanted.request, wanted.version, wanted.name, self._response_handler(wanted))

    def _response_handler(self, wanted: Say) -> Callable[[Any], None]:
        def hear(content: memoryview) -> None:
            if self._said is wanted and self._heard is None:
                key = wanted.request.API_KEY
                pos = response_body_pos(key, wanted.version, content)
                self._heard, _ = decode(API_TABLE[key].response, wanted.version, content, pos)
                code = ErrorCode(wanted.code(self._heard))
                self._in_vain = self._in_vain + 1 if code in PASSING else 0
                self._log_step(f"the producer hears {code.name} of {wanted.name}")

        return hear

    def _run_next(self) -> None:
        """Run the next step.

        1. An answer that has arrived goes to the producer.
        2. Otherwise the oldest request that no held one blocks arrives, or is held back.
        3. Without requests, time passes: to the end of a sleep, or while a broker works on an answer.
        """
        sent = self._next_request()
        if self._heard is not None:
            self._resume_producer(self._heard)
        elif sent is not None:
            self._deliver_or_hold(sent)
        elif self._said is None:
            self._pass_sleep()
        else:
            self._wait_for_answer(self._said)

    def _next_request(self) -> Sent | None:
        """The oldest request whose lane is not blocked."""
        busy = [late.lane for late in self._late if late.lane is not None]
        return next((sent for sent in self.stage.outbox if sent.by_client or sent.lane not in busy), None)

    def _pass_sleep(self) -> None:
        stage = self.stage
        left_ms = -(-(self._wakes_ns - stage.timeline.now_ns) // MS)
        if left_ms > 0:
            stage.wait_while(lambda: not stage.outbox, left_ms)
        if stage.timeline.now_ns >= self._wakes_ns:
            self._resume_producer(None)

    def _wait_for_answer(self, wanted: Say) -> None:
        """Let time pass until an answer arrives or a broker sends a request. If neither happens:

        1. With nothing held back the answer is missing for no reason: complain.
        2. The producer gives up waiting once, with one of its reactions.
        3. After that the oldest held request arrives, because the broker may wait for it.
        """
        stage = self.stage
        stage.wait_while(
            lambda: self._heard is None and self._next_request() is None, 1000 if self._late else PATIENCE_MS
        )
        if self._heard is not None or self._next_request() is not None:
            return
        if not self._late:
            self.producer.complaints.append(f"{wanted.name} gets no answer")
            self._resume_producer(Reaction.AGAIN)
        elif wanted.reactions and not self._in_vain:
            self._in_vain += 1
            reaction = wanted.reactions[self._choose_option(len(wanted.reactions), "reaction")]
            self._log_step(f"the producer has no answer to {wanted.name}: it {reaction.value}")
            self._resume_producer(reaction)
        else:
            self._deliver_late(0)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _deliver_or_hold(self, sent: Sent) -> None:
        """Deliver one request, or hold it back."""
        # 1. After some retries in vain the request that blocks the producer arrives.
        # 2. Any held requests may arrive now.
        # 3. This request may be held back.
        # 4. A coordinator may fail over before it, or after it. A failover after a request that wrote nothing would be
        #    the same as one before the next request, so that schedule is redundant.
        # 5. Otherwise it arrives.
        if self._in_vain >= MOST_IN_VAIN:
            self._release_slow()
        self._release_held()
        if sent not in self.stage.outbox:
            return  # a late arrival has taken it out of the outbox
        self.stage.outbox.remove(sent)
        if self._delays and self._hold_back(sent):
            return
        place, when = self._choose_failover(sent)
        if place is None:
            self._log_step(f"{sent.name} arrives")
            self.stage.deliver_request(sent)
            return
        self._failovers -= 1
        self._log_step(f"{sent.name} arrives; {place} fails over {when.value}")
        if when is When.BEFORE:
            self.stage.fail_over(place, lose=False)
            self.stage.deliver_request(sent)
            return
        self.stage.held = place
        self.stage.deliver_request(sent)
        if not self.stage.has_uncommitted(place):
            raise Redundant
        self.stage.fail_over(place, when is When.LOSING)

    def _choose_failover(self, sent: Sent) -> tuple[TopicPartition | None, When]:
        if not self._failovers:
            return None, When.BEFORE
        choice = self._choose_option(1 + len(FAILOVERS), "failover", request_identity(sent))
        return FAILOVERS[choice - 1] if choice else (None, When.BEFORE)

    def _hold_back(self, sent: Sent) -> bool:
        """Choose whether to hold a request back, and apply the consequences. True if it is held."""
        if sent.by_client:
            return self._said is not None and self._hold_request(sent, self._said)
        return self._bounds.brokers_too and self._hold_call(sent)

    def _hold_request(self, sent: Sent, wanted: Say) -> bool:
        choice = self._choose_option(1 + len(wanted.reactions), "hold", request_identity(sent))
        if not choice:
            return False
        self._delays -= 1
        reaction = wanted.reactions[choice - 1]
        self._log_step(f"{sent.name} is held back: the producer {reaction.value}")
        self._late.append(Late(sent.name, request_identity(sent), None, lambda: self.stage.deliver_request(sent)))
        self._resume_producer(reaction)
        return True

    def _hold_call(self, sent: Sent) -> bool:
        choice = self._choose_option(1 + len(BROKERS_DELAYS), "hold", request_identity(sent))
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
        self._late.append(Late(sent.name, (delay, request_identity(sent)), lane, lambda: stage.deliver_request(sent)))
        if delay is Delay.TIMED_OUT:
            answer(_timed_out())
            stage.pass_ms(0)
        return True

    def _hold_answer(self, sent: Sent) -> None:
        answer, stage = sent.on_answer, self.stage
        answers: list[Any] = []
        sent.on_answer = answers.append
        stage.deliver_request(sent)

        def arrive() -> None:
            sent.on_answer = answer  # later answers take the usual way
            for each in answers:
                answer(each)
            stage.pass_ms(0)

        self._late.append(Late(f"the answer to {sent.name}", _answer_bytes(answers), sent.lane, arrive))

    # -- what arrives late ---------------------------------------------------------------------------------------------

    def _release_held(self) -> None:
        """Choose held requests that arrive now."""
        while self._late:
            choice = self._choose_option(1 + len(self._late), "release")
            if not choice:
                return
            self._deliver_late(choice - 1)

    def _release_slow(self) -> None:
        """Deliver the first held request that blocks its lane, because the producer retries in vain."""
        at = next((at for at, late in enumerate(self._late) if late.lane is not None), None)
        if at is not None:
            self._deliver_late(at)

    def _deliver_late(self, at: int) -> None:
        self._in_vain = 0
        late = self._late.pop(at)
        self._log_step(f"{late.name} arrives late")
        late.arrive()

    def _settle_all(self) -> None:
        """Deliver all requests in flight, and let every transaction time out."""
        stage = self.stage
        end_ns = stage.timeline.now_ns + SETTLE_MS * MS
        while stage.timeline.now_ns < end_ns:
            sent = self._next_request()
            if sent is not None:
                stage.outbox.remove(sent)
                stage.deliver_request(sent)
            else:
                stage.wait_while(lambda: self._next_request() is None, -(-(end_ns - stage.timeline.now_ns) // MS))


def _do_nothing(_: object) -> None:
    """Drop an answer whose sender got a timeout already."""


def _answer_bytes(answers: list[Any]) -> list[bytes]:
    return [bytes(answer) for answer in answers]


def _timed_out() -> Failure:
    return Failure(Kind.TIMEOUT, "no answer in time")
