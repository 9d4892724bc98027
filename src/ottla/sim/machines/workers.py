"""The seam `Workers`: jobs run at once, and their results arrive later.

Zone: deterministic. A job is pure, so only the arrival of its result is visible, not the time of its computation.
"""

from __future__ import annotations

import importlib
import pickle
from typing import TYPE_CHECKING, Final

from ottla.seams import Done, Failure, Kind
from ottla.sim.world import MS

if TYPE_CHECKING:
    from ottla.sim.machines.machine import Process

SLOWEST_NS: Final = 50 * MS


class SimWorkers:
    """Runs `package.module:function` in the simulator's own process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._random = process.entropy.named_stream("workers")

    def run_job(self, job: str, arguments: tuple[object, ...], done: Done[object], owner: object = None) -> None:
        """Run the job; its result or a Failure arrives as a turn. Any other exception becomes a Failure IO."""
        del owner  # jobs take no time here, so they need no queue per owner
        result = _compute_job(job, arguments)
        delay = self._random.between(MS, SLOWEST_NS)
        self._process.post_done(delay, "worker", done, lambda: result)


def _compute_job(job: str, arguments: tuple[object, ...]) -> object:
    module, _, function = job.partition(":")
    try:
        return _pickle_copy(getattr(importlib.import_module(module), function)(*_copy_arguments(arguments)))
    except Failure as failure:
        return failure
    except Exception as error:  # noqa: BLE001  a job that raises ends its worker, never the broker
        return Failure(Kind.IO, f"{job}: {error!r}")


def _copy_arguments(arguments: tuple[object, ...]) -> list[object]:
    return [_pickle_copy(argument) for argument in arguments]


def _pickle_copy(value: object) -> object:
    """A copy, like that of the pipe to a real worker; it also proves that the value can be pickled."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301  it never left this process
