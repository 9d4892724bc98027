"""What stays between the tasks of a worker process: connections, and the modules that are loaded.

Zone: real. Spark reuses its Python workers, so what one task has connected to and found out serves the next.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ottla.client.batch_transaction import Links
from ottla.client.settings import ClientConfig

_kept: Final[dict[ClientConfig, Links]] = {}
_MOST: Final = 4
_frozen: set[int] = set()


@contextmanager
def kept_links(config: ClientConfig) -> Iterator[Links]:
    """Links for one user at a time; after an error they are closed: answers may be on their way that nobody takes.

    The user may close them, too: then the next one gets others.
    """
    spare_modules()
    links = _kept.pop(config, None) or Links(config)
    try:
        yield links
    except BaseException:
        links.close()
        raise
    if not links.is_open:
        return
    for old in list(_kept)[: max(0, len(_kept) + 1 - _MOST)]:
        _kept.pop(old).close()
    if (other := _kept.pop(config, None)) is not None:
        other.close()
    _kept[config] = links


def spare_modules() -> None:
    """Leave what modules hold out of garbage collection, each time that there are more of them.

    PySpark collects after every task: a tenth of a second of CPU with Arrow, numpy and numba loaded, which is more
    than a task of a small batch takes. It has just done so when a task begins: what is there is no garbage.
    """
    loaded = len(sys.modules)
    if loaded not in _frozen:
        _frozen.add(loaded)
        gc.freeze()
