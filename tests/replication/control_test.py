"""The fence in front of a controller's requests."""

from __future__ import annotations

import pytest
from tests.ignoring import ignore

from ottla.errors import ApiError, ErrorCode
from ottla.replication.control import ControlFence, ReadEpoch


def fence(broker_epoch: int = 50, read_epoch: ReadEpoch | None = None) -> ControlFence:
    made = ControlFence(1, read_epoch, ignore)
    made.broker_epoch = broker_epoch
    return made


def refused(made: ControlFence, *request: int | None) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        made.check_request(*request)
    return caught.value.code


def test_an_older_controller_is_refused_a_newer_one_is_remembered() -> None:
    made = fence()
    made.check_request(2, 7, 50)
    assert (made.controller_id, made.controller_epoch) == (2, 7)
    assert refused(made, 3, 6, 50) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert (made.controller_id, made.controller_epoch) == (2, 7)
    made.check_request(3, 8, 50)
    assert (made.controller_id, made.controller_epoch) == (3, 8)


def test_a_request_for_an_earlier_broker_epoch_is_refused() -> None:
    made = fence(50)
    assert refused(made, 2, 7, 49) == ErrorCode.STALE_BROKER_EPOCH
    assert made.controller_epoch == 0, "a refused request teaches nothing"


def test_a_registration_that_the_controller_saw_first_is_believed() -> None:
    made = fence(50)
    made.check_request(2, 7, 51)
    made.check_request(2, 7, None)


def test_an_epoch_that_should_be_there_is() -> None:
    assert refused(fence(50), 2, 7, -1) == ErrorCode.STALE_BROKER_EPOCH


def test_a_controller_that_the_store_does_not_know_is_not_believed() -> None:
    answers = [None, 7, 6, 9]
    made = fence(50, lambda on_epoch: on_epoch(answers.pop(0)))
    assert made.needs_lookup(8)
    assert refused(made, 2, 8, 50) == ErrorCode.NOT_CONTROLLER
    assert made.controller_epoch == 0, "a refused request teaches nothing"
    asked: list[int] = []
    made.look_up_epoch(lambda: asked.append(1))  # without an answer
    made.look_up_epoch(lambda: asked.append(2))
    assert asked == [1, 2]
    assert refused(made, 2, 8, 50) == ErrorCode.NOT_CONTROLLER
    made.check_request(2, 7, 50)
    made.look_up_epoch(ignore)  # a server of the store that lags
    assert refused(made, 2, 8, 50) == ErrorCode.NOT_CONTROLLER
    made.look_up_epoch(ignore)
    made.check_request(2, 8, 50)
    assert not made.needs_lookup(9)


def test_an_unregistered_broker_refuses_every_controller() -> None:
    made = fence(-1)
    assert refused(made, 2, 7, 49) == ErrorCode.STALE_BROKER_EPOCH
    assert refused(made, 2, 7, None) == ErrorCode.STALE_BROKER_EPOCH
