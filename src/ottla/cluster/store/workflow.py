"""Workflows: several steps with the metadata store, written as one generator function.

Zone: deterministic. A workflow yields its requests to the store and is resumed with the response, in the turn of that
completion. A Failure is raised at the yield. Nodes that it read before may have changed meanwhile: a step is correct by
the conditions of its multi, not by its reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from ottla.changes import HalfChanged
from ottla.cluster.store.watches import OnChange, WatchedStore
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, MetadataStore, Node, Op

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class _Get(NamedTuple):
    path: str
    on_change: OnChange | None = None


class _Children(NamedTuple):
    path: str
    on_change: OnChange | None = None


class _Submit(NamedTuple):
    lane: str
    ops: Sequence[Op]


class _All(NamedTuple):
    asks: Sequence[_Get | _Children | _Submit]


class _Wait(NamedTuple):
    begin: Callable[[Callable[[Any], None]], None]


WorkflowStep = _Get | _Children | _Submit | _All | _Wait
Workflow = Generator[WorkflowStep, Any, T]
"""A workflow that returns a T, or raises Failure or ApiError."""


def read_node(path: str, on_change: OnChange | None = None) -> Workflow[Node | None]:
    """Read one node. `on_change` is called once at its next change (which requires a WatchedStore)."""
    found: Node | None = yield _Get(path, on_change)
    return found


def read_nodes(paths: Sequence[str], on_change: Callable[[str], OnChange] | None = None) -> Workflow[list[Node | None]]:
    """Read several nodes at once. `on_change` returns for a path the callback of its next change."""
    watch = (lambda _: None) if on_change is None else on_change
    found: list[Node | None] = yield from _ask_together([_Get(path, watch(path)) for path in paths])
    for answer in found:
        if isinstance(answer, Failure):
            raise answer
    return found


def read_children(path: str, on_change: OnChange | None = None) -> Workflow[Sequence[str]]:
    """Read the names of the children, sorted; `on_change` as in `get`."""
    names: Sequence[str] = yield _Children(path, on_change)
    return names


def read_children_of(paths: Sequence[str]) -> Workflow[list[Sequence[str]]]:
    """Read the names of the children of several nodes at once."""
    found: list[Sequence[str] | Failure] = yield from _ask_together([_Children(path) for path in paths])
    names = []
    for answer in found:
        if isinstance(answer, Failure):
            raise answer
        names.append(answer)
    return names


def submit_multi(lane: str, ops: Sequence[Op]) -> Workflow[Sequence[tuple[str, int]]]:
    """Submit one multi."""
    results: Sequence[tuple[str, int]] = yield _Submit(lane, ops)
    return results


def submit_multis(multis: Sequence[tuple[str, Sequence[Op]]]) -> Workflow[list[Sequence[tuple[str, int]] | Failure]]:
    """Submit several multis, as (lane, operations), at once. Returns an outcome of each; raises none."""
    return (yield from _ask_together([_Submit(lane, ops) for lane, ops in multis]))


def _ask_together(asks: Sequence[_Get | _Children | _Submit]) -> Workflow[list[Any]]:
    answers: list[Any] = yield _All(asks)
    return answers


def wait_for_answer(begin: Callable[[Callable[[Any], None]], None]) -> Workflow[Any]:
    """Wait for something else than the store: `begin(answered)` starts it, `answered(value)` ends it in a later turn.

    A Failure as the value is raised.
    """
    return (yield _Wait(begin))


def run_workflow(store: MetadataStore, script: Workflow[T], done: Callable[[T | Failure | ApiError], None]) -> None:
    """Run a workflow. `done` receives what it returns or raises; at once if it yields no request."""
    _advance_workflow(store, script, lambda: next(script), done)


def contain_defects(name: str, script: Callable[[], Workflow[T]]) -> Workflow[T]:
    """A request's workflow: turns a defect in it into the request's UNKNOWN_SERVER_ERROR (`ottla.changes`)."""
    try:
        return (yield from script())
    except (Failure, ApiError, HalfChanged):
        raise
    except Exception as error:
        text = "%s failed with %r; answered UNKNOWN_SERVER_ERROR, nothing else is affected; please report this"
        _logger.error(text, name, error)
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{name} failed; see the broker's log") from error


def _advance_workflow(
    store: MetadataStore,
    script: Workflow[T],
    resume: Callable[[], WorkflowStep],
    done: Callable[[T | Failure | ApiError], None],
) -> None:
    # The workflow has ended (with a value, a Failure or an ApiError), or has yielded its next request.
    outcome: T | Failure | ApiError
    try:
        ask = resume()
    except StopIteration as end:
        outcome = end.value
    except (Failure, ApiError) as error:
        outcome = error.as_value()
    else:
        _run_step(
            store, ask, lambda answer: _advance_workflow(store, script, lambda: _resume_script(script, answer), done)
        )
        return
    try:
        done(outcome)
    finally:
        del outcome  # an error refers to this frame by its traceback


def _resume_script(script: Workflow[T], answer: Any) -> WorkflowStep:
    return script.throw(answer) if isinstance(answer, Failure) else script.send(answer)


def _run_step(store: MetadataStore, ask: WorkflowStep, answered: Callable[[Any], None]) -> None:
    if isinstance(ask, (_Get, _Children)):
        if ask.on_change is not None:
            assert isinstance(store, WatchedStore), "a workflow that watches needs a WatchedStore"
            store.watch_path(ask.path, ask.on_change)  # before the request, so that no change in between is missed
        look = store.get_node if isinstance(ask, _Get) else store.get_children
        look(ask.path, ask.on_change is not None, answered)
    elif isinstance(ask, _Submit):
        store.submit_ops(ask.lane, ask.ops, answered)
    elif isinstance(ask, _Wait):
        ask.begin(answered)
    else:
        _ask_all(store, ask.asks, answered)


def _ask_all(store: MetadataStore, asks: Sequence[_Get | _Children | _Submit], answered: Callable[[Any], None]) -> None:
    """Pass on the answers in the order of the requests, including Failures. No requests also take one turn."""
    answers: list[Any] = [None] * len(asks)
    left = len(asks)

    def one(index: int, answer: Any) -> None:
        nonlocal left
        answers[index] = answer
        left -= 1
        if left == 0:
            answered(answers)

    for index, ask in enumerate(asks):
        _run_step(store, ask, lambda answer, index=index: one(index, answer))  # type: ignore[misc]
    if not asks:
        store.get_node("/", False, lambda _: answered([]))
