"""Whole brokers without a cluster, on one simulated network; the test plays their controller.

Zone: real. Every broker has its logs, handlers, fetchers and channel to the controller; requests between them travel.
The controller is a node of the network: it sends LeaderAndIsr and StopReplica, and answers AlterPartition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.ignoring import NoCoordinators, ignore

from ottla.broker.assembly.forward import Forward
from ottla.broker.assembly.foundation import lay_foundation
from ottla.broker.assembly.replication import build_replicas
from ottla.broker.dispatch import Dispatch
from ottla.broker.log_handlers import LogHandlers
from ottla.broker_client import BrokerClient
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.effects import Effects
from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import Record, batches_of, encode_batch, records_of
from ottla.replication.control import ControlFence
from ottla.replication.control_handlers import ControlHandlers
from ottla.replication.epoch_handlers import EpochHandlers
from ottla.replication.fetch import fetch
from ottla.replication.fetch.fetch import FetchHandler
from ottla.replication.fetch.fetch_session import FetchSessions
from ottla.replication.leaders import NoLeaders
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.replica_state import PartitionState
from ottla.seams import Failure, Gate, World
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive, JournalLoss
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.disks.inode import LossPattern
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Death, Machine
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.networks.network import Network
from ottla.sim.networks.node_network import NodeNetwork
from ottla.sim.world import MS, Timeline
from ottla.types import TopicPartition
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import decode_request_header, response_header
from ottla.wire.messages import AlterPartitionRequest, AlterPartitionResponse, LeaderAndIsrRequest, StopReplicaRequest

CONTROLLER = 99
TOPIC_ID = bytes(range(16))
T0 = TopicPartition("t", 0)


class Core:
    """A broker's inside. Implements `ottla.seams.Inputs`."""

    def __init__(self, cluster: Brokers, world: World, process: Any) -> None:
        config, clock = cluster.config, process.clock
        self.process, self.cluster = process, cluster
        node_id = process.machine.node
        on_dir_offline: Forward[[str]] = Forward("a failed log directory")
        base = lay_foundation(replace(config, node_id=node_id), world, ignore, on_dir_offline)
        self.effects, self.hosted, self.alarm = base.effects, base.hosted, base.alarm
        self.purgatory, self.logs = base.purgatory, base.logs
        new_controller: Forward[[]] = Forward("a new controller")
        self.fence = ControlFence(node_id, None, new_controller)
        self.failed_dirs = 0
        self.replicas = build_replicas(base, self.fence, self.topic_config, NoCoordinators(), self.on_dir_failure)
        new_controller.bind(self.replicas.isr_changes.on_new_controller)
        on_dir_offline.bind(self.replicas.on_dir_offline)
        sessions = FetchSessions(clock, world.entropy)
        self.dispatch = Dispatch(world.network, lambda action: action())
        heard = (self.effects.queue_effect, self.dispatch.is_broker, NoLeaders(), None, self.replicas.throttles.leader)
        self.fetch = FetchHandler(world, self.hosted, self.purgatory, sessions, *heard)
        self.dispatch.add_hot(fetch.DECLARATION, self.fetch.on_request)
        self.prepared: list[list[str]] = []
        self.control = ControlHandlers(self.replicas, self.fence, clock, self.purgatory, self.prepare, ignore, ignore)
        log_handlers = LogHandlers(self.hosted, self.purgatory, NoLeaders(), is_broker=self.dispatch.is_broker)
        epochs = EpochHandlers(self.hosted, NoLeaders(), self.replicas.removals, self.dispatch.is_broker)
        self.dispatch.add_handlers([self.control, epochs, log_handlers])

    def topic_config(self, name: str) -> TopicConfig:
        return self.cluster.configs.get(name, TopicConfig())

    def on_dir_failure(self) -> None:
        self.failed_dirs += 1

    def prepare(self, topics: list[str], then: Callable[[], None]) -> None:
        self.prepared.append(topics)
        self.purgatory.continue_after(1, then)

    def start(self) -> None:
        self.logs.load_logs(self.topic_config)
        self.replicas.start_checks()
        self.end_turn()

    def on_frame(self, slot: Any, frame: memoryview) -> Gate:
        gate = self.dispatch.on_frame(slot, frame)
        self.end_turn()
        return gate

    def on_gone(self, peer: Any) -> None:
        self.fetch.on_gone(peer)
        self.end_turn()

    def on_alarm(self) -> None:
        self.alarm.on_fired()
        self.purgatory.on_alarm()
        self.logs.run_due()
        self.end_turn()
        self.alarm.set_next_alarm()

    def end_turn(self) -> None:
        self.effects.drain_effects()
        self.alarm.set_logs_alarm(self.logs.timers.next_ns)

    def run_background(self, budget_ns: int) -> bool:
        return self.logs.run_background(budget_ns)


class Member:
    """One broker: its machine and disk, which outlive its processes."""

    def __init__(self, cluster: Brokers, node_id: int) -> None:
        self.cluster, self.node_id = cluster, node_id
        self.drives = [Drive(name) for name in cluster.config.log_dirs]
        self.faults = [DriveFaults() for _ in self.drives]
        self.machine = Machine(node_id, cluster.timeline, Streams(node_id), self.drives)
        self.machine.loss = (LossPattern.NONE, JournalLoss.ALL)
        cluster.network.machines[node_id] = self.machine
        self.boot()

    def boot(self) -> None:
        """A new process, registered under a new broker epoch."""
        process = self.machine.boot_process()
        shell = NodeNetwork(process, self.cluster.network)
        disks = [SimDisk(drive, faults, process) for drive, faults in zip(self.drives, self.faults, strict=True)]
        world = World(process.clock, process.entropy, disks, shell, SimWorkers(process))
        self.core = process.inputs = Core(self.cluster, world, process)
        self.core.fence.broker_epoch = self.cluster.next_zxid()
        process.post_turn(0, "start", self.core.start)
        shell.start_listening()
        self.cluster.run(10)

    def die(self, death: Death = Death.KILL) -> None:
        process = self.machine.process
        self.machine.end_process(death)
        self.cluster.network.on_process_gone(process, silent=False)

    def turn(self, action: Callable[[], Any]) -> Any:
        """Do something in a turn of this broker; what it gives, or raises as ApiError, comes back."""
        outcome: list[Any] = []

        def act() -> None:
            try:
                outcome.append(action())
            except ApiError as error:
                outcome.append(error)
            self.core.end_turn()

        self.core.process.post_turn(0, "by hand", act)
        self.cluster.run(0)
        if isinstance(outcome[0], ApiError):
            raise outcome[0]
        return outcome[0]

    def partition(self, tp: TopicPartition = T0) -> Partition:
        found = self.core.hosted.find_partition(*tp)
        assert found is not None
        return found

    def produce(self, *values: bytes, tp: TopicPartition = T0, acks: int = 1, **batch: Any) -> Any:
        """One batch."""
        now = self.core.process.clock.now()
        records = [Record(at, now.wall_ms, None, value, ()) for at, value in enumerate(values)]
        content = memoryview(encode_batch(records, **batch))
        return self.turn(lambda: self.partition(tp).leader_role.append(content, acks, self.core.process.clock.now()))

    def leo(self, tp: TopicPartition = T0) -> int:
        return self.partition(tp).log.end_offset

    def hw(self, tp: TopicPartition = T0) -> int:
        return self.partition(tp).high_watermark

    def content(self, tp: TopicPartition = T0) -> bytes:
        """All bytes of the log."""
        log, found = self.partition(tp).log, bytearray()
        for segment in log.segments:
            content = bytearray(segment.size)
            segment.file.read_now(0, memoryview(content))
            found += content
        return bytes(found)

    def values(self, tp: TopicPartition = T0) -> list[bytes | None]:
        content = memoryview(self.content(tp))
        return [
            record.value for pos, _ in batches_of(content) for record in records_of(content, pos, max_bytes=1 << 24)
        ]

    def epochs(self, tp: TopicPartition = T0) -> list[tuple[int, int]]:
        return [tuple(entry) for entry in self.partition(tp).log.epochs.entries]


class Office:
    """The controller's end of the network. Implements what is called of `ottla.seams.Inputs`."""

    def __init__(self, cluster: Brokers) -> None:
        self.cluster = cluster
        self.effects = Effects()
        machine = Machine(CONTROLLER, cluster.timeline, Streams(CONTROLLER), [])
        cluster.network.machines[CONTROLLER] = machine
        self.process = machine.boot_process()
        self.process.inputs = self
        self.shell = NodeNetwork(self.process, cluster.network)
        self.shell.start_listening()
        self.peers = BrokerClient(self.shell, self.process.clock, CONTROLLER)
        self.asked: list[AlterPartitionRequest] = []

    def on_frame(self, slot: Any, frame: memoryview) -> Gate:
        header = decode_request_header(frame)
        assert header.api_key == ApiKey.ALTER_PARTITION
        request, _ = decode(AlterPartitionRequest, header.api_version, frame, header.body_pos)
        self.asked.append(request)
        response = self.cluster.decide(request)
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        self.shell.send_reply(slot, [head, encode_bytes(response, header.api_version)])
        return Gate.NEXT

    def on_gone(self, peer: Any) -> None:
        """Nothing is kept per connection."""

    def end_turn(self) -> None:
        """Nothing is queued."""

    def run_background(self, budget_ns: int) -> bool:
        return False


class Brokers:
    """Brokers 1…n, and what their controller knows."""

    def __init__(
        self,
        count: int = 2,
        properties: dict[str, str] | None = None,
    ) -> None:
        self.timeline = Timeline()
        self.network = Network(self.timeline, Streams(0).named_stream("network"))
        self.config, _ = BrokerConfig.from_properties({"log.dirs": "data", **(properties or {})})
        self.configs: dict[str, TopicConfig] = {}
        self.zxid = 100
        self.controller_epoch = 1
        self.states: dict[TopicPartition, PartitionState] = {}
        self.ids: dict[str, bytes] = {}
        self.office = Office(self)
        self.members: dict[int, Member] = {}
        for node_id in range(1, count + 1):
            self.members[node_id] = Member(self, node_id)

    def __getitem__(self, node_id: int) -> Member:
        return self.members[node_id]

    def next_zxid(self) -> int:
        self.zxid += 1
        return self.zxid

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now_ns + ms * MS)
        for member in self.members.values():
            assert not member.machine.crashes, member.machine.crashes[0]

    def until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> None:
        """Let time pass until something holds."""
        waited = 0
        while not condition():
            self.run(5)
            waited += 5
            assert waited < limit_ms, "it never came to hold"

    # -- orders ------------------------------------------------------------------------------------------------------

    def order(self, node_id: int, request: Any, version: int) -> Any:
        """Send a request of the controller to a broker, and wait for the answer."""
        answers: list[Any] = []
        self.send(node_id, request, version, answers.append)
        self.until(lambda: bool(answers))
        return answers[0]

    def send(self, node_id: int, request: Any, version: int, done: Callable[[Any], None], lane: str = "") -> None:
        key = next(key for key, api in API_TABLE.items() if api.request is type(request))
        assert key == request.API_KEY
        self.office.process.post_turn(
            0, "order", self.office.peers.send_request, node_id, request, version, 30_000, done, lane
        )

    def leader_and_isr(self, node_id: int, *tps: TopicPartition, version: int = 7, **changed: Any) -> Any:
        """A LeaderAndIsr about these partitions for a broker."""
        partition = LeaderAndIsrRequest.LeaderAndIsrPartitionState
        request = LeaderAndIsrRequest(controller_id=CONTROLLER, controller_epoch=self.controller_epoch)
        request.broker_epoch = self[node_id].core.fence.broker_epoch
        for tp in tps:
            state = self.states[tp]
            one = partition(partition_index=tp.partition, controller_epoch=self.controller_epoch)
            one.leader, one.leader_epoch, one.partition_epoch = state.leader, state.leader_epoch, state.partition_epoch
            one.isr, one.replicas, one.is_new = list(state.isr), list(state.replicas), state.is_new
            if version < 2:
                one.topic_name = tp.topic
                request.ungrouped_partition_states.append(one)
            else:
                topic = LeaderAndIsrRequest.LeaderAndIsrTopicState(topic_name=tp.topic, topic_id=self.ids[tp.topic])
                topic.partition_states = [one]
                request.topic_states.append(topic)
        for name, value in changed.items():
            setattr(request, name, value)
        return request

    def send_state(self, node_id: int, *tps: TopicPartition, version: int = 7, **changed: Any) -> list[ErrorCode]:
        """LeaderAndIsr; the outcomes, [the error of the request] if it has one."""
        answer = self.order(node_id, self.leader_and_isr(node_id, *tps, version=version, **changed), version)
        assert not isinstance(answer, Failure), answer
        if answer.error_code:
            return [ErrorCode(answer.error_code)]
        rows = answer.partition_errors or [row for topic in answer.topics for row in topic.partition_errors]
        return [ErrorCode(row.error_code) for row in rows]

    def stop(
        self, node_id: int, *tps: TopicPartition, delete: bool, leader_epoch: int = -2, **changed: Any
    ) -> list[ErrorCode]:
        """StopReplica; the outcomes, [the error of the request] if it has one."""
        state = StopReplicaRequest.StopReplicaPartitionState
        topic = StopReplicaRequest.StopReplicaTopicState
        request = StopReplicaRequest(controller_id=CONTROLLER, controller_epoch=self.controller_epoch)
        request.broker_epoch = self[node_id].core.fence.broker_epoch
        for tp in tps:
            one = state(partition_index=tp.partition, leader_epoch=leader_epoch, delete_partition=delete)
            request.topic_states.append(topic(topic_name=tp.topic, partition_states=[one]))
        for name, value in changed.items():
            setattr(request, name, value)
        answer = self.order(node_id, request, 4)
        if answer.error_code:
            return [ErrorCode(answer.error_code)]
        return [ErrorCode(row.error_code) for row in answer.partition_errors]

    def create(
        self,
        *replicas: int,
        tp: TopicPartition = T0,
        topic_id: bytes = TOPIC_ID,
        isr: tuple[int, ...] | None = None,
        config: TopicConfig | None = None,
    ) -> None:
        """A partition, led by the first of its replicas."""
        self.configs[tp.topic] = config or self.configs.get(tp.topic, TopicConfig())
        self.ids[tp.topic] = topic_id
        self.states[tp] = PartitionState(replicas[0], 0, isr or replicas, 0, replicas, is_new=True)
        for node_id in replicas:
            assert self.send_state(node_id, tp) == [ErrorCode.NONE]
        self.states[tp] = self.states[tp]._replace(is_new=False)

    def elect(
        self, leader: int, isr: tuple[int, ...] | None = None, tp: TopicPartition = T0, inform: bool = True
    ) -> None:
        """Begin a new leader epoch, and send it to every live broker that has a replica."""
        state = self.states[tp]
        self.states[tp] = state._replace(
            leader=leader,
            leader_epoch=state.leader_epoch + 1,
            isr=state.isr if isr is None else isr,
            partition_epoch=state.partition_epoch + 1,
        )
        if inform:
            for node_id in state.replicas:
                if self[node_id].machine.process is not None:
                    assert self.send_state(node_id, tp) == [ErrorCode.NONE]

    def same(self, *nodes: int, tp: TopicPartition = T0) -> bool:
        """Whether these brokers have the same log."""
        contents = [self[node].content(tp) for node in nodes]
        return all(content == contents[0] for content in contents)

    def settled(self, *nodes: int, tp: TopicPartition = T0) -> bool:
        """Whether they do, and all know it committed to its end."""
        ends = {self[node].leo(tp) for node in nodes} | {self[node].hw(tp) for node in nodes}
        return len(ends) == 1 and self.same(*nodes, tp=tp)

    # -- AlterPartition ----------------------------------------------------------------------------------------------

    def decide(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Answer proposals as the controller (KIP-497)."""
        topics = []
        for topic in request.topics:
            name = next(name for name, topic_id in self.ids.items() if topic_id == topic.topic_id)
            rows = [self._judge(TopicPartition(name, one.partition_index), one) for one in topic.partitions]
            topics.append(AlterPartitionResponse.TopicData(topic_id=topic.topic_id, partitions=rows))
        return AlterPartitionResponse(topics=topics)

    def _judge(self, tp: TopicPartition, one: AlterPartitionRequest.PartitionData) -> Any:
        state = self.states[tp]
        row = AlterPartitionResponse.PartitionData(partition_index=tp.partition)
        if one.leader_epoch != state.leader_epoch:
            row.error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif one.partition_epoch != state.partition_epoch:
            row.error_code = ErrorCode.INVALID_UPDATE_VERSION
        else:
            isr = tuple(each.broker_id for each in one.new_isr_with_epochs)
            self.states[tp] = state = state._replace(isr=isr, partition_epoch=state.partition_epoch + 1)
            row.leader_id, row.leader_epoch = state.leader, state.leader_epoch
            row.isr, row.partition_epoch = list(isr), state.partition_epoch
        return row
