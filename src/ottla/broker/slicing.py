"""Large requests: decoded, handled and encoded in slices over several turns, so that no turn is long.

Zone: deterministic. A request of more than a few elements is divided as its handler's declaration states
(`requests.Parts`); the ordinary handler handles each part, and the responses are joined as bytes. The cost of slices is
estimated in microseconds from the declarations, never measured by a clock. All large requests share one queue, and a
turn serves one of them. The gate of the connection stays closed until the response, so requests keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NamedTuple, Protocol

from ottla.broker.large_request import DECODE_US, ManyElements, SomeElements
from ottla.changes import HalfChanged
from ottla.errors import ApiError
from ottla.requests import WAITING, Context, Declaration, Encoded, InParts, InPieces, MakeSteps, Steps, Whole
from ottla.seams import Network, Peer, Slot
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, decode_sliced
from ottla.wire.errors import MalformedMessage
from ottla.wire.slices import Elements, Joined, count_elements, path_in, split_struct

SMALL: Final = 512
"""Requests up to this number of bytes are handled as a whole; their elements are not counted."""
INLINE: Final = 8 * 1024
"""Requests up to this number of bytes are decoded in one step."""
TURN_US: Final = 5_000
"""Estimated cost of the slices of one turn."""
PART_US: Final = 2_500
"""Estimated cost of a part."""
_ENCODE_BYTES_PER_US: Final = 50


class Api(Protocol):
    """An API with its declaration."""

    declaration: Declaration
    request: Any


class _Large:
    """One large request in progress."""

    __slots__ = ("answer", "context", "is_gone", "is_queued", "is_waiting", "request", "steps")

    def __init__(self, context: Context) -> None:
        self.context = context
        self.steps: Steps
        self.answer: object = None
        """The response to the present part, once it is known."""
        self.request: object = None
        """The present part."""
        self.is_waiting = self.is_gone = self.is_queued = False


class _Defect(NamedTuple):
    """Takes the place of the response to a part that failed."""

    error: Exception


class SlicedRequests:
    """The queue of large requests."""

    def __init__(
        self,
        network: Network,
        later: Callable[[Callable[[], None]], object],
        handle: Callable[[Any, Context, Any], object],
        answer: Callable[[Context, object], None],
        failed: Callable[[Context, Exception], None],
        refuse: Callable[[Context, Exception, Any], Any],
        as_response: Callable[[int, ApiError], object | None],
    ) -> None:
        """later: calls a function in a turn of its own, soon.

        handle: (api, context, request) → response, error, or None if the response follows later.
        failed: contains an exception of a slice in a later turn. refuse: (context, exception, part of a request) → the
        response that refuses its elements; raises the exception if there is none.
        """
        self._network = network
        self._later = later
        self._handle = handle
        self._answer = answer
        self._failed = failed
        self._refuse = refuse
        self._as_response = as_response
        self._queue: deque[_Large] = deque()
        self._large: dict[Peer, set[_Large]] = {}
        """Requests in progress, by connection."""
        self._is_planned = False

    def __len__(self) -> int:
        return sum(map(len, self._large.values()))

    def start_request(self, api: Api, context: Context, frame: memoryview, body_pos: int) -> None:
        """Handle a request of more than SMALL bytes: within this turn as far as its cost allows, the rest later.

        Raises MalformedMessage.
        """
        most = api.declaration.most_bytes
        if most is not None and len(frame) > most:
            raise MalformedMessage(f"{len(frame)} bytes are more than the {most} that are accepted")
        large = _Large(context)
        # Steps in later turns read the frame when the connection's buffer has other bytes already. A request up to
        # INLINE is decoded by its first step, which runs within this turn.
        if len(frame) > INLINE:
            frame = self._network.hold_frame(context.slot, frame)
        large.steps = self._request_steps(api, large, frame, body_pos)
        self._keep_large_request(large)
        self._run_large_request(large)

    def run_steps(self, slot: Slot, key: int, version: int, correlation_id: int, steps: MakeSteps) -> None:
        """Run the steps of a handler that decodes by itself in later turns, in the common queue.

        The steps return the response; None: the handler sends it by itself.
        """
        large = _Large(Context(key, version, correlation_id, None, slot, self._answer))
        large.steps = steps(lambda: self._resume_large_request(large))
        self._keep_large_request(large)
        self._put_back(large)

    def join_pieces(self, context: Context, response: InPieces) -> None:
        """Build and encode a response in later turns, then send it."""
        large = _Large(context)
        large.steps = _join_pieces(context, response)
        next(large.steps)
        self._keep_large_request(large)
        self._put_back(large)

    def handle_parts(self, api: Api, context: Context, response: InParts) -> None:
        """Handle several requests in place of one in later turns, then send their responses as one."""
        large = _Large(context)
        large.steps = self._all_parts(api, large, response)
        self._keep_large_request(large)
        self._put_back(large)

    def on_gone(self, peer: Peer) -> None:
        """Drop the requests of a connection that has ended."""
        for large in self._large.pop(peer, ()):
            large.is_gone = True
            # The steps are suspended here, because the end of a connection is a turn of its own. Closing them runs
            # their `finally` blocks, which release the pieces of a response.
            large.steps.close()

    # -- turns -------------------------------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        if self._queue and not self._is_planned:
            self._is_planned = True
            self._later(self._run_turn)

    def _run_turn(self) -> None:
        self._is_planned = False
        while self._queue:
            large = self._queue.popleft()
            large.is_queued = False
            # A request whose connection has ended is skipped without ending the turn, because it costs nothing.
            if not large.is_gone:
                try:
                    self._run_large_request(large)
                except MalformedMessage as error:
                    self._network.close_connection(
                        large.context.peer, f"sent a request that cannot be decoded: {error}"
                    )
                except HalfChanged:
                    raise
                except Exception as error:  # noqa: BLE001  # it has changed nothing, or whole changes only
                    self._failed(large.context, error)
                break
        self._schedule_turn()

    def _put_back(self, large: _Large) -> None:
        if not large.is_queued:
            large.is_queued = True
            self._queue.append(large)
            self._schedule_turn()

    def _run_large_request(self, large: _Large) -> None:
        """Run slices up to the cost of a turn."""
        left = TURN_US
        try:
            while left > 0:
                cost = next(large.steps)
                if cost == WAITING:
                    large.is_waiting = True
                    return
                left -= cost
        # 1. Complete. 2. A defect: the request leaves the queue, its caller answers. 3. More to do: queue it again.
        except StopIteration as stop:
            self._end_large_request(large)
            if stop.value is not None:
                self._answer(large.context, stop.value)
        except BaseException:
            self._end_large_request(large)
            raise
        else:
            self._put_back(large)

    def _end_large_request(self, large: _Large) -> None:
        large.is_gone = True
        running = self._large.get(large.context.peer)
        if running is not None:
            running.discard(large)
            if not running:
                del self._large[large.context.peer]

    def _keep_large_request(self, large: _Large) -> None:
        self._large.setdefault(large.context.peer, set()).add(large)

    # -- the steps of one request ------------------------------------------------------------------------------------

    def _request_steps(self, api: Api, large: _Large, frame: memoryview, body_pos: int) -> Steps:
        version = large.context.api_version
        parts = api.declaration.parts
        path = None if parts is None else path_in(api.request, version, parts.request)
        walked = api.declaration.walked if path is None else path
        # 1. Small enough to be decoded in one step.
        if len(frame) <= INLINE:
            request, _ = decode(api.request, version, frame, body_pos)
            if parts is None or path is None or not getattr(request, path[0]):
                return (yield from self._dispatch_part(api, large, request))
            return (yield from self._in_parts(api, large, SomeElements(request, path, parts)))
        # 2. Without an array to walk: decode in slices, handle as a whole.
        if walked is None:
            decoding = decode_sliced(api.request, version, frame, body_pos)
            request = yield from _costs_of(decoding)
            # The handler may wait long for its response: a large frame must not stay in memory until then.
            del frame
            return (yield from self._dispatch_part(api, large, request))
        if parts is not None and parts.once is not None:
            walked = walked[:1]  # to compare elements, they must not be cut into pieces
        elements = Elements(api.request, version, frame, body_pos, walked)
        # 3. The handler walks the array by itself. 4. The array is handled in parts.
        if parts is None or path is None:
            request = yield from _costs_of(elements.iterate_slices())
            if getattr(request, walked[0]) is not None:
                setattr(request, walked[0], elements)
            return (yield from self._dispatch_part(api, large, request))
        return (yield from self._in_parts(api, large, ManyElements(elements, path, parts)))

    def _in_parts(self, api: Api, large: _Large, request: SomeElements) -> Steps:
        yield from request.survey_elements()
        whole = Whole(request.repeated)
        if request.weight * request.parts.cost_us <= PART_US:
            whole_request = yield from request.read_whole_request()
            return (yield from self._dispatch_part(api, large, whole_request, whole=whole))
        return (yield from self._join_parts(api, large, request.request_slices(), request.cost_us, whole))

    def _all_parts(self, api: Api, large: _Large, response: InParts) -> Steps:
        return (yield from self._join_parts(api, large, response.requests, 0, Whole(is_all=True)))

    def _join_parts(self, api: Api, large: _Large, requests: Iterator[Any], cost_us: int, whole: Whole) -> Steps:
        """Handle the parts of these requests in order, and join the responses. cost_us: to create each request."""
        context, parts = large.context, api.declaration.parts
        assert parts is not None, f"API {context.api_key} is not declared to have parts"
        path = path_in(api.request, context.api_version, parts.request)
        response_type = API_TABLE[context.api_key].response
        response_path = path_in(response_type, context.api_version, parts.response)
        assert path is not None, f"{api.request.__name__} has no array to divide"
        assert response_path is not None, f"{response_type.__name__} has no array to join"
        joined = Joined(response_type, context.api_version, response_path)
        size = max(1, PART_US // parts.cost_us)
        for request in requests:
            yield cost_us
            for part in split_struct(request, path, size) if request is not None else ():
                response = yield from self._dispatch_part(api, large, part, is_part=True, whole=whole)
                if isinstance(response, ApiError):
                    error = response
                    response = self._as_response(context.api_key, error)
                    if response is None:
                        return error
                before = joined.size
                if type(response) is InPieces:
                    yield from _add_pieces(joined, response)
                else:
                    joined.add_response(response)  # type: ignore[arg-type]  # the response to a part is never Encoded
                yield max(count_elements(part, path) * parts.cost_us, (joined.size - before) // _ENCODE_BYTES_PER_US)
        return Encoded(joined.final_parts())

    def _dispatch_part(
        self, api: Api, large: _Large, request: object, *, is_part: bool = False, whole: Whole | None = None
    ) -> Steps:
        asked = large.context
        large.answer, large.request = None, request
        large.is_waiting = False
        context = Context(
            asked.api_key,
            asked.api_version,
            asked.correlation_id,
            asked.client_id,
            asked.slot,
            lambda context, response: self._on_answer(large, context, response),
            is_part=is_part,
            whole=whole,
            fail=lambda context, error: self._on_defect(large, context, error),
            rights=asked.rights,
        )
        try:
            response = self._handle(api, context, request)
            if isinstance(response, Generator):  # a handler with slices of its own
                response = yield from response
        except (HalfChanged, MalformedMessage):
            raise
        except Exception as error:  # noqa: BLE001  # `_refuse` raises it again if elements cannot carry an error
            return self._refuse(context, error, request)
        if response is not None:
            return response
        # The handler responds later, unless `_on_answer` was called within the handler already.
        if large.answer is None:
            yield WAITING
        answer: object = large.answer
        if isinstance(answer, _Defect):
            raise answer.error
        return answer

    def _on_defect(self, large: _Large, context: Context, error: Exception) -> None:
        """Handle a defect in a step of a part, raised in another request's turn."""
        if context.failed:
            return
        was_answered, context.answered = context.answered, True
        try:
            answer = self._refuse(context, error, large.request)
        except HalfChanged:
            raise
        except Exception as second:  # noqa: BLE001  # the request's own turn raises it again
            context.failed = True
            answer = _Defect(second)
        if not was_answered:
            large.answer = answer
            self._resume_large_request(large)

    def _on_answer(self, large: _Large, context: Context, response: object) -> None:
        if context.failed:
            return
        assert not context.answered, f"API {context.api_key} answered twice"
        context.answered = True
        large.answer = response
        self._resume_large_request(large)

    def _resume_large_request(self, large: _Large) -> None:
        if large.is_waiting and not large.is_gone:
            large.is_waiting = False
            self._put_back(large)


def _join_pieces(context: Context, response: InPieces) -> Steps:
    is_kept = response.keep is None
    try:
        yield 0  # the first step runs at once, so that the `finally` below runs in any case
        joined = Joined(API_TABLE[context.api_key].response, context.api_version, response.path)
        for piece in response.pieces:
            joined.add_response(piece)
            yield PART_US
        encoded = Encoded(joined.final_parts())
        if response.keep is not None:
            is_kept = True
            response.keep(encoded)
        return encoded
    finally:
        response.pieces.close()
        if not is_kept and response.on_dropped is not None:
            response.on_dropped()


def _add_pieces(joined: Joined, response: InPieces) -> Generator[int, None, None]:
    """Add the response to a part that is built in pieces."""
    try:
        for piece in response.pieces:
            joined.add_response(piece)
            yield PART_US
    finally:
        response.pieces.close()


def _costs_of(steps: Generator[Any, None, Any]) -> Generator[int, None, Any]:
    """Run decoding steps to their end, with their costs. Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
        yield DECODE_US
