"""Sequential clients, each written as a generator.

Zone: deterministic. A client yields a request or a pause, and is resumed with the answer. A client that dies waits for
a while and starts again as a new process; its old requests may still arrive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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


def send_later(node: int, message: Message, version: int, response: type[Message], delay_ns: int) -> Steps[None]:
    """Send a request after a delay, and continue at once, as with a separate connection."""
    yield Send(Ask(node, message, version, response), delay_ns)


def pause_client(ns: int) -> Steps[None]:
    """Do nothing for a while."""
    yield Pause(ns)


class Actor(ABC):
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

    def start_steps(self) -> None:
        """Start the steps."""
        self.client.mark_metadata_stale()
        self._steps = self.client_steps()
        self.timeline.schedule_after(self.random.random_below(500 * MS), "actor", self._resume_with_response, None)

    @abstractmethod
    def client_steps(self) -> Steps[None]:
        """All steps of the client, from its start to its end."""

    @property
    def is_done(self) -> bool:
        """Whether its steps are finished."""
        return self._steps is None

    def _resume_with_response(self, answer: Message | None) -> None:
        # Requests that need no answer are sent until the client yields one that does, or a pause.
        assert self._steps is not None
        try:
            step = self._steps.send(answer)
            while isinstance(step, Send):
                self.timeline.schedule_after(step.delay_ns, "late request", self._send_request, step.ask, False)
                step = self._steps.send(None)
        except StopIteration:
            self._steps = None
            return
        if isinstance(step, Pause):
            self.timeline.schedule_after(step.ns, "actor", self._resume_with_response, None)
        else:
            self._send_request(step, True)

    def _send_request(self, step: Ask, waiting: bool) -> None:
        def on_response(answer: Message | None, _life: int) -> None:
            if waiting:
                self._resume_with_response(answer)

        self.client.wire_client(step.node).send_request(step.message, step.version, step.response, on_response)
