"""Clients that do one thing after the other, each written as a generator from top to bottom.

Zone: deterministic. A client yields what it wants (an answer, some time) and is resumed with what it gets. One that
dies on its way stays away for a while and begins anew; what it has sent may still arrive.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple, TypeVar

from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.world import MS, Timeline
from ottla.wire.schema import Message

T = TypeVar("T")
M = TypeVar("M", bound=Message)

RETRY_NS: Final = 100 * MS


class Ask(NamedTuple):
    """A request to a broker; the client goes on with the answer, None when none will come."""

    node: int
    message: Message
    version: int
    response: type[Message]


class Send(NamedTuple):
    """A request whose answer nobody waits for; the network holds it back for a while."""

    ask: Ask
    delay_ns: int


class Pause(NamedTuple):
    """Some time."""

    ns: int


Step = Ask | Send | Pause
Steps = Generator[Step, "Message | None", T]
"""A client's steps, which end with a T."""


def request_broker(node: int, message: Message, version: int, response: type[M]) -> Steps[M | None]:
    """Ask a broker."""
    answer = yield Ask(node, message, version, response)
    return answer if isinstance(answer, response) else None


def send(node: int, message: Message, version: int, response: type[Message], delay_ns: int) -> Steps[None]:
    """Ask, and go on at once: the request arrives that much later, as over a connection of its own."""
    yield Send(Ask(node, message, version, response), delay_ns)


def pause(ns: int) -> Steps[None]:
    """Do nothing for a while."""
    yield Pause(ns)


class Actor:
    """Drives one client."""

    def __init__(self, client: ClusterClient, random: Stream) -> None:
        self.client = client
        self.random = random
        self.working = True
        """False: come to an end."""
        self.hurried = False
        """True: do not dawdle, abort or die any more."""
        self._steps: Steps[None] | None = None

    @property
    def name(self) -> str:
        """As it appears in the history."""
        return self.client.name

    @property
    def timeline(self) -> Timeline:
        """The time."""
        return self.client.timeline

    def start(self) -> None:
        """Begin."""
        self.client.stale()
        self._steps = self.steps()
        self.timeline.after(self.random.below(500 * MS), "actor", self._resume_with_response, None)

    def steps(self) -> Steps[None]:
        """What it does, from its start to its end."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return self._steps is None

    def _resume_with_response(self, answer: Message | None) -> None:
        assert self._steps is not None
        try:
            step = self._steps.send(answer)
            while isinstance(step, Send):
                self.timeline.after(step.delay_ns, "late request", self._request, step.ask, False)
                step = self._steps.send(None)
        except StopIteration:
            self._steps = None
            return
        if isinstance(step, Pause):
            self.timeline.after(step.ns, "actor", self._resume_with_response, None)
        else:
            self._request(step, True)

    def _request(self, step: Ask, waiting: bool) -> None:
        def on_response(answer: Message | None, _life: int) -> None:
            if waiting:
                self._resume_with_response(answer)

        self.client.wire(step.node).request(step.message, step.version, step.response, on_response)
