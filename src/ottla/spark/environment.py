"""Environment variables that Spark's processes inherit from the process that starts it.

Zone: real. Environment variables only; `java` chooses the Java.
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
    """Limit numpy to one thread in the Python processes of a Spark that is started inside of this context.

    The process that plans a streaming query loads numpy, whose linear algebra starts a thread per core; the threads
    spin before they sleep, which costs a quarter of a second of CPU per query on two cores. The calling process keeps
    its own environment, and a value that is set already is not changed.
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
    """Make Spark's workers run this Python (PYSPARK_PYTHON) if `python3` of PATH is another one.

    That is so in a virtual environment that is not activated: the other Python has no ottla, and Spark would not find
    the format. A value that is set already is kept; under spark-submit, which chooses the Python, nothing is changed.
    """
    if "PYSPARK_GATEWAY_PORT" in environment or "PYSPARK_PYTHON" in environment:
        return
    found = shutil.which("python3", path=environment.get("PATH", ""))
    here = os.path.dirname(sys.executable)
    if found is None or os.path.realpath(os.path.dirname(found)) != os.path.realpath(here):
        environment["PYSPARK_PYTHON"] = sys.executable


def activate_session(spark: Any) -> None:
    """Make a session the active one of this thread; does nothing with Spark Connect, which has no active session.

    Spark looks up sinks written in Python only in the active session, and a thread that the user starts has none.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
