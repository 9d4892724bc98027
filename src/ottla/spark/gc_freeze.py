"""Keeps loaded modules out of the garbage collections of Spark's Python workers.

Zone: real. Imports little, because the processes that only plan queries import it.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

_COLLECTS: Final = "pyspark.daemon"
"""The program whose forks collect garbage after every task. Drivers run another program, and are left alone."""
_frozen: set[int] = set()


def freeze_loaded_modules() -> None:
    """Freeze all present objects when modules were loaded since the last call; does nothing outside of workers.

    PySpark runs `gc.collect()` after every task: a tenth of a second of CPU with Arrow, numpy and numba loaded, which
    is more than a task of a small batch takes. At the beginning of a task it has just been run, so that the present
    objects are not garbage. Each query has several such tasks before it reads: Spark looks for sources, creates one
    and plans with it.
    """
    loaded = len(sys.modules)
    if loaded not in _frozen and _runs_tasks():
        _frozen.add(loaded)
        gc.freeze()


def _runs_tasks() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) == _COLLECTS
