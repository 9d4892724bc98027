"""The groups of this broker: which shard a group belongs to, and what the cluster is asked about.

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
from ottla.groups.membership import beat
from ottla.groups.shard import GroupShard

TOPIC: Final = "__consumer_offsets"
_REMEMBERED: Final = 100_000
"""Groups whose partition is remembered, so that a heartbeat need not hash."""


class GroupCommand(Command, Protocol):
    """A command about one group."""

    @property
    def group_id(self) -> str:
        """Whose shard it goes to."""
        ...


class TopicLookup(Protocol):
    """The cluster, as far as groups have to know it."""

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0: there is no such topic."""
        ...

    def name_of(self, topic_id: bytes) -> str:
        """The name of the topic with that id; "" when there is none."""
        ...

    def id_of(self, topic: str) -> bytes | None:
        """The id of a topic; None: there is no such topic."""
        ...

    def is_to_lead(self, topic: str, partition: int) -> bool:
        """Whether the cluster expects this broker to lead a partition."""
        ...


class Groups:
    """Finds the shard of a group."""

    def __init__(
        self,
        coordinator: Coordinator[GroupShard],
        topics: TopicLookup,
        partition_for: Callable[[str, int], int],
        limits: Callable[[], BrokerConfig],
        new_id: Callable[[], str],
    ) -> None:
        """`partition_for` gives the partition of a name among so many; `new_id` a unique text for a member id."""
        self.coordinator = coordinator
        self.topics = topics
        self.limits = limits
        self.new_id = new_id
        self._partition_for = partition_for
        self._remembered: dict[str, int] = {}
        self._partitions = 0
        self._forgetting: deque[tuple[int, ForgetTopics]] = deque()
        """Shards that are still to be looked through for topics that are deleted."""

    def submit(self, command: GroupCommand) -> None:
        """Give a command to the shard of its group.

        Its ticket gets NOT_COORDINATOR when that is not led here; COORDINATOR_LOAD_IN_PROGRESS when others know already
        that it is going to be: to look for another coordinator would be in vain. A heartbeat does not get that, for no
        client expects it there.
        """
        index = self.partition_of(command.group_id)
        runner = self.coordinator.find_shard(index)
        if runner is not None:
            runner.submit(command)
        elif self.topics.is_to_lead(TOPIC, index):
            beat = isinstance(command, Heartbeat)
            code = ErrorCode.NOT_COORDINATOR if beat else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            command.ticket(ApiError(code, f"this broker is about to lead {TOPIC}-{index}"))
        else:
            self.coordinator.submit(index, command)

    def beat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode | None:
        """A heartbeat that is in order: decided and applied at once. None: it is to be submitted as a command."""
        serving = self.coordinator.serving(self.partition_of(group_id))
        if serving is None:
            return None
        runner, shard, now = serving
        alive, code = beat(shard.groups.get(group_id), generation, member_id, instance_id, now)
        if alive is None or not runner.happened(alive, alive.deadline_ns, now):
            return None
        return code

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that a group belongs to; -1 without the topic."""
        count = self.topics.partitions(TOPIC)
        if count != self._partitions or len(self._remembered) >= _REMEMBERED:
            self._partitions = count
            self._remembered.clear()
        index = self._remembered.get(group_id)
        if index is None:
            index = self._remembered[group_id] = self._partition_for(group_id, count) if count else -1
        return index

    @property
    def loading(self) -> bool:
        """Whether some groups of this broker cannot be seen yet."""
        return self.coordinator.count_shards(ShardState.LOADING) > 0

    def shards(self) -> Iterator[GroupShard]:
        """The shards that serve, only to be read."""
        return (machine for _, machine in self.coordinator.active())

    def topics_deleted(self, names: frozenset[str]) -> None:
        """What was committed for these topics goes, in every shard here, one step after the other."""
        idle = not self._forgetting
        self._forgetting += [(index, ForgetTopics(_do_nothing, names)) for index, _ in self.coordinator.active()]
        if idle and self._forgetting:
            self._forget_topics()

    def _forget_topics(self) -> None:
        """One step of one shard; the first entry stays until it is through."""
        index, command = self._forgetting[0]

        def gone(left: Sequence[str] | ApiError) -> None:
            if left and not isinstance(left, ApiError):
                self._forgetting[0] = (index, command._replace(groups=left))
            else:
                self._forgetting.popleft()
            if self._forgetting:
                self.coordinator.soon(self._forget_topics)

        self.coordinator.submit(index, command._replace(ticket=gone))


def _do_nothing(_: object) -> None:
    """Stands for the ticket until a step is asked for."""


OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8
"""What may be done with a group: Read, Delete, Describe (KIP-430)."""
NOT_ASKED: Final = -(2**31)
