"""A Produce of many partitions, in slices: no turn reads, appends or answers more than one slice.

Zone: deterministic. The request is decoded twice: first to its end, so that a malformed one appends nothing, then slice
by slice. A slice waits for the one before it (for the high watermark or a worker), so that the batches of one producer
keep their order. Responses are kept as bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.errors import ApiError
from ottla.replication.produce.produce_responses import Refusals, Responses
from ottla.requests import WAITING, Encoded, Steps
from ottla.seams import Slot
from ottla.wire.many_partitions import ProduceWalk, read_chunks
from ottla.wire.messages import ProduceResponse
from ottla.wire.slices import Joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.replication.produce.produce import ProduceHandler

READ: Final = 1000
"""Partitions decoded per step of the first pass."""
APPENDED: Final = 125
"""Partitions appended and answered per step."""
_READ_US: Final = 2_000
_APPEND_US: Final = 4_000
_TEXTS: Final = 500
"""Refused partitions whose response has a text and a leader. With more, the response would outgrow the request."""


class LargeProduce:
    """The steps of one request."""

    def __init__(
        self,
        handler: ProduceHandler,
        slot: Slot,
        version: int,
        frame: memoryview,
        pos: int,
        resume: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._slot = slot
        self._version = version
        self._frame = frame
        self._pos = pos
        self._resume = resume
        self._error: ApiError | None = None
        self._texts = _TEXTS
        self._answer: ProduceResponse | None = None
        """The response of the present slice, once it is complete."""

    def request_steps(self) -> Steps:
        """Handle the request slice by slice. Raises MalformedMessage before anything was appended."""
        version, frame = self._version, self._frame
        walk = ProduceWalk(version, frame, self._pos)
        for _ in read_chunks(walk.walk_entries(), READ):
            yield _READ_US
        deadline_ms = self._handler.now_ms() + max(0, walk.timeout_ms)
        joined = Joined(ProduceResponse, version, ("responses", "partition_responses"))
        joined.add_response(ProduceResponse())
        for items in read_chunks(walk.walk_entries(), APPENDED):
            left_ms = max(0, deadline_ms - self._handler.now_ms())
            self._handler.run_slice(
                self._slot, version, walk.transactional_id, walk.acks, left_ms, items, self._on_answered
            )
            while (answer := self._take_answer()) is None:
                yield WAITING
            joined.add_response(answer)
            yield _APPEND_US
        if walk.acks:
            return Encoded(joined.final_parts())
        self._handler.end_unanswered(self._slot, self._error)
        return None

    def _take_answer(self) -> ProduceResponse | None:
        answer, self._answer = self._answer, None
        return answer

    def _on_answered(self, answers: Responses, refused: Refusals) -> None:
        if refused and self._error is None:
            self._error = next(iter(refused.values())).with_traceback(None)
        texts = refused if self._texts >= 0 else {}
        self._texts -= len(refused)
        self._answer = self._handler.response_of(answers, texts, self._version, self._slot.peer.listener)
        refused.clear()  # breaks a reference cycle: errors hold the frames they were raised in, which hold this dict
        self._resume()
