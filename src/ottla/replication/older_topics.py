"""Batches for topics that are written in an older message format, made messages of it ahead of their append.

Zone: deterministic. What happens to a Produce request before it runs; `Log.append_lowered` converts what nobody has
converted before, which is right for small batches. A larger one is a job of workers, for the offset at which the log
ends then. If another batch has come in between, it is converted for the new end, a few times; then the append does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import HEADER_SIZE, MAGIC_POS, MAGIC_V2, header_at
from ottla.record.inspection import is_small
from ottla.replication.hosted import Topics, writable
from ottla.replication.partition import Partition
from ottla.replication.preparation import Item, Refused, job_error
from ottla.seams import World
from ottla.storage.log_files import Ahead

LOWER_JOB: Final = "ottla.record.lowering:lower_job"
TRIES: Final = 4


class LoweringAhead:
    """The batches of one request, one after the other."""

    def __init__(
        self,
        world: World,
        topics: Topics,
        items: Sequence[Item],
        run: Callable[[Sequence[Item]], None],
        owner: object = None,
    ) -> None:
        """`run` goes on with the items, in which refused ones have their error; `owner` as in `seams.Workers`."""
        self._world = world
        self._owner = owner
        self._topics = topics
        self._items: list[Item] = list(items)
        self._run = run
        self._tries = TRIES

    def go_on(self, at: int) -> None:
        """From item `at`; when all are done, run the request."""
        for position in range(at, len(self._items)):
            name, index, records = self._items[position]
            partition = writable(self._topics, name, index)
            if partition is not None and isinstance(records, memoryview) and _takes_long(partition, records):
                self._tries = TRIES
                self._start(position, partition, records)
                return
        self._run(self._items)

    def _start(self, position: int, partition: Partition, records: memoryview) -> None:
        base, magic = partition.log.end_offset, partition.log.magic

        def done(result: object) -> None:
            self._done(position, partition, records, Ahead(records, base, magic, b""), result)

        self._world.workers.run(LOWER_JOB, (bytes(records), magic, base), done, self._owner)

    def _done(self, position: int, partition: Partition, records: memoryview, ahead: Ahead, result: object) -> None:
        self._tries -= 1
        if isinstance(result, bytes):
            if partition.log.end_offset != ahead.base and self._tries:
                self._start(position, partition, records)
                return
            partition.log.ahead = ahead._replace(content=result)
        elif isinstance(result, tuple):
            code, text = result
            name, index, _ = self._items[position]
            self._items[position] = (name, index, Refused(ApiError(ErrorCode(code), text)))
        else:  # its append would convert it in the loop, which is more than a worker may do
            name, index, _ = self._items[position]
            self._items[position] = (name, index, Refused(job_error(result, "the batch cannot be converted")))
        self.go_on(position + 1)


def _takes_long(partition: Partition, records: memoryview) -> bool:
    """Whether the log writes an older format, and this batch is too much to convert within a turn.

    What the log stamps itself is not known before its append.
    """
    log = partition.log
    if log.magic == MAGIC_V2 or not partition.is_leader or log.config.message_timestamp_type == "LogAppendTime":
        return False
    return len(records) >= HEADER_SIZE and records[MAGIC_POS] == MAGIC_V2 and not is_small(header_at(records))
