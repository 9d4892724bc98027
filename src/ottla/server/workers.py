"""Jobs in a process of their own: the real `ottla.seams.Workers`.

Zone: real. Starting the process, feeding it and noticing its death live here; what runs inside is
`ottla.server.worker`.

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
from collections import deque
from typing import IO, Final

from ottla.seams import Done, Failure, Kind
from ottla.server.turns import Turns

log = logging.getLogger(__name__)

_size_of: Final = struct.Struct(">Q")


class RealWorkers:
    """One worker process, started with the first job; jobs run one after the other."""

    __slots__ = ("_process", "_queue", "_running", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._queue: deque[tuple[bytes, Done[object]]] = deque()
        self._running = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, job: str, arguments: tuple[object, ...], done: Done[object]) -> None:
        """Run the function `package.module:function`; its result or a Failure comes back."""
        self._queue.append((pickle.dumps((job, arguments), pickle.HIGHEST_PROTOCOL), done))
        if not self._running:
            self._next()

    def stop(self) -> None:
        """End the worker; a job that runs is lost."""
        self._queue.clear()
        self._end_process()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # the rest of a job that it did not live to read
                    pipe.close()

    def _next(self) -> None:
        self._running = True
        request, done = self._queue.popleft()
        try:
            process = self._alive()
        except OSError as error:
            self._running = False
            self._turns.soon(done, Failure(Kind.NOT_DONE, f"no worker process: {error}"))
            return

        def finished(outcome: tuple[object] | Failure) -> None:
            self._running = False
            if self._queue:
                self._next()
            done(outcome if isinstance(outcome, Failure) else outcome[0])

        self._turns.off_loop(lambda: _ask(process, request), finished)

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            log.warning("a worker process ended with status %d; another one is started", self._process.returncode)
            self._end_process()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ottla.server.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # Not in our process group: Ctrl-C is for the broker, which ends its worker itself.
                start_new_session=True,
            )
        return self._process


def _ask(process: subprocess.Popen[bytes], request: bytes) -> tuple[object]:
    """One job, waiting for it. Raises Failure UNKNOWN when the process died over it, or what the job reported."""
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018 - both are pipes
    try:
        process.stdin.write(_size_of.pack(len(request)) + request)
        process.stdin.flush()
        answer = _read(process.stdout)
    except (BrokenPipeError, ValueError):
        answer = None
    if answer is None:
        # Its pipe is closed before it is gone: the next job must not be given to it in between.
        process.kill()
        process.wait()
        raise Failure(Kind.UNKNOWN, "the worker process died over the job")
    kind, value = pickle.loads(answer)  # noqa: S301 - from our own child
    if kind is not None:
        raise Failure(kind, str(value))
    return (value,)


def _read(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_size_of.size)
    if len(head) < _size_of.size:
        return None
    (size,) = _size_of.unpack(head)
    body = pipe.read(size)
    return body if len(body) == size else None
