"""Sequential clients, each written as a generator.

Zone: deterministic. A client yields a request or a pause, and is resumed with the answer. A client that dies waits for
a while and starts again as a new process; its old requests may still arrive.
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
    """A request to a broker; the client resumes with the answer, or with None when none will come."""

    node: int
    message: Message
    version: int
    response: type[Message]


class Send(NamedTuple):
    """A request without waiting for the answer; it is sent after a delay."""

    ask: Ask
    delay_ns: int


class Pause(NamedTuple):
    """A pause of the client."""

    ns: int


Step = Ask | Send | Pause
Steps = Generator[Step, "Message | None", T]
"""The steps of a client, which return a T."""


def request_broker(node: int, message: Message, version: int, response: type[M]) -> Steps[M | None]:
    """Send a request to a broker, and wait for the answer."""
    answer = yield Ask(node, message, version, response)
    return answer if isinstance(answer, response) else None


def send(node: int, message: Message, version: int, response: type[Message], delay_ns: int) -> Steps[None]:
    """Send a request after a delay, and continue at once, as with a separate connection."""
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
        """False: finish."""
        self.hurried = False
        """True: no more pauses, aborts or deaths on purpose."""
        self._steps: Steps[None] | None = None

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self.client.name

    @property
    def timeline(self) -> Timeline:
        """The time."""
        return self.client.timeline

    def start(self) -> None:
        """Start the steps."""
        self.client.stale()
        self._steps = self.steps()
        self.timeline.after(self.random.below(500 * MS), "actor", self._resume_with_response, None)

    def steps(self) -> Steps[None]:
        """All steps of the client, from its start to its end."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether its steps are finished."""
        return self._steps is None

    def _resume_with_response(self, answer: Message | None) -> None:
        # Requests that need no answer are sent until the client yields one that does, or a pause.
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
