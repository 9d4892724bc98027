"""Transactional ids of the tasks of a batch that is written as a whole, except that of partition 0.

Zone: real. A prepared transaction is aborted when anybody takes its id. So an id belongs to one process, and never to a
partition: a late attempt at the same partition has another one. A process uses an id again in a later batch of the same
run of the query, because Spark begins that batch after the driver has ended the transactions of this one. So a query
has about as many ids as tasks, whatever the number of its batches.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Final

_RUNS: Final = 64
"""How many runs of queries a process remembers; ids of a forgotten one are not used again."""
_ids: Final[dict[tuple[int, str, str], PartIds]] = {}


class PartIds:
    """The ids of one process for one run of a query."""

    def __init__(self, base: str) -> None:
        """base: the beginning of the ids."""
        self._base = f"{base}{os.urandom(8).hex()}"
        self._used: deque[tuple[str, int]] = deque()
        """Each id, and the last batch in which it was taken; the one that was taken first is first."""

    def take_id(self, batch: int) -> str:
        """An id whose last transaction was of an earlier batch, or a new one."""
        if self._used and self._used[0][1] < batch:
            name, _ = self._used.popleft()
        else:
            name = f"{self._base}.{len(self._used)}"
        self._used.append((name, batch))
        return name


def take_part_id(base: str, run: str | None, batch: int) -> str:
    """An id for one attempt at a part. run: of the query; None: outside of queries, where no id is used again."""
    if run is None:
        return PartIds(base).take_id(batch)
    # The process id: a process that is forked later must not share the ids.
    key = (os.getpid(), base, run)
    found = _ids.pop(key, None) or PartIds(base)
    while len(_ids) >= _RUNS:
        del _ids[next(iter(_ids))]
    _ids[key] = found
    return found.take_id(batch)
