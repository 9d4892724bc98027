"""What the processes of Spark inherit from the one that starts it.

Zone: real. Variables of the environment only; which Java, is in `java`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

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


def name_this_python(environment: MutableMapping[str, str]) -> None:
    """Let Spark's workers run this Python (PYSPARK_PYTHON), where `python3` of PATH is another one, as in a virtual
    environment that is not activated: that one has no ottla, so Spark would not find the format.

    What is set stays; under spark-submit, which says it in its own way, nothing is changed.
    """
    if "PYSPARK_GATEWAY_PORT" in environment or "PYSPARK_PYTHON" in environment:
        return
    found = shutil.which("python3", path=environment.get("PATH", ""))
    here = os.path.dirname(sys.executable)
    if found is None or os.path.realpath(os.path.dirname(found)) != os.path.realpath(here):
        environment["PYSPARK_PYTHON"] = sys.executable


def activate_session(spark: Any) -> None:
    """Make a session the active one of this thread: Spark looks for a sink written in Python only there, and a thread
    of one's own has none. Spark Connect has no such thing: there nothing happens."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
