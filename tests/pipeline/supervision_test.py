"""Restarts of a pipeline in a service: when, how often, and when no longer."""

from __future__ import annotations

import pytest

from ottla.pipeline import BadPipeline, StepFailed
from ottla.pipeline.queries import reason_of
from ottla.pipeline.supervision import ALARMING, LONGEST_S, State, Supervision, is_permanent
from ottla.tables.errors import ColumnConflictError

LATER = StepFailed("price", "KafkaError: the broker does not answer")


def test_the_back_off_doubles_up_to_its_limit() -> None:
    supervision = Supervision(max_restarts=12)
    waits = []
    for _ in range(12):
        supervision.on_starting()
        waits.append(supervision.on_failed(LATER, 0.5))
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST_S
    supervision.on_starting()
    assert supervision.on_failed(LATER, 0.5) is None
    assert (supervision.state, supervision.restarts) == (State.FAILED, 12)


def test_a_finished_batch_begins_the_back_off_again() -> None:
    supervision = Supervision(max_restarts=3)
    for _ in range(20):
        for _ in range(3):
            assert supervision.on_failed(LATER, 0.5) is not None
            supervision.on_starting()
        supervision.on_running()
        assert supervision.reason is not None, "a start is no success"
        supervision.on_batch()
        assert (supervision.failures, supervision.reason) == (0, None)
    assert supervision.restarts == 60


def test_health_is_red_after_some_failures_in_a_row() -> None:
    supervision = Supervision()
    found = []
    for _ in range(ALARMING):
        supervision.on_failed(LATER, 0.0)
        found.append(supervision.is_healthy)
    assert found == [True] * (ALARMING - 1) + [False]
    supervision.on_batch()
    assert supervision.is_healthy


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (BadPipeline("the topic orders does not exist"), True),
        (StepFailed("price", "DataLoss: topic orders is not the one that the query has read"), True),
        (StepFailed("price", "ChangedUnit: the batch was begun by tasks"), True),
        (StepFailed("price", reason_of(ColumnConflictError("the column n is string", "Cast it"))), True),
        (StepFailed("price", "ValueError: DataLoss"), False),
        (LATER, False),
        (OSError("no route to host"), False),
    ],
)
def test_errors_that_a_restart_cannot_mend_are_final(error: Exception, permanent: bool) -> None:
    assert is_permanent(error) is permanent
    supervision = Supervision()
    assert (supervision.on_failed(error, 0.0) is None) is permanent
    assert supervision.is_healthy is not permanent


def test_a_reason_is_bounded() -> None:
    supervision = Supervision()
    supervision.on_failed(RuntimeError("x" * 100_000), 0.0)
    assert supervision.reason is not None
    assert len(supervision.reason) == 2_000
