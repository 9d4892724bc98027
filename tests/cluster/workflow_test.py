"""Workflows: several answers and failures of the store in one function, and defects in the middle.

Zone: real. The store answers from a list, each request in a turn of its own.
"""

from __future__ import annotations

import logging
from collections import deque

import pytest

from ottla.changes import HalfChanged
from ottla.cluster.store.workflow import (
    contain_defects,
    read_children,
    read_node,
    read_nodes,
    run_workflow,
    submit_multi,
    submit_multis,
    wait_for_answer,
)
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Node, Op


class Listed:
    """A metadata store with prepared answers, in the order of the requests."""

    def __init__(self, *answers: object) -> None:
        self.answers = deque(answers)
        self.asked: list[str] = []
        self._turns: deque = deque()

    def get_node(self, path, _watch, done) -> None:
        self._ask(f"get {path}", done)

    def get_children(self, path, _watch, done) -> None:
        self._ask(f"children {path}", done)

    def submit_ops(self, lane, ops, done) -> None:
        self._ask(f"submit {lane} {[op.path for op in ops]}", done)

    def _ask(self, what, done) -> None:
        self.asked.append(what)
        answer = self.answers.popleft()
        self._turns.append(lambda: done(answer))

    def turns(self) -> int:
        """Deliver all answers. Returns their number."""
        count = 0
        while self._turns:
            self._turns.popleft()()
            count += 1
        return count


A, B = Node(b"a", 0, 1, 0), Node(b"b", 0, 2, 0)
LOST = Failure(Kind.UNKNOWN, "lost")
PUT = [Op("put", "/x", b"1")]


def outcome_of(script, *answers):
    """The outcome of a contained workflow, and how often it ended."""
    store, outcomes = Listed(*answers), []
    run_workflow(store, contain_defects("the change of x", script), outcomes.append)
    store.turns()
    (outcome,) = outcomes
    return outcome, store


def test_a_contained_workflow_returns_its_value_after_several_answers() -> None:
    def script():
        first = yield from read_node("/a")
        both = yield from read_nodes(["/a", "/b"])
        names = yield from read_children("/")
        written = yield from submit_multi("lane", PUT)
        told = yield from wait_for_answer(lambda answered: answered("waited"))
        return first, both, names, written, told

    outcome, store = outcome_of(script, A, A, B, ["a", "b"], [("/x", 1)])
    assert outcome == (A, [A, B], ["a", "b"], [("/x", 1)], "waited")
    assert store.asked == ["get /a", "get /a", "get /b", "children /", "submit lane ['/x']"]


def test_a_failure_is_raised_where_the_workflow_yielded() -> None:
    def script():
        heard = []
        for path in ("/a", "/b", "/c"):
            try:
                heard.append((yield from read_node(path)))
            except Failure as failure:
                heard.append(failure.kind)
        heard.append((yield from submit_multis([("one", PUT), ("two", PUT)])))
        return heard

    outcome, _ = outcome_of(script, LOST, A, LOST, [("/x", 1)], LOST)
    assert outcome == [Kind.UNKNOWN, A, Kind.UNKNOWN, [[("/x", 1)], LOST]]


@pytest.mark.parametrize("last", [LOST, ApiError(ErrorCode.INVALID_CONFIG, "no")])
def test_failures_and_api_errors_leave_a_contained_workflow_unchanged(last, caplog) -> None:
    def script():
        yield from read_node("/a")
        if isinstance(last, ApiError):
            raise last
        yield from read_nodes(["/a", "/b"])

    outcome, _ = outcome_of(script, A, LOST, A)
    assert outcome is last
    assert not caplog.records


@pytest.mark.parametrize("answers", [0, 1, 2, 3])
def test_a_defect_is_the_error_of_its_request_and_one_log_line(answers, caplog) -> None:
    """Failures before the defect make no difference."""

    def script():
        for at in range(4):
            if at == answers:
                raise ZeroDivisionError(f"at {at}")
            try:
                yield from read_node(f"/{at}")
            except Failure:
                continue

    with caplog.at_level(logging.ERROR):
        outcome, store = outcome_of(script, A, LOST, B)
    assert (type(outcome), outcome.code) == (ApiError, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert outcome.message == "the change of x failed; see the broker's log"
    assert len(store.asked) == answers
    (record,) = caplog.records
    assert f"the change of x failed with ZeroDivisionError('at {answers}')" in record.getMessage()


def test_a_defect_within_a_change_leaves_a_contained_workflow_unchanged() -> None:
    def script():
        yield from read_node("/a")
        raise HalfChanged("a change")

    store, outcomes = Listed(A), []
    run_workflow(store, contain_defects("the change of x", script), outcomes.append)
    with pytest.raises(HalfChanged):
        store.turns()
    assert not outcomes


def test_a_failing_workflow_runs_its_finally_before_the_answer() -> None:
    """`finally` of a contained workflow runs before its request is answered."""
    steps = []

    def script():
        try:
            yield from read_node("/a")
            raise ZeroDivisionError
        finally:
            steps.append("released")

    store = Listed(A)
    run_workflow(store, contain_defects("the change of x", script), lambda _: steps.append("answered"))
    store.turns()
    assert steps == ["released", "answered"]
