"""A coordinator of this broker: one shard per partition of its internal topic that is led here.

Zone: deterministic. Shards come and go with leadership; finding the shard of a command, and loading, shard by shard in
turn, live here. What the shards decide is their machine's. A shard that a defect has fenced is thrown away and loaded
from its log again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from ottla.coordinator.shard import Command, Shard, TransactionEnd
from ottla.coordinator.shard_runtime import RuntimeContext, ShardRuntime, ShardState
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.timing_wheel import Timer
from ottla.replication.partition.partition import Partition
from ottla.seams import Instant

M = TypeVar("M", bound=Shard)  # type: ignore[type-arg]  # whatever its commands are

STEP_PAUSE_MS: Final = 1
"""Between two steps of something long, which take a few milliseconds each: others come in between."""
RELOAD_MS: Final = 1000
"""From a defect in a shard until it is loaded again; twice as long after each further one …"""
RELOAD_MAX_MS: Final = 60_000
"""… and at most so long."""


class Coordinator(Generic[M]):
    """The shards of one internal topic."""

    def __init__(self, topic: str, tools: RuntimeContext, make: Callable[[int], M]) -> None:
        """`make` gives an empty machine for a partition."""
        self.topic = topic
        self._tools = tools
        self._make = make
        self._runners: dict[int, ShardRuntime] = {}
        self._machines: dict[int, M] = {}
        self._loading: deque[ShardRuntime] = deque()
        self._timer: Timer | None = None
        self._stopped = False
        self._defects: dict[int, int] = {}
        """How often a defect has fenced the shard of a partition."""

    # -- leadership ----------------------------------------------------------------------------------------------------

    def on_role(self, partition: Partition) -> None:
        """The role of a partition of any topic has changed; looked at once this turn's input is through."""
        if partition.tp.topic == self.topic and not self._stopped:
            self._tools.later(lambda: self._check_partition(partition))

    def _check_partition(self, partition: Partition) -> None:
        index = partition.tp.partition
        runner = self._runners.get(index)
        leads = partition.is_leader and partition.offline is None
        if runner is not None and (not leads or runner.epoch != partition.leader_epoch):
            runner.resign()
            del self._runners[index], self._machines[index]
            runner = None
        if leads and runner is None:
            machine = self._machines[index] = self._make(index)
            fresh = ShardRuntime(partition, machine, self._tools, self._go_on, self._reload_later)
            self._runners[index] = fresh
            if not fresh.is_empty or fresh.load_step():
                self._loading.append(fresh)
                self._load_soon()

    def _reload_later(self, fenced: ShardRuntime) -> None:
        """A defect left the state of a shard half changed: its log is the truth."""
        index = fenced.partition.tp.partition
        count = self._defects[index] = self._defects.get(index, 0) + 1
        wait_ms = min(RELOAD_MAX_MS, RELOAD_MS << min(count - 1, 16))
        self._tools.purgatory.after(wait_ms, lambda: self._reload(fenced))

    def _reload(self, fenced: ShardRuntime) -> None:
        index = fenced.partition.tp.partition
        if self._runners.get(index) is fenced and not self._stopped:
            del self._runners[index], self._machines[index]
            self._check_partition(fenced.partition)

    def _load_soon(self) -> None:
        """Plan the next step of loading. It does not wait for an idle moment, which may never come."""
        if self._loading and self._timer is None:
            self._timer = self._tools.purgatory.after(STEP_PAUSE_MS, self._load)

    def _load(self) -> None:
        self._timer = None
        if self._loading:
            runner = self._loading.popleft()
            if runner.load_step():
                self._loading.append(runner)
        self._load_soon()

    def _go_on(self) -> None:
        """The disk has brought what a loader waited for."""
        self._loading = deque(runner for runner in self._runners.values() if runner.state is ShardState.LOADING)
        self._load_soon()

    def stop(self) -> None:
        """Turn everybody away: the logs are about to be closed."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for runner in self._runners.values():
            runner.resign()
        self._runners.clear()
        self._machines.clear()

    # -- commands ------------------------------------------------------------------------------------------------------

    def submit(self, index: int, command: Command) -> None:
        """Give a command to the shard of a partition. Its ticket gets NOT_COORDINATOR when that is not led here."""
        runner = self._runners.get(index)
        if runner is None:
            command.ticket(ApiError(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{index} is not led here"))
        else:
            runner.submit(command)

    def serving(self, index: int) -> tuple[ShardRuntime, M, Instant] | None:
        """The shard of a partition, its machine, only to be read, and the time; None when it is not serving here."""
        runner = self._runners.get(index)
        if runner is None or not runner.serves:
            return None
        return runner, self._machines[index], self._tools.clock.now()

    def end_transaction(self, partition: Partition, end: TransactionEnd, offset: int) -> None:
        """A control batch has been appended to a partition of this topic."""
        runner = self._runners.get(partition.tp.partition)
        if runner is not None and runner.epoch == partition.leader_epoch:
            runner.end_transaction(end, offset)

    def soon(self, action: Callable[[], None]) -> None:
        """Go on with something long in a turn of its own: others come in between."""
        self._tools.purgatory.after(STEP_PAUSE_MS, action)

    # -- views ---------------------------------------------------------------------------------------------------------

    def active(self) -> Iterator[tuple[int, M]]:
        """Partitions whose shards serve, with their machines, which are only to be read."""
        for index, runner in self._runners.items():
            if runner.state is ShardState.ACTIVE:
                yield index, self._machines[index]

    def count_shards(self, state: ShardState) -> int:
        """Shards in that state."""
        return sum(runner.state is state for runner in self._runners.values())

    def find_shard(self, index: int) -> ShardRuntime | None:
        """The shard of a partition, while that is led here."""
        return self._runners.get(index)
