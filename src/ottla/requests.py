"""The interface of handlers: their declarations, and the context of one request.

Zone: pure. It is below all packages, so that each (cluster, groups, …) contains its own handlers, and the broker only
registers them. Nothing here may depend on a broker, a log or a connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from ottla.acls import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType
from ottla.changes import HalfChanged
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Part, Peer, Slot

F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")


Need = tuple[str, str]
"""A resource type and Kafka's ACL operation on it: ("Topic", "Read")."""


class Parts(NamedTuple):
    """How a request of many elements is divided into parts, which are handled in turns of their own.

    Each path names nested arrays, ("topics", "partitions"); the first path that the version has is used. The responses
    are joined along the response path. A request without `Parts` is handled as a whole, however large.
    """

    cost_us: int
    """Approximate time to handle and encode one element, in microseconds."""
    request: tuple[tuple[str, ...], ...]
    response: tuple[tuple[str, ...], ...]
    once: Callable[[Any], Hashable] | None = None
    """The key of an element of the outermost array, if equal elements need only one result."""
    names: Callable[[Any], Iterable[Hashable]] | None = None
    """The names in an element of the outermost array, if the handler uses `Context.repeated_names`."""


class Whole:
    """Facts about a whole request, for handlers of its parts."""

    __slots__ = ("count", "is_all", "repeated")

    def __init__(self, repeated: AbstractSet[int] = frozenset(), *, is_all: bool = False) -> None:
        self.repeated = repeated
        """The hashes of names that occur more than once in the request."""
        self.is_all = is_all
        """Whether the request was for all there is, and the parts name it explicitly (`InParts`)."""
        self.count = 0
        """A handler's counter over all parts."""


class Declaration(NamedTuple):
    """The API and versions of a handler, and the permissions it requires.

    A handler returns the response, or None and responds later by `Context.send_reply`. For a request of more than 512
    bytes it may return `Steps` instead: they run in later turns, and return what the handler would have returned.

    `operation` is Kafka's ACL operation on `resource` ("Topic", "Group", "Cluster", "TransactionalId"). None: no
    permission is needed (ApiVersions, SaslHandshake …). The dispatch checks a single permission on the cluster before
    it calls the handler; handlers check all others, because those differ by element.
    """

    api_key: int
    min_version: int
    max_version: int
    resource: str | None = None
    operation: str | None = None
    inter_broker: bool = False
    brokers_from: int | None = None
    """The version from which on only brokers may send the request; None: no version."""
    early: bool = False
    """Whether it is served before the broker is ready, as requests of brokers are."""
    also: tuple[Need, ...] = ()
    """Further permissions, for other resources that a request may name; the handler's docstring states for which."""
    parts: Parts | None = None
    """How a large request is divided into parts; None: it is not divided."""
    undivided: str | None = None
    """Why a request of clients with arrays needs no `parts`: what bounds the work of its turn."""
    walked: tuple[str, ...] | None = None
    """The path of an array that the handler only iterates over: a large request is decoded during the iteration, which
    may return an element several times, each time with some of its elements along the path."""
    checks_itself: bool = False
    """Whether the handler checks the permission although it is the only one, and on the cluster."""
    most_bytes: int | None = None
    """Most bytes of a request that is not divided; the connection of a larger one is closed before it is decoded."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """All required permissions; empty: none."""
        if self.resource is None or self.operation is None:
            return self.also
        return ((self.resource, self.operation), *self.also)

    @property
    def cluster_operation(self) -> Operation | None:
        """The operation on the cluster that the dispatch checks; None: the handler checks what it needs."""
        if self.checks_itself or self.also or self.resource != "Cluster" or self.operation is None:
            return None
        return Operation.from_text(self.operation)

    def is_for_brokers(self, version: int) -> bool:
        """Whether only brokers may send the request in that version."""
        return self.inter_broker or (self.brokers_from is not None and version >= self.brokers_from)


class Encoded(NamedTuple):
    """A response that is already encoded in the request's version, without its header."""

    parts: Sequence[Part]


class InParts(NamedTuple):
    """Explicit requests that replace a request for all there is. They are handled in order; their responses are joined.

    There is at least one. Each is handled as a part, with `Whole.is_all`.
    """

    requests: Iterator[Any]


class InPieces(NamedTuple):
    """A large response that is built and encoded piece by piece, in turns of its own."""

    path: tuple[str, ...]
    """The nested arrays that are divided between the pieces, and joined."""
    pieces: Generator[Any, None, None]
    """Responses of one type, each with a few hundred elements along the path; at least one. Closed in any case."""
    keep: Callable[[Encoded], None] | None = None
    """Receives the whole response before it is sent."""
    on_dropped: Callable[[], None] | None = None
    """Called if there will be no whole response: the connection has ended, or a piece failed."""


EVERY_OPERATION_OF: Final = {
    kind: sum(1 << operation for operation in operations) for kind, operations in SUPPORTED_OPERATIONS.items()
}
"""The `authorized_operations` of a principal that may do everything."""
NOT_ASKED: Final = -(2**31)
"""The `authorized_operations` of a response to a request that did not ask for them."""


class Rights(Protocol):
    """What the principal of one connection may do, with an authorizer."""

    @property
    def topics(self) -> Mapping[str, int]:
        """The operations that are allowed at some topics: bit n for operation n. Valid in this turn only."""
        ...

    def is_allowed(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the operation is allowed at a resource."""
        ...

    def is_allowed_anywhere(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there can be a resource of this type at which the operation is allowed."""
        ...

    def reported_operations(self, resource_type: ResourceType, name: str) -> int:
        """The `authorized_operations` of a response: bit n for operation n."""
        ...

    def log_denial(self, api_key: int, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Write a denied operation to the audit log."""
        ...


RightsOf = Callable[[Peer], Rights | None]
"""Returns what a connection may do; None: everything, because it is a broker's, or there is no authorizer."""
AUTHORIZATION_ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
"""The error of a denied operation. It does not disclose whether the resource exists."""


def all_rights(_peer: Peer) -> Rights | None:
    """The default of RightsOf, without an authorizer."""
    return None


def denied_error(resource_type: ResourceType) -> ApiError:
    """The error of a denied operation at a resource of this type."""
    return ApiError(AUTHORIZATION_ERRORS[resource_type], f"{resource_type.title} authorization failed.")


class Context:
    """One request in progress: its header, its connection, and the way to respond."""

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
        "rights",
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
        rights: Rights | None = None,
    ) -> None:
        """fail: handles a defect in a step of this request; None: it is raised."""
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.slot = slot
        self.answered = False
        """Whether the response was sent; set by the dispatch."""
        self.failed = False
        """Whether the handler failed: a later response is not sent."""
        self.is_part = is_part
        """Whether this is a part of a request. Its response is joined with others, so it cannot be an Encoded one."""
        self.whole = whole
        """Facts about the whole request, if this may be a part of it."""
        self.rights = rights
        """What the connection may do; None: everything."""
        self._answer = answer
        self._fail = fail

    # -- permissions -------------------------------------------------------------------------------------------------

    def is_allowed(
        self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME, *, logs: bool = True
    ) -> bool:
        """Whether the request may do this. `logs`: write a denial to the audit log; not for filters of a list."""
        rights = self.rights
        if rights is None or rights.is_allowed(operation, resource_type, name):
            return True
        if logs:
            rights.log_denial(self.api_key, operation, resource_type, name)
        return False

    def is_allowed_anywhere(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there can be a resource of this type at which the operation is allowed. Denials are not logged."""
        return self.rights is None or self.rights.is_allowed_anywhere(operation, resource_type)

    def check_allowed(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raise ApiError with the error for this type of resource if the request may not do this."""
        if self.rights is not None and not self.is_allowed(operation, resource_type, name):
            raise denied_error(resource_type)

    def denied_names(self, operation: Operation, resource_type: ResourceType, names: Iterable[str]) -> AbstractSet[str]:
        """The names of resources at which the request may not do this."""
        if self.rights is None:
            return frozenset()
        return {name for name in set(names) if not self.is_allowed(operation, resource_type, name)}

    def authorized_operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The `authorized_operations` of a response about a resource."""
        if self.rights is None:
            return EVERY_OPERATION_OF[resource_type]
        return self.rights.reported_operations(resource_type, name)

    # -- responses ---------------------------------------------------------------------------------------------------

    def wrap_step(self, step: Callable[P, None]) -> Callable[P, None]:
        """Wrap a step of this request that is called by a completion in another turn.

        A defect in it fails this request, not the caller's. HalfChanged passes.
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

    def repeated_names(self, names: Iterable[Hashable]) -> AbstractSet[int]:
        """The hashes of names that occur more than once in the whole request; `names`: those of this part."""
        if self.whole is not None:
            return self.whole.repeated
        return {hash(name) for name, count in Counter(names).items() if count > 1}

    @property
    def peer(self) -> Peer:
        """The connection of the request."""
        return self.slot.peer

    def send_reply(self, response: object) -> None:
        """Respond from a later turn, exactly once: with a response message, an Encoded one, or an ApiError."""
        self._answer(self, response)


WAITING: Final = -1
"""Steps yield this when they wait for an event that resumes them."""
Steps = Generator[int, None, object]
"""A large request in slices: yields the cost of each in microseconds, or WAITING; returns the response."""
MakeSteps = Callable[[Callable[[], None]], Steps]
"""Creates steps, given the function that resumes them; a call of that function while they do not wait does nothing."""
RunSteps = Callable[[Slot, int, int, int, MakeSteps], None]
"""Runs steps in later turns: (slot, API key, version, correlation id, function that creates them). If they return None,
the handler sends the response by itself."""


def refuse_steps(slot: Slot, api_key: int, _version: int, _correlation_id: int, _make: MakeSteps) -> None:
    """The default of RunSteps, without a queue of large requests. Raises ValueError."""
    raise ValueError(f"a request of API {api_key} is too large for {slot}: nothing runs its slices here")


Contain = Callable[[Exception, Slot, int, int, int, Callable[[], Any] | None], None]
"""Fails a request after a defect: (exception, slot, API key, version, correlation id, function that returns the
request, or None).

The elements of the request are refused if the response has no error for the whole; without a request the connection is
closed. Raises HalfChanged.
"""
Handler = Callable[[Context, Any], Any]
"""Receives the decoded request; returns the response, or None if `Context.send_reply` follows later."""


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
    undivided: str | None = None,
    walked: tuple[str, ...] | None = None,
    checks_itself: bool = False,
    most_bytes: int | None = None,
) -> Callable[[F], F]:
    """Declare a method as the handler of an API."""
    declaration = Declaration(
        api_key,
        min_version,
        max_version,
        resource,
        operation,
        inter_broker,
        brokers_from,
        early,
        also,
        parts,
        undivided,
        walked,
        checks_itself,
        most_bytes,
    )

    def mark(method: F) -> F:
        method.__dict__["declaration"] = declaration
        return method

    return mark


def raise_defect(error: Exception, *_request: object) -> None:
    """The default of Contain: raise the exception."""
    raise error


def handlers_of(owner: object) -> Iterator[tuple[Declaration, Handler]]:
    """The declared handlers of an object, in the order of their names."""
    for name in sorted(dir(type(owner))):
        declaration = getattr(getattr(type(owner), name), "declaration", None)
        if isinstance(declaration, Declaration):
            yield declaration, getattr(owner, name)
