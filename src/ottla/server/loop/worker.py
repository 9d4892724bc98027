"""The worker process: reads jobs from standard input, writes results to standard output, ends with its parent.

Zone: real. Started as `python -m ottla.server.loop.worker <most bytes of memory>` by `ottla.server.loop.workers`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import resource
import struct
import sys
from typing import IO

from ottla.seams import Failure, Kind

_SIZE = struct.Struct(">Q")


def perform_job(job: str, arguments: tuple[object, ...]) -> tuple[Kind | None, object]:
    """Run `package.module:function`; returns (None, result), or the kind and text of a failure."""
    module, _, function = job.partition(":")
    try:
        return None, getattr(importlib.import_module(module), function)(*arguments)
    except Failure as failure:
        return failure.kind, failure.message
    except MemoryError:
        return Kind.FULL, _too_much(job)
    except Exception as error:  # noqa: BLE001 - any exception of a job is its result
        return Kind.IO, f"{job}: {error!r}"


def _run_job(asked: bytes) -> bytes:
    job = "a job"
    try:
        job, arguments = pickle.loads(asked)  # noqa: S301 - from our own parent
        return pickle.dumps(perform_job(job, arguments), pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        return pickle.dumps((Kind.FULL, _too_much(job)), pickle.HIGHEST_PROTOCOL)


def _too_much(job: str) -> str:
    return f"{job} needs more memory than a job may use"


def limit_memory(most_bytes: int) -> None:
    """Limit the address space of this process, where the system can: an allocation beyond it raises MemoryError."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


def serve_jobs(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Run jobs until the input ends, even in the middle of a job. Raises BrokenPipeError when the parent has ended."""
    # A job, and a result as well, is a length of 8 bytes (big-endian) and a pickle.
    while len(head := requests.read(_SIZE.size)) == _SIZE.size:
        (size,) = _SIZE.unpack(head)
        asked = requests.read(size)
        if len(asked) < size:
            return
        answer = _run_job(asked)
        answers.write(_SIZE.pack(len(answer)) + answer)
        answers.flush()


def main() -> None:
    """Run jobs; standard output is for their results, so the output of a job is redirected to standard error.

    The first argument, if any, is the limit of address space in bytes.
    """
    if len(sys.argv) > 1:
        limit_memory(int(sys.argv[1]))
    # A print of a job, or of a library it calls, would otherwise be read by the broker as the length of a result.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve_jobs(sys.stdin.buffer, answers)
    except BrokenPipeError:  # the broker was killed; a normal exit would try to flush the rest of the result
        os._exit(1)


if __name__ == "__main__":
    main()
