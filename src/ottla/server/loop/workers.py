"""Jobs in processes of their own: the real `ottla.seams.Workers`.

Zone: real. This module starts the processes, sends jobs to them and notices their death; the code that runs inside is
`ottla.server.loop.worker`.

There are two crews: one for jobs of requests, one for the broker's own work (compaction), so that no request waits for
a pass of compaction. A crew runs at most one job of an owner at a time, and serves the owners round robin: a connection
that sends one expensive request after the other delays only itself. A job has limits of time and memory; a job beyond
them fails, and its process is replaced.

A child of our own instead of `multiprocessing`: its spawn method runs the user's main module a second time, which a
broker embedded in a script or a notebook must not do.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import struct
import subprocess
import sys
import threading
from collections import deque
from typing import IO, Final, NamedTuple

from ottla.seams import Done, Failure, Kind
from ottla.server.loop.completion_queue import CompletionQueue

log = logging.getLogger(__name__)

_size_of: Final = struct.Struct(">Q")
_Job = tuple[str, tuple[object, ...], "Done[object]"]
"""(name, arguments, completion)."""


class JobLimits(NamedTuple):
    """Limits of the jobs of a crew."""

    seconds: float
    """Wall-clock time from sending the job to its result."""
    memory_bytes: int
    """Address space of the process, including what Python itself needs."""
    processes: int
    """Jobs at a time."""


OF_REQUESTS: Final = JobLimits(20, 1 << 30, 2)
"""Ten times the cost of the largest accepted batch, which expands to 100 MiB."""
OF_BROKER: Final = JobLimits(120, 4 << 30, 1)
"""Sorting a full map of keys is the longest job of compaction."""


class RealWorkers:
    """The crews; their processes are started with the first job that needs them."""

    __slots__ = ("_of_broker", "_of_requests")

    def __init__(
        self, turns: CompletionQueue, of_requests: JobLimits = OF_REQUESTS, of_broker: JobLimits = OF_BROKER
    ) -> None:
        self._of_requests = Crew(turns, of_requests)
        self._of_broker = Crew(turns, of_broker)

    def run_job(self, job: str, arguments: tuple[object, ...], done: Done[object], owner: object = None) -> None:
        """Run `package.module:function`; `done` gets its result or a Failure (see `seams.Workers`)."""
        crew = self._of_broker if owner is None else self._of_requests
        crew.add_job(owner, (job, arguments, done))

    def stop_processes(self) -> None:
        """Kill the processes; jobs that run or wait are lost."""
        self._of_requests.stop_processes()
        self._of_broker.stop_processes()


class Crew:
    """Processes that serve the jobs of owners round robin."""

    __slots__ = ("_busy", "_idle", "_limits", "_turns", "_waiting", "_workers")

    def __init__(self, turns: CompletionQueue, limits: JobLimits) -> None:
        self._turns = turns
        self._limits = limits
        self._waiting: dict[object, deque[_Job]] = {}
        """Jobs by owner; the owner that has waited longest is the first."""
        self._busy: dict[object, deque[_Job]] = {}
        """Further jobs of owners of which a job runs; when it has ended, the owner is queued after all others."""
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []

    def add_job(self, owner: object, job: _Job) -> None:
        """Queue a job; it runs when its owner is the next."""
        if owner in self._busy:
            self._busy[owner].append(job)
            return
        self._waiting.setdefault(owner, deque()).append(job)
        self._start_next()

    def stop_processes(self) -> None:
        """Kill the processes; jobs that run or wait are lost."""
        self._waiting.clear()
        self._busy.clear()
        for worker in self._workers:
            worker.kill_process()

    def _start_next(self) -> None:
        worker = self._free_worker() if self._waiting else None
        if worker is None:
            return
        owner = next(iter(self._waiting))
        jobs = self._busy[owner] = self._waiting.pop(owner)
        name, arguments, done = jobs.popleft()
        request = pickle.dumps((name, arguments), pickle.HIGHEST_PROTOCOL)

        def finished(outcome: tuple[object] | Failure) -> None:
            # An owner with more jobs is queued after all other owners.
            left = self._busy.pop(owner, None)
            if left:
                self._waiting[owner] = left
            self._idle.append(worker)
            self._start_next()
            done(outcome if isinstance(outcome, Failure) else outcome[0])

        try:
            worker.ensure_alive()
        except OSError as error:
            self._turns.run_soon(finished, Failure(Kind.NOT_DONE, f"no worker process: {error}"))
            return
        self._turns.run_in_thread(lambda: worker.run_job(name, request), finished)

    def _free_worker(self) -> Worker | None:
        if self._idle:
            return self._idle.pop()
        if len(self._workers) >= self._limits.processes:
            return None
        worker = Worker(self._limits)
        self._workers.append(worker)
        return worker


class Worker:
    """One process, started with its first job and replaced when it has ended."""

    __slots__ = ("_limits", "_process")

    def __init__(self, limits: JobLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def ensure_alive(self) -> None:
        """Start the process if none runs. Raises OSError."""
        if self._process is not None and self._process.poll() is not None:
            log.warning("worker process ended with status %d; starting another one", self._process.returncode)
            self.kill_process()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ottla.server.loop.worker", str(self._limits.memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # A session of its own: the terminal sends Ctrl-C to the broker only, which kills its workers.
                start_new_session=True,
            )

    def kill_process(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # closing flushes the rest of a job that it did not read
                    pipe.close()

    def run_job(self, name: str, request: bytes) -> tuple[object]:
        """Run one job and wait for its result. Raises Failure: UNKNOWN when the process died during the job, TIMEOUT
        when it took too long, FULL when it needed too much memory, or the failure that the job reported."""
        process = self._process
        assert process is not None, "run_job without a process"
        late = threading.Event()

        def stop_late() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._limits.seconds, stop_late)
        timer.daemon = True
        timer.start()
        try:
            answer = _exchange_job(process, request)
        finally:
            # The timer may fire after the answer came and before this call. The answer counts, and `ensure_alive`
            # replaces the process before the next job.
            timer.cancel()
        if answer is None:
            # A dying process closes its pipe before it has ended: wait, so that `ensure_alive` sees it as dead and
            # the next job gets a new one.
            process.kill()
            process.wait()
            if late.is_set():
                text = f"{name} took longer than {self._limits.seconds:g} s: its worker was stopped"
                raise Failure(Kind.TIMEOUT, text)
            raise Failure(Kind.UNKNOWN, "the worker process died during the job")
        kind, value = pickle.loads(answer)  # noqa: S301 - from our own child
        if kind is Kind.FULL:  # its memory is fragmented: the next job gets a new process
            process.kill()
            process.wait()
        if kind is not None:
            raise Failure(kind, str(value))
        return (value,)


def _exchange_job(process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
    """Send a job and wait for its result; None: the process has ended."""
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018 - both are pipes
    try:
        process.stdin.write(_size_of.pack(len(request)) + request)
        process.stdin.flush()
        return _read_result(process.stdout)
    # ValueError: `stop_processes` has closed the pipe from the loop's thread meanwhile.
    except (BrokenPipeError, ValueError):
        return None


def _read_result(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_size_of.size)
    if len(head) < _size_of.size:
        return None
    (size,) = _size_of.unpack(head)
    body = pipe.read(size)
    return body if len(body) == size else None
