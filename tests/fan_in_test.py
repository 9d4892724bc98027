"""Several answers joined into one: in order, once all have arrived, and without references to stack frames.

Zone: pure.
"""

from __future__ import annotations

import weakref

from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn


class Local:
    """A local value of a frame."""


def refuse(slot):
    """Answer with an error that came through this frame. Returns a weak reference to a local value of the frame."""
    local = Local()
    frame = weakref.ref(local)
    try:
        raise ApiError(ErrorCode.INVALID_REQUEST, "for a reason")
    except ApiError as error:
        slot(error)
    return frame


def test_answers_come_in_the_order_of_their_places():
    found = []
    gather = FanIn(found.append)
    slots = [gather.new_slot() for _ in range(3)]
    gather.close_slots()
    for number in (2, 0, 1):
        slots[number](number)
    assert found == [[0, 1, 2]]


def test_an_error_that_waits_for_others_does_not_keep_the_frames_it_came_through():
    found = []
    gather = FanIn(found.append)
    frame = refuse(gather.new_slot())
    assert frame() is None
    gather.close_slots()
    ((error,),) = found
    assert error.message == "for a reason"
