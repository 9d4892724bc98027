"""Members of a consumer group. `ottla.client.consumer.membership` makes all their decisions.

Zone: deterministic. `ottla.client.consumer.group` drives that state machine with a thread and sockets; here events do
it: they carry out its actions, and pass answers and time to it. The application polls, gives up partitions on a
revocation, and now and then sleeps too long, leaves or dies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ottla.client.consumer.actions import (
    Action,
    Assign,
    Assigned,
    Failed,
    FindCoordinator,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    Prepare,
    Sync,
)
from ottla.client.consumer.membership import Membership, Phase
from ottla.client.errors import RefusedError
from ottla.errors import ErrorCode
from ottla.sim.clients.history import ClientHistory, Owned
from ottla.sim.entropy import Stream
from ottla.sim.networks.network import Network
from ottla.sim.networks.wire_client import WireClient
from ottla.sim.world import MS, SECOND
from ottla.types import TopicPartition
from ottla.wire.apis import API_TABLE
from ottla.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    MetadataRequest,
    MetadataResponse,
    SyncGroupResponse,
)
from ottla.wire.schema import Message

GROUP_TYPE: Final = 0
TIMEOUT_NS: Final = 8 * SECOND
"""A JoinGroup waits for the slowest member."""
LOOK_NS: Final = 2 * SECOND
"""How often the leader of the group checks the number of partitions."""
METADATA_VERSION: Final = 12


class GroupMember:
    """One member, through all its lives."""

    def __init__(
        self,
        network: Network,
        name: str,
        nodes: Sequence[int],
        settings: GroupSettings,
        topic: str,
        random: Stream,
        history: ClientHistory,
    ) -> None:
        self.name = name
        self.timeline = network.timeline
        self.calm = False
        """Everything is healed: it no longer sleeps too long, leaves or dies."""
        self.life = 0
        self.owned: tuple[TopicPartition, ...] = ()
        """The partitions that the application processes."""
        self._network = network
        self._nodes = nodes
        self._settings = settings
        self._topic = topic
        self._random = random
        self._history = history
        self._wires: dict[int, WireClient] = {}
        self._coordinator = -1
        self._led = -1
        """How many partitions there were when it made the assignment; -1: another member made it."""
        self._begin_process()

    @property
    def generation(self) -> int:
        """The generation in which it is stable; -1: it is not."""
        return self._machine.member.generation if self._machine.phase is Phase.STABLE else -1

    def start_polling(self) -> None:
        """Start to poll."""
        self.timeline.schedule_after(self._random.random_below(2 * SECOND), "poll", self._poll_group, self.life)

    def _begin_process(self) -> None:
        """Start over as a new process, without any state."""
        self.life += 1
        self._machine = Membership(self._settings)
        self._events: deque[tuple[int, Prepare | Assigned]] = deque()
        self.owned = ()
        self._planned_ns = -1

    # ---- the application ----

    def _poll_group(self, life: int) -> None:
        if life != self.life:
            return
        wait = self._random.between(50, 300) * MS
        if not self.calm and self._random.chance(0.02):
            wait = self._draw_misbehavior()
        self.timeline.schedule_after(wait, "poll", self._poll_group, self.life)
        if self._machine.phase is Phase.IDLE:
            self._machine.subscribe_topics(self._now_seconds(), [self._topic])
        self._machine.on_poll(self._now_seconds())
        self._run_actions()
        while self._events:
            self._take_event(*self._events.popleft())
            self._run_actions()

    def _draw_misbehavior(self) -> int:
        """Sleep past the poll interval, leave for a while, or die. Returns the nanoseconds until the next poll."""
        kind = self._random.random_below(3)  # 0: it only sleeps
        if kind == 1:
            self._machine.end_subscription("it has enough")
            self._events.clear()
            self.owned = ()
            self._run_actions()
        elif kind == 2:
            self._wires.clear()  # requests that are on their way may still arrive
            self._begin_process()
        return self._random.between(500, 6000) * MS

    def _take_event(self, generation: int, event: Prepare | Assigned) -> None:
        now_ns = self.timeline.now_ns
        if isinstance(event, Prepare):
            self.owned = tuple(tp for tp in self.owned if tp not in event.partitions)
            self._machine.on_prepared(self._now_seconds(), self.owned)
            return
        kept = [tp for tp in self.owned if tp not in event.revoked]
        self.owned = (*kept, *event.added)
        self._history.owned.append(Owned(self._settings.group_id, generation, self.name, self.owned, now_ns))

    # ---- the thread ----

    def _now_seconds(self) -> float:
        return self.timeline.now_ns / 1e9

    def _run_actions(self) -> None:
        """Carry out actions until the state machine has none; then schedule its next wake-up."""
        life = self.life
        while actions := self._machine.take_actions():
            for action in actions:
                self._perform_action(action)
                if life != self.life:
                    return
        # An earlier wake-up that is already planned is kept: it plans the next one itself.
        wake_at = self._machine.wakes_at()
        if wake_at < float("inf"):
            at_ns = max(int(wake_at * 1e9) + 1, self.timeline.now_ns + MS)
            if self._planned_ns < 0 or at_ns < self._planned_ns:
                self._planned_ns = at_ns
                self.timeline.schedule_at(at_ns, "member", self._on_timer, self.life)

    def _on_timer(self, life: int) -> None:
        if life == self.life:
            self._planned_ns = -1
            self._machine.do_due_work(self._now_seconds())
            self._run_actions()

    def _perform_action(self, action: Action) -> None:
        machine = self._machine
        if isinstance(action, Prepare):
            # A later Prepare replaces an earlier one: the partitions of that one are lost by now.
            self._events = deque(each for each in self._events if not isinstance(each[1], Prepare))
            self._events.append((machine.member.generation, action))
        elif isinstance(action, Assigned):
            self._events.append((machine.member.generation, action))
        elif isinstance(action, Failed):
            self._on_failed(action)
        elif isinstance(action, FindCoordinator):
            self._find_coordinator()
        elif isinstance(action, Assign):
            self._assign_partitions(action)
        elif isinstance(action, Join):
            self._led = -1
            self._ask_coordinator(action.request, JoinGroupResponse, machine.on_join)
        elif isinstance(action, Sync):
            self._ask_coordinator(action.request, SyncGroupResponse, machine.on_sync)
        elif isinstance(action, Heartbeat):
            self._ask_coordinator(action.request, HeartbeatResponse, machine.on_heartbeat)
        elif isinstance(action, Leave):
            self._ask_coordinator(action.request, LeaveGroupResponse, None)

    def _on_failed(self, action: Failed) -> None:
        """The state machine gave up: start the application as a new process.

        Only a static member itself can cause its fencing here: by a JoinGroup of its own that arrives late, or when the
        coordinator fails before it has written the new member id. Kafka behaves in the same way (KIP-345).
        """
        error = action.error
        fenced = isinstance(error, RefusedError) and error.code is ErrorCode.FENCED_INSTANCE_ID
        if not fenced or self._settings.instance_id is None:
            self._history.expelled.append(f"{self.name}: {error.cause}")
        self._begin_process()
        self.start_polling()

    # ---- requests ----

    def _wire_client(self, node: int) -> WireClient:
        found = self._wires.get(node)
        if found is None:
            found = self._wires[node] = WireClient(self._network, self.name, node, TIMEOUT_NS)
            found.complain = self._history.broken_protocol.append
        return found

    def _ask_coordinator(self, request: Message, response: type[Message], tell: Callable[..., None] | None) -> None:
        """Send a request to the coordinator. The state machine gets the answer, or the loss of the connection."""
        life = self.life

        def on_response(answer: Message | None, _node: int) -> None:
            if tell is None or life != self.life:
                return
            if answer is None:
                self._machine.on_disconnect(self._now_seconds())
            else:
                tell(self._now_seconds(), answer)
            self._run_actions()

        version = API_TABLE[request.API_KEY].max_version
        self._wire_client(self._coordinator).send_request(request, version, response, on_response)

    def _find_coordinator(self) -> None:
        request = FindCoordinatorRequest(key_type=GROUP_TYPE, coordinator_keys=[self._settings.group_id])
        life = self.life

        def on_response(answer: Message | None, _node: int) -> None:
            if life != self.life:
                return
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if isinstance(answer, FindCoordinatorResponse):
                code = ErrorCode(answer.coordinators[0].error_code)
                self._coordinator = answer.coordinators[0].node_id
            self._machine.on_coordinator(self._now_seconds(), code)
            self._run_actions()

        node = self._random.choice(self._nodes)
        version = API_TABLE[request.API_KEY].max_version
        self._wire_client(node).send_request(request, version, FindCoordinatorResponse, on_response)

    def _assign_partitions(self, todo: Assign) -> None:
        """Run the assignor over the existing partitions."""

        def counted(count: int) -> None:
            if count < 0:
                self._count_partitions(counted)
                return
            self._led = count
            topics = {self._topic: [frozenset[str]()] * count}
            self._machine.on_assigned(self._now_seconds(), todo.assignor.assign_partitions(topics, todo.members))
            self._run_actions()
            self.timeline.schedule_after(LOOK_NS, "look", self._check_topics, self.life)

        self._count_partitions(counted)

    def _check_topics(self, life: int) -> None:
        """As leader, rejoin when the topic has more partitions than at the last assignment."""
        if life != self.life or self._led < 0:
            return

        def counted(count: int) -> None:
            if 0 <= self._led < count:
                self._machine.request_rejoin("the partitions of the topic changed")
                self._run_actions()
            else:
                self.timeline.schedule_after(LOOK_NS, "look", self._check_topics, life)

        self._count_partitions(counted)

    def _count_partitions(self, then: Callable[[int], None]) -> None:
        """Ask how many partitions the topic has; -1 without an answer. A broker with old metadata may report fewer."""
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=self._topic)])
        life = self.life

        def on_response(answer: Message | None, _node: int) -> None:
            if life == self.life:
                known = isinstance(answer, MetadataResponse) and not answer.topics[0].error_code
                then(len(answer.topics[0].partitions) if isinstance(answer, MetadataResponse) and known else -1)

        node = self._random.choice(self._nodes)
        self._wire_client(node).send_request(request, METADATA_VERSION, MetadataResponse, on_response)
