"""A Produce of many partitions, in slices: no turn reads, appends or answers more than one slice.

Zone: deterministic. The request is decoded twice: first to its end, so that a malformed one appends nothing, then slice
by slice. A slice waits for the one before it (for the high watermark or a worker), so that the batches of one producer
keep their order. Responses are kept as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.errors import ApiError
from ottla.replication.produce.produce_responses import Refusals, Responses
from ottla.replication.produce.records_appender import RecordsAppender
from ottla.replication.produce.script import steps_of
from ottla.replication.produce.slow_produce import SlowProduce
from ottla.requests import Encoded, Steps
from ottla.seams import Clock, Slot
from ottla.wire.many_partitions import ProduceWalk, read_chunks
from ottla.wire.messages import ProduceResponse
from ottla.wire.slices import Joined

READ: Final = 1000
"""Partitions decoded per step of the first pass."""
APPENDED: Final = 125
"""Partitions appended and answered per step."""
_READ_US: Final = 2_000
_APPEND_US: Final = 4_000
_TAGS: Final = 32
"""Tagged fields that are read again in the time in which a partition is appended and answered."""
_TEXTS: Final = 500
"""Refused partitions whose response has a text and a leader. With more, the response would outgrow the request."""


class LargeProduce:
    """The steps of one request."""

    def __init__(
        self,
        slow: SlowProduce,
        appender: RecordsAppender,
        clock: Clock,
        slot: Slot,
        version: int,
        resume: Callable[[], None],
    ) -> None:
        """`resume`: continues the steps when they wait."""
        self._slow = slow
        self._appender = appender
        self._clock = clock
        self._slot = slot
        self._version = version
        self._resume = resume
        self._error: ApiError | None = None
        self._texts = _TEXTS

    def request_steps(self, frame: memoryview, pos: int) -> Steps:
        """Handle the request slice by slice. Raises MalformedMessage before anything was appended."""
        version, slot = self._version, self._slot
        walk = ProduceWalk(version, frame, pos)
        for _ in read_chunks(walk.walk_entries(), READ):
            yield _READ_US
        deadline_ms = self._now_ms() + max(0, walk.timeout_ms)
        joined = Joined(ProduceResponse, version, ("responses", "partition_responses"))
        joined.add_response(ProduceResponse())
        for items in read_chunks(walk.walk_entries(_TAGS), APPENDED):
            # One deadline for the whole request: each slice gets what the slices before it have left.
            left_ms = max(0, deadline_ms - self._now_ms())
            script = self._slow.answer_slice(slot, version, (walk.transactional_id, walk.acks, left_ms, items))
            answers, refused = yield from steps_of(script, self._resume)
            joined.add_response(self._response_of(answers, refused))
            yield _APPEND_US
        if walk.acks:
            return Encoded(joined.final_parts())
        self._appender.end_unanswered(slot, self._error)
        return None

    def _now_ms(self) -> int:
        """The monotonic time in ms, for deadlines."""
        return self._clock.now().mono_ns // 1_000_000

    def _response_of(self, answers: Responses, refused: Refusals) -> ProduceResponse:
        if refused and self._error is None:
            self._error = next(iter(refused.values())).with_traceback(None)
        texts = refused if self._texts >= 0 else {}
        self._texts -= len(refused)
        response = self._appender.response_of(answers, texts, self._version, self._slot.peer.listener)
        refused.clear()  # breaks a reference cycle: errors hold the frames they were raised in, which hold this dict
        return response
