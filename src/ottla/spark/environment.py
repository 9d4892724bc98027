"""What the processes of Spark inherit from the one that starts it.

Zone: real. Variables of the environment only; which Java, is in `java`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THREADS: Final = "OMP_NUM_THREADS"
"""Spark sets it for workers, as `spark.task.cpus` says, but not for the process that plans a streaming query."""


@contextmanager
def one_thread_in_planners() -> Iterator[None]:
    """Start Spark within. What of Python plans queries loads numpy, whose linear algebra starts a thread for each core,
    and these spin before they sleep: a quarter of a second of CPU per query on two cores, for nothing.

    The process that starts Spark keeps its own environment, and a value that is set stays.
    """
    if THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(THREADS, None)
