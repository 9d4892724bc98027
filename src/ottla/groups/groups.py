"""The groups of this broker: the shard of a group, and what groups need to know of the cluster.

Zone: deterministic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from ottla.config.broker import BrokerConfig
from ottla.coordinator.coordinator import Coordinator
from ottla.coordinator.shard import Command
from ottla.coordinator.shard_runtime import ShardState
from ottla.errors import ApiError, ErrorCode
from ottla.groups.commands import ForgetTopics, Heartbeat
from ottla.groups.membership import check_heartbeat
from ottla.groups.shard import GroupShard

TOPIC: Final = "__consumer_offsets"
_REMEMBERED: Final = 100_000
"""The number of groups whose partition is cached, so that a heartbeat need not hash the group id."""


class GroupCommand(Command, Protocol):
    """A command about one group."""

    @property
    def group_id(self) -> str:
        """The group; its shard handles the command."""
        ...


class TopicLookup(Protocol):
    """The view of the cluster that groups need."""

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic; 0: the topic does not exist."""
        ...

    def name_of(self, topic_id: bytes) -> str:
        """The name of the topic with that id; "" when it does not exist."""
        ...

    def id_of(self, topic: str) -> bytes | None:
        """The id of a topic; None: the topic does not exist."""
        ...

    def is_to_lead(self, topic: str, partition: int) -> bool:
        """Whether the cluster expects this broker to lead a partition."""
        ...


class Groups:
    """Passes commands to the shards of groups."""

    def __init__(
        self,
        coordinator: Coordinator[GroupShard],
        topics: TopicLookup,
        partition_for: Callable[[str, int], int],
        limits: Callable[[], BrokerConfig],
        new_id: Callable[[], str],
    ) -> None:
        """`partition_for`: (group id, number of partitions) → partition. `new_id`: the unique part of a member id."""
        self.coordinator = coordinator
        self.topics = topics
        self.limits = limits
        self.new_id = new_id
        self._partition_for = partition_for
        self._remembered: dict[str, int] = {}
        self._partitions = 0
        self._forgetting: deque[tuple[int, ForgetTopics]] = deque()
        """The queue of shards in which offsets of deleted topics are still to be dropped."""

    def submit_command(self, command: GroupCommand) -> None:
        """Pass a command to the shard of its group.

        Its ticket gets NOT_COORDINATOR when this broker does not lead the partition, and COORDINATOR_LOAD_IN_PROGRESS
        when it is about to.
        """
        index = self.partition_of(command.group_id)
        runner = self.coordinator.find_shard(index)
        # 1. The shard is here; it refuses the command itself while it is loading.
        if runner is not None:
            runner.submit_command(command)
        # 2. The cluster has elected this broker, but the election has not been applied here. Other brokers already send
        #    clients here, so NOT_COORDINATOR would only have them ask again. Heartbeats get it nevertheless: clients do
        #    not expect COORDINATOR_LOAD_IN_PROGRESS in their response.
        elif self.topics.is_to_lead(TOPIC, index):
            beat = isinstance(command, Heartbeat)
            code = ErrorCode.NOT_COORDINATOR if beat else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            command.ticket(ApiError(code, f"this broker is about to lead {TOPIC}-{index}"))
        # 3. Another broker leads it.
        else:
            self.coordinator.submit_command(index, command)

    def try_heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> ErrorCode | None:
        """Decide and apply a valid heartbeat. Returns None when it must be submitted as a command instead."""
        serving = self.coordinator.serving_shard(self.partition_of(group_id))
        if serving is None:
            return None
        runner, shard, now = serving
        alive, code = check_heartbeat(shard.groups.get(group_id), generation, member_id, instance_id, now)
        if alive is None or not runner.apply_event(alive, alive.deadline_ns, now):
            return None
        return code

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that a group belongs to; -1 when the topic does not exist."""
        count = self.topics.partition_count(TOPIC)
        # With another number of partitions every group may have another one.
        if count != self._partitions or len(self._remembered) >= _REMEMBERED:
            self._partitions = count
            self._remembered.clear()
        index = self._remembered.get(group_id)
        if index is None:
            index = self._remembered[group_id] = self._partition_for(group_id, count) if count else -1
        return index

    @property
    def is_loading(self) -> bool:
        """Whether some shards of this broker are loading, so that not all of its groups are known."""
        return self.coordinator.count_shards(ShardState.LOADING) > 0

    def shards(self) -> Iterator[GroupShard]:
        """The shards that serve (read only)."""
        return (machine for _, machine in self.coordinator.active_shards())

    def topics_deleted(self, names: frozenset[str]) -> None:
        """Drop the offsets of these topics in every shard of this broker, step by step."""
        idle = not self._forgetting
        self._forgetting += [(index, ForgetTopics(_do_nothing, names)) for index, _ in self.coordinator.active_shards()]
        if idle and self._forgetting:
            self._forget_topics()

    def _forget_topics(self) -> None:
        """Submit one step of the first shard of the queue. The shard stays first until it is done."""
        index, command = self._forgetting[0]

        def gone(left: Sequence[str] | ApiError) -> None:
            if left and not isinstance(left, ApiError):
                self._forgetting[0] = (index, command._replace(groups=left))
            else:  # done; after an error the offsets that are left stay until they expire
                self._forgetting.popleft()
            if self._forgetting:
                self.coordinator.run_soon(self._forget_topics)

        self.coordinator.submit_command(index, command._replace(ticket=gone))


def _do_nothing(_: object) -> None:
    """A placeholder: each step replaces it by a ticket of its own."""
