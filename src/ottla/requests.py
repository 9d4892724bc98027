"""What a handler is: its declaration and the context of one request.

Zone: pure. Lives below every noun, so that handlers stand beside the thing they handle (cluster, groups, …) and the
broker only collects them. Nothing here may know a broker, a log or a connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from ottla.changes import HalfChanged
from ottla.seams import Part, Peer, Slot

F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")


Need = tuple[str, str]
"""A kind of resource, and Kafka's ACL operation on it: ("Topic", "Read")."""


class Parts(NamedTuple):
    """How a request of many elements is cut into parts, which are handled in turns of their own.

    Each path names arrays inside each other, ("topics", "partitions"); the first one that the version has counts. What
    the response says of the elements is joined along its path of the same position. A request without `Parts` is
    handled as a whole, however large.
    """

    cost_us: int
    """About how long one element takes to handle and to encode, in microseconds."""
    request: tuple[tuple[str, ...], ...]
    response: tuple[tuple[str, ...], ...]
    once: Callable[[Any], Hashable] | None = None
    """What tells elements of the outermost array apart, where it is enough to answer equal ones once."""
    names: Callable[[Any], Iterable[Hashable]] | None = None
    """What an element of the outermost array names, where the handler asks `Context.repeated` what is named twice."""


class Whole:
    """What handlers know of a whole request while they handle a part of it."""

    __slots__ = ("count", "is_all", "repeated")

    def __init__(self, repeated: AbstractSet[int] = frozenset(), *, is_all: bool = False) -> None:
        self.repeated = repeated
        """The hashes of the names that the request has more than once."""
        self.is_all = is_all
        """Whether the request asked for all that there is, and the parts name it (`InParts`)."""
        self.count = 0
        """What a handler counts over all parts."""


class Declaration(NamedTuple):
    """Which API and versions a handler answers, and what it needs to be allowed.

    A handler returns the response, or None and answers later by `Context.reply`. For a request of more than 512 bytes
    it may return `MembershipSteps` instead: they run in later turns, and return what the handler would have returned.

    `operation` is Kafka's ACL operation on `resource` ("Topic", "Group", "Cluster", "TransactionalId"); the authorizer
    that decides on them stands in front of the dispatch. None: open to everyone (ApiVersions, SaslHandshake …).
    """

    api_key: int
    min_version: int
    max_version: int
    resource: str | None = None
    operation: str | None = None
    inter_broker: bool = False
    brokers_from: int | None = None
    """The version from which on only brokers may ask; None: no version."""
    early: bool = False
    """Whether it is served before the broker is ready, as what only brokers ask is."""
    also: tuple[Need, ...] = ()
    """What is needed besides, for the other things a request may name; the handler's text says for which."""
    parts: Parts | None = None
    """How a large request is cut into parts; None: it is not."""
    walked: tuple[str, ...] | None = None
    """The path of an array that the handler only iterates over: a large request is decoded as it is walked, and may
    have an element several times, with some of the elements along the path each time."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """All that is needed; empty: it is open to everyone."""
        if self.resource is None or self.operation is None:
            return self.also
        return ((self.resource, self.operation), *self.also)

    def is_for_brokers(self, version: int) -> bool:
        """Whether only brokers may ask in that version."""
        return self.inter_broker or (self.brokers_from is not None and version >= self.brokers_from)


class Encoded(NamedTuple):
    """A response that is bytes already, in the version that was asked for, without its header."""

    parts: Sequence[Part]


class InParts(NamedTuple):
    """Requests to handle in place of one for all that there is, one after the other; their answers are joined.

    At least one. Each is handled as a part, with `Whole.is_all`.
    """

    requests: Iterator[Any]


class InPieces(NamedTuple):
    """A response with much in it, which is made and encoded piece by piece, in turns of its own."""

    path: tuple[str, ...]
    """The arrays, inside each other, that the pieces have parts of: they are joined."""
    pieces: Generator[Any, None, None]
    """Responses of one type, each with a few hundred elements along the path; at least one. Closed in any case."""
    keep: Callable[[Encoded], None] | None = None
    """Gets the whole response before it is sent."""
    on_dropped: Callable[[], None] | None = None
    """Called where there will be no whole response: the client is gone, or a piece failed."""


class Context:
    """One request on its way: who asks, in which version, and where the answer goes."""

    __slots__ = (
        "_answer",
        "_fail",
        "answered",
        "api_key",
        "api_version",
        "client_id",
        "correlation_id",
        "failed",
        "is_part",
        "slot",
        "whole",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        slot: Slot,
        answer: Callable[[Context, Any], None],
        *,
        is_part: bool = False,
        whole: Whole | None = None,
        fail: Callable[[Context, Exception], None] | None = None,
    ) -> None:
        """fail: takes a defect in a step of this request; None: it is raised."""
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.slot = slot
        self.answered = False
        """For whoever sends the answers: whether this one was given."""
        self.failed = False
        """Whether its handler failed: what comes later is not sent."""
        self.is_part = is_part
        """Whether this is a part of a request, whose answer is joined with others: it cannot be an Encoded one."""
        self.whole = whole
        """The whole request, where it may be larger than what the handler gets of it."""
        self._answer = answer
        self._fail = fail

    def continuing(self, step: Callable[P, None]) -> Callable[P, None]:
        """A step of this request that others call when something completes, in a turn that is not its own.

        A defect in it costs this request, and not the one that calls it. HalfChanged passes.
        """

        def contained(*arguments: P.args, **named: P.kwargs) -> None:
            try:
                step(*arguments, **named)
            except HalfChanged:
                raise
            except Exception as error:
                if self._fail is None:
                    raise
                self._fail(self, error)

        return contained

    def repeated(self, names: Iterable[Hashable]) -> AbstractSet[int]:
        """The hashes of names that the whole request has more than once; `names`: what the handler got of it."""
        if self.whole is not None:
            return self.whole.repeated
        return {hash(name) for name, count in Counter(names).items() if count > 1}

    @property
    def peer(self) -> Peer:
        """The connection the request came on."""
        return self.slot.peer

    def reply(self, response: object) -> None:
        """Answer now (from a later turn), exactly once: a response message, an Encoded one, or an ApiError."""
        self._answer(self, response)


WAITING: Final = -1
"""What steps yield when they wait for something that will resume them."""
Steps = Generator[int, None, object]
"""A large request in slices: yields the cost of each in microseconds, or WAITING; returns the response."""
MakeSteps = Callable[[Callable[[], None]], Steps]
"""Makes steps from what resumes them; to call that while they do not wait does nothing."""
RunSteps = Callable[[Slot, int, int, int, MakeSteps], None]
"""Runs steps in later turns: (slot, API key, version, correlation id, what makes them). A response of None is not
sent: then the handler answers by itself."""


def refuse_steps(slot: Slot, api_key: int, _version: int, _correlation_id: int, _make: MakeSteps) -> None:
    """Where nothing runs slices. Raises ValueError."""
    raise ValueError(f"a request of API {api_key} is too large for {slot}: nothing runs its slices here")


Contain = Callable[[Exception, Slot, int, int, int, Callable[[], Any] | None], None]
"""Makes a defect cost its request only: (exception, slot, API key, version, correlation id, what gives the request).

The request's elements are refused where the whole cannot be; without it the connection is closed. Raises HalfChanged.
"""
Handler = Callable[[Context, Any], Any]
"""Takes the decoded request; returns the response, or None when `Context.reply` will bring it later."""


def handles(
    api_key: int,
    min_version: int,
    max_version: int,
    *,
    resource: str | None = None,
    operation: str | None = None,
    inter_broker: bool = False,
    brokers_from: int | None = None,
    early: bool = False,
    also: tuple[Need, ...] = (),
    parts: Parts | None = None,
    walked: tuple[str, ...] | None = None,
) -> Callable[[F], F]:
    """Declare a method as the handler of an API."""
    declaration = Declaration(
        api_key, min_version, max_version, resource, operation, inter_broker, brokers_from, early, also, parts, walked
    )

    def mark(method: F) -> F:
        method.__dict__["declaration"] = declaration
        return method

    return mark


def raise_defect(error: Exception, *_request: object) -> None:
    """Where nothing contains defects."""
    raise error


def handlers_of(owner: object) -> Iterator[tuple[Declaration, Handler]]:
    """The declared handlers of an object, in the order of their names."""
    for name in sorted(dir(type(owner))):
        declaration = getattr(getattr(type(owner), name), "declaration", None)
        if isinstance(declaration, Declaration):
            yield declaration, getattr(owner, name)
