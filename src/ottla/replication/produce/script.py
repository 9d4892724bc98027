"""Scripts: a request that waits between its steps, written as one generator function.

Zone: deterministic. A script yields functions that begin something, and is resumed with its result: within the call if
the result is there at once, else in the turn that brings it. A defect fails the request of the script only, whatever
turn it is in; HalfChanged passes. A script that is dropped is closed, so that its `finally` clauses run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ottla.requests import WAITING
from ottla.seams import Workers

T = TypeVar("T")
Begin = Callable[[Callable[[Any], None]], None]
"""Begins what a script waits for. It passes the result to the function that it receives: exactly once, now or later."""
Script = Generator[Begin, Any, T]
"""A script that returns a T."""


class _Result:
    """Receives the result of one wait."""

    __slots__ = ("_on_result", "has_come", "value")

    def __init__(self, on_result: Callable[[], object]) -> None:
        self._on_result = on_result
        self.has_come = False
        self.value: Any = None

    def __call__(self, value: Any) -> None:
        self.value = value
        self.has_come = True
        self._on_result()


class ScriptRun:
    """Runs a script by itself, in the turns that bring its results."""

    __slots__ = ("_fail", "_hold", "_result", "_script")

    def __init__(self, script: Script[None], hold: Callable[[], None], fail: Callable[[Exception], None]) -> None:
        """`hold` is called before the script waits for the first time, in the turn of its start.

        `fail` handles a defect in a later turn. Raises HalfChanged."""
        self._script = script
        self._hold = hold
        self._fail = fail
        self._result: _Result | None = None
        """The result that it waits for; None while it runs."""

    def start(self) -> bool:
        """Run the script as far as its results are there. Returns whether it has ended. Raises its exceptions."""
        if self._run_on(None):
            return True
        try:
            self._hold()
        except BaseException:  # the request fails now, so its result must not continue it
            self._result = None
            self._script.close()
            raise
        return False

    def _run_on(self, value: Any) -> bool:
        try:
            while True:
                begin = self._script.send(value)
                result = _Result(self._on_result)
                begin(result)
                if not result.has_come:
                    self._result = result
                    return False
                value = result.value
        except StopIteration:
            return True
        except BaseException:
            self._script.close()
            raise

    def _on_result(self) -> None:
        result, self._result = self._result, None
        if result is None:
            return  # it came within the call that began the wait: `_run_on` has it
        try:
            self._run_on(result.value)
        except Exception as error:  # noqa: BLE001  # it has changed nothing, or whole changes only
            self._fail(error)


def steps_of(script: Script[T], resume: Callable[[], None]) -> Generator[int, None, T]:
    """Runs a script within `requests.Steps`: yields WAITING until each of its results is there."""
    value: Any = None
    try:
        while True:
            begin = script.send(value)
            result = _Result(resume)
            begin(result)
            while not result.has_come:
                yield WAITING
            value = result.value
    except StopIteration as end:
        returned: T = end.value
        return returned
    finally:
        script.close()


def run_in_worker(workers: Workers, job: str, arguments: tuple[object, ...], owner: object) -> Script[Any]:
    """Wait for a job; returns its result or a Failure. `owner` as in `seams.Workers`."""
    return (yield lambda done: workers.run_job(job, arguments, done, owner))


def wait_for_ever() -> Script[None]:
    """Wait for nothing: the broker has stopped, and the request gets no response."""
    yield lambda _: None
