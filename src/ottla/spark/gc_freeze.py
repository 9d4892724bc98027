"""What Spark's Python workers need not look through for garbage.

Zone: real. Light: also what only plans a query imports it. Nothing else that concerns memory lives here.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

_COLLECTS: Final = "pyspark.daemon"
"""The program whose forks collect garbage after every task. A driver, whose memory is its user's, runs another."""
_frozen: set[int] = set()


def freeze_loaded_modules() -> None:
    """Leave what modules hold out of garbage collection, each time that there are more of them.

    PySpark collects after every task: a tenth of a second of CPU with Arrow, numpy and numba loaded, which is more
    than a task of a small batch takes. It has just done so when a task begins: what is there is no garbage. Every
    query has such tasks before it reads anything: Spark looks for sources, makes one and asks it what to read.
    Does nothing in other processes.
    """
    loaded = len(sys.modules)
    if loaded not in _frozen and _runs_tasks():
        _frozen.add(loaded)
        gc.freeze()


def _runs_tasks() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) == _COLLECTS
