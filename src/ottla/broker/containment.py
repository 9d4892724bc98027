"""Limits the effect of a defect in a request or in an alarm's callback to that request or callback.

Zone: deterministic. The one place that decides it. A failed request gets UNKNOWN_SERVER_ERROR: for the whole request if
its response has a field for that, else in each of its elements. Without any such field its connection is closed. So is
that of an order of the controller, which repeats orders until they get a response, whatever error that contains. A
callback of an alarm that can be repeated (`Purgatory.look_after`) fails alone. HalfChanged passes: the broker stops
(`ottla.changes`).

Memory: a MemoryError refers to the stack that held the memory. Its traceback is dropped before anything is allocated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from ottla.broker.element_errors import element_errors
from ottla.changes import HalfChanged
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import AGAIN_MS, name_of_action
from ottla.seams import Clock, Network, Slot
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import encode
from ottla.wire.header import response_header

_logger = logging.getLogger(__name__)
LINES_PER_S: Final = 10
"""Most log lines about contained defects per second; the counter counts all."""
ORDERS: Final = (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA)
_NS_PER_S: Final = 1_000_000_000
_TEXT_MAX: Final = 200
"""Most characters of an exception's own text in a log line."""


class Containment:
    """Responds in place of a failed handler, counts defects by API, and writes log lines."""

    def __init__(self, network: Network, clock: Clock | None = None) -> None:
        """`clock`: for the limit of log lines; None: no limit."""
        self._network = network
        self._clock = clock
        self.counts: dict[int, int] = {}
        """Contained defects by API key."""
        self.callbacks = 0
        """Contained defects in callbacks of alarms."""
        self._lines = 0
        self._lines_ns = 0

    def contain_defect(
        self,
        error: Exception,
        slot: Slot,
        api_key: int,
        version: int,
        correlation_id: int,
        decoded: Callable[[], Any] | None = None,
    ) -> None:
        """Answer UNKNOWN_SERVER_ERROR, or close the connection. Raises HalfChanged when `error` is one.

        `decoded` returns the request if it is available: then its elements can get the error if the whole cannot.
        """
        where = release_stack(error)  # first, so that the memory of a MemoryError is free for the response
        try:
            parts = None if api_key in ORDERS else _error_parts(api_key, version, correlation_id, decoded)
        except Exception as second:  # noqa: BLE001  # the error response fails as well: close the connection
            release_stack(second)
            parts = None
        # Counted and logged before the response is sent, because sending may fail as well.
        self._send_error(error, where, slot, api_key, version, closes=parts is None)
        if parts is None:
            return
        try:
            self._network.send_reply(slot, parts)
        except Exception as second:  # noqa: BLE001  # a part of the response may have been sent
            self._network.close_connection(
                slot.peer, f"an error response could not be sent: {describe_error(second)} at {release_stack(second)}"
            )

    def refuse_elements(self, error: Exception, slot: Slot, api_key: int, version: int, request: Any) -> Any:
        """The response that refuses each element of a part of a request.

        Raises `error` when there is no such response, HalfChanged when it is one.
        """
        if isinstance(error, HalfChanged):
            raise error
        # The stack is released only after this decision: an error that is raised again reaches `contain_defect`, which
        # finds the place in the stack.
        response = None if api_key in ORDERS else element_errors(api_key, version, request, _defect_error())
        if response is None:
            raise error
        self._send_error(error, release_stack(error), slot, api_key, version, closes=False)
        return response

    def contain_callback(self, error: Exception, action: Callable[[], None]) -> None:
        """Contain a defect in a callback of an alarm, which is repeated. Raises HalfChanged when `error` is one."""
        where = release_stack(error)
        self.callbacks += 1
        if self._may_write():
            text = "%s failed with %s at %s; retrying in %d ms, nothing else is affected; please report this"
            _logger.error(text, name_of_action(action), describe_error(error), where, AGAIN_MS)

    def close_connection(self, error: Exception, slot: Slot, api_key: int, version: int) -> None:
        """Close the connection after a response was sent in part. Raises HalfChanged when `error` is one."""
        self._send_error(error, release_stack(error), slot, api_key, version, closes=True)

    def _send_error(
        self, error: Exception, where: str, slot: Slot, api_key: int, version: int, *, closes: bool
    ) -> None:
        self.counts[api_key] = self.counts.get(api_key, 0) + 1
        what = f"{name_of(api_key)} in version {version} failed with {describe_error(error)} at {where}"
        if closes:
            self._network.close_connection(slot.peer, f"{what}; please report this")
        elif self._may_write():
            text = "%s: %s; answered UNKNOWN_SERVER_ERROR, nothing else is affected; please report this"
            _logger.error(text, slot.peer.host, what)

    def _may_write(self) -> bool:
        if self._clock is None:
            return True
        now_ns = self._clock.now().mono_ns
        if now_ns - self._lines_ns >= _NS_PER_S:
            self._lines_ns, self._lines = now_ns, 0
        self._lines += 1
        return self._lines <= LINES_PER_S


def release_stack(error: Exception) -> str:
    """The place where an exception was raised. Drops its stack, and with it the memory that the stack holds.

    Raises HalfChanged when `error` is one.
    """
    if isinstance(error, HalfChanged):
        raise error
    where = _place_trace(error.__traceback__)
    error.__traceback__ = None
    # The context is the exception that was handled when this one was raised; its traceback holds frames as well.
    error.__context__ = None
    return where


def _place_trace(trace: TracebackType | None) -> str:
    """File and line of the innermost frame that has a file; generated code is named by its caller."""
    found = "an unknown place"
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith("<"):
            found = f"{'/'.join(name.split('/')[-2:])}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def describe_error(error: BaseException) -> str:
    """Type and text of an exception, bounded."""
    text = str(error)[:_TEXT_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def name_of(api_key: int) -> str:
    """An API's name."""
    api = API_TABLE.get(api_key)
    return "unknown API" if api is None else api.name


def error_response(api_key: int, error: ApiError) -> Any | None:
    """The response of an API that failed as a whole; None if its response has no field for that."""
    response = API_TABLE[api_key].response()
    if not hasattr(response, "error_code"):
        return None
    response.error_code = int(error.code)
    if hasattr(response, "error_message"):
        response.error_message = error.message or None
    return response


def _defect_error() -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "a defect of the broker failed this request; see the broker's log")


def _error_parts(
    api_key: int, version: int, correlation_id: int, decoded: Callable[[], Any] | None
) -> list[Any] | None:
    api = API_TABLE.get(api_key)
    if api is None:
        return None
    # 1. One field for the whole. 2. One per element, which needs the decoded request. 3. Neither: close the connection.
    if any(field.name == "error_code" and field.exists_in(version) for field in api.response.FIELDS):
        response = error_response(api_key, _defect_error())
    else:
        request = None if decoded is None else decoded()
        response = None if request is None else element_errors(api_key, version, request, _defect_error())
    if response is None:
        return None
    return [response_header(api_key, version, correlation_id), *encode(response, version)]
