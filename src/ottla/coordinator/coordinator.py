"""A coordinator of this broker: one shard per partition of its internal topic that is led here.

Zone: deterministic. A shard is created when this broker becomes leader of its partition, and dropped when it loses the
leadership. This module finds the shard of a command and loads shards round-robin; the state machines decide.
A shard that a defect has fenced is dropped and loaded from its log again.
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

M = TypeVar("M", bound=Shard)  # type: ignore[type-arg]  # of any type of command

STEP_PAUSE_MS: Final = 1
"""The pause between two steps of long work. A step takes a few milliseconds; in the pause other requests are served."""
RELOAD_MS: Final = 1000
"""The delay between a defect in a shard and its reload. It doubles with each further defect …"""
RELOAD_MAX_MS: Final = 60_000
"""… up to this limit."""


class Coordinator(Generic[M]):
    """The shards of one internal topic."""

    def __init__(self, topic: str, tools: RuntimeContext, make: Callable[[int], M]) -> None:
        """`make` creates an empty state machine for the partition with that index."""
        self.topic = topic
        self._tools = tools
        self._make = make
        self._runners: dict[int, ShardRuntime] = {}
        self._machines: dict[int, M] = {}
        self._loading: deque[ShardRuntime] = deque()
        self._timer: Timer | None = None
        self._stopped = False
        self._defects: dict[int, int] = {}
        """The number of defects that have fenced the shard of a partition, by partition."""

    # -- leadership ----------------------------------------------------------------------------------------------------

    def on_role(self, partition: Partition) -> None:
        """The role of a partition of any topic has changed. The check runs at the end of this turn."""
        if partition.tp.topic == self.topic and not self._stopped:
            # Deferred, because the caller may be in the middle of the change of role.
            self._tools.later(lambda: self._check_partition(partition))

    def _check_partition(self, partition: Partition) -> None:
        index = partition.tp.partition
        runner = self._runners.get(index)
        leads = partition.is_leader and partition.offline is None
        # 1. A shard belongs to one leader epoch. A new epoch of this same broker ends it as well: another leader may
        #    have written to the log in between.
        if runner is not None and (not leads or runner.epoch != partition.leader_epoch):
            runner.resign_leadership()
            del self._runners[index], self._machines[index]
            runner = None
        # 2. A new leadership starts with an empty state machine and reads the log.
        if leads and runner is None:
            machine = self._machines[index] = self._make(index)
            fresh = ShardRuntime(partition, machine, self._tools, self._resume_loading, self._reload_later)
            self._runners[index] = fresh
            # An empty log is loaded with one step, here, so that the first command finds the shard active.
            if not fresh.is_empty or fresh.load_step():
                self._loading.append(fresh)
                self._load_soon()

    def _reload_later(self, fenced: ShardRuntime) -> None:
        """Plan the reload of a shard whose state a defect left half changed: only its log is trusted."""
        index = fenced.partition.tp.partition
        count = self._defects[index] = self._defects.get(index, 0) + 1
        # The shift has a limit, so that the number stays small however many defects there were.
        wait_ms = min(RELOAD_MAX_MS, RELOAD_MS << min(count - 1, 16))
        self._tools.purgatory.continue_after(wait_ms, lambda: self._reload_shard(fenced))

    def _reload_shard(self, fenced: ShardRuntime) -> None:
        index = fenced.partition.tp.partition
        # The leadership may have changed since: then the shard of the new epoch is loaded already.
        if self._runners.get(index) is fenced and not self._stopped:
            del self._runners[index], self._machines[index]
            self._check_partition(fenced.partition)

    def _load_soon(self) -> None:
        """Plan the next step of loading. It runs after a fixed pause, because a busy broker has no idle moment."""
        if self._loading and self._timer is None:
            self._timer = self._tools.purgatory.continue_after(STEP_PAUSE_MS, self._load_next)

    def _load_next(self) -> None:
        self._timer = None
        # Round-robin: a small shard does not wait until a large one is loaded.
        if self._loading:
            runner = self._loading.popleft()
            if runner.load_step():
                self._loading.append(runner)
        self._load_soon()

    def _resume_loading(self) -> None:
        """Continue loading: the disk has delivered bytes that a loader waited for."""
        # A shard that waits for the disk is in no queue, and the call does not name the shard. So all that are loading
        # are queued; a step of one that still waits does nothing.
        self._loading = deque(runner for runner in self._runners.values() if runner.state is ShardState.LOADING)
        self._load_soon()

    def stop_shards(self) -> None:
        """Refuse all waiting requests: the logs are about to be closed."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for runner in self._runners.values():
            runner.resign_leadership()
        self._runners.clear()
        self._machines.clear()

    # -- commands ------------------------------------------------------------------------------------------------------

    def submit_command(self, index: int, command: Command) -> None:
        """Pass a command to the shard of a partition.

        Its ticket gets NOT_COORDINATOR when this broker does not lead the partition.
        """
        runner = self._runners.get(index)
        if runner is None:
            command.ticket(ApiError(ErrorCode.NOT_COORDINATOR, f"{self.topic}-{index} is not led here"))
        else:
            runner.submit_command(command)

    def serving_shard(self, index: int) -> tuple[ShardRuntime, M, Instant] | None:
        """The shard of a partition, its state machine (read only) and the time; None when it does not serve here."""
        runner = self._runners.get(index)
        if runner is None or not runner.is_serving:
            return None
        return runner, self._machines[index], self._tools.clock.now()

    def end_transaction(self, partition: Partition, end: TransactionEnd, offset: int) -> None:
        """A control batch has been appended to a partition of this topic."""
        runner = self._runners.get(partition.tp.partition)
        # A shard of an older epoch is about to be dropped; the one of this epoch reads the control batch from the log.
        if runner is not None and runner.epoch == partition.leader_epoch:
            runner.end_transaction(end, offset)

    def run_soon(self, action: Callable[[], None]) -> None:
        """Run the next step of long work in a later turn, so that other requests are served in between."""
        self._tools.purgatory.continue_after(STEP_PAUSE_MS, action)

    # -- views ---------------------------------------------------------------------------------------------------------

    def active_shards(self) -> Iterator[tuple[int, M]]:
        """The partitions whose shards serve, with their state machines (read only)."""
        for index, runner in self._runners.items():
            if runner.state is ShardState.ACTIVE:
                yield index, self._machines[index]

    def count_shards(self, state: ShardState) -> int:
        """The number of shards in that state."""
        return sum(runner.state is state for runner in self._runners.values())

    def find_shard(self, index: int) -> ShardRuntime | None:
        """The shard of a partition; None when this broker does not lead it."""
        return self._runners.get(index)
