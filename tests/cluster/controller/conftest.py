"""Controllers with a real embedded store and simulated time; fake brokers that only obey.

Zone: real.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ottla.broker_client import BrokerClient
from ottla.cluster.controller.controller_election import ControllerElector
from ottla.cluster.image import PartitionImage
from ottla.cluster.store import layout
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.topics import TopicSpec
from ottla.config.broker import BrokerConfig
from ottla.effects import Effects
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Failure, Kind, Op
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Machine
from ottla.sim.world import MS, SECOND, Timeline
from ottla.types import Endpoint, TopicPartition
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import decode_request_header, response_header
from ottla.wire.messages import (
    LeaderAndIsrResponse,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from ottla.znodes.local_session import LocalSession
from ottla.znodes.store import EmbeddedStore

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA = 4, 5, 6


class Shell:
    """The inputs of a process: effects after each turn, alarms to the purgatory."""

    def __init__(self) -> None:
        self.effects = Effects()
        self.purgatory: Purgatory | None = None

    def end_turn(self) -> None:
        self.effects.drain_effects()

    def on_alarm(self) -> None:
        assert self.purgatory is not None
        self.purgatory.on_alarm()
        self.effects.drain_effects()

    def run_background(self, _budget_ns: int) -> bool:
        return False


class Submission(NamedTuple):
    """A multi that a candidate submitted."""

    node: int
    ops: tuple[Op, ...]


class StoreLink:
    """A process's connection to the store: every call and every answer is a turn. Implements MetadataStore."""

    def __init__(self, house: House, process, node: int, on_node=lambda _: None) -> None:
        self.house = house
        self.process = process
        self.node = node
        self.cut: Kind | None = None
        """All requests fail with this kind and do not reach the store."""
        self.delay_ns = 0
        """The delay of every call and every answer."""
        self.lose_answers = 0
        """The number of next multis that are carried out while their answers are lost."""
        self.session = LocalSession(
            house.engine, lambda path: process.post_turn(0, "watch", self._tell, on_node, path), lambda *_: None
        )
        house.in_store(self.session.begin_session)

    def _tell(self, on_node, path: str) -> None:
        on_node(path)
        self.process.inputs.end_turn()

    def _answer(self, done, value) -> None:
        self.process.post_done(self.delay_ns, "store", done, lambda: value)

    def _go(self, done, act) -> None:
        if self.cut is not None:
            self._answer(done, Failure(self.cut, "the way to the store is cut"))
        else:
            self.house.in_store(lambda: act(lambda value: self._answer(done, value)), self.delay_ns)

    def submit_ops(self, lane, ops, done) -> None:
        self.house.submissions.append(Submission(self.node, tuple(ops)))
        if self.lose_answers:
            self.lose_answers -= 1
            real, done = done, lambda _: real(Failure(Kind.UNKNOWN, "the answer was lost"))
        self._go(done, lambda answered: self.session.submit_ops(lane, tuple(ops), answered))

    def get_node(self, path, watch, done) -> None:
        self.house.reads.append(path)
        self._go(done, lambda answered: self.session.get_node(path, watch, answered))

    def get_children(self, path, watch, done) -> None:
        self.house.reads.append(path)
        self._go(done, lambda answered: self.session.get_children(path, watch, answered))


class FakeBroker:
    """A broker that obeys: it stores its updates, and answers correctly, or as the test configures it."""

    def __init__(self, house: House, node: int, **registration) -> None:
        self.house = house
        self.node = node
        self.registration = registration
        self.silent = False
        """Whether it accepts requests and never answers."""
        self.bad_replicas: dict[TopicPartition, int] = {}
        """Partitions with an error code for LeaderAndIsr and StopReplica."""
        self.requests: list = []
        self.partitions: dict[TopicPartition, object] = {}
        """The last states of LeaderAndIsr."""
        self.known: dict[TopicPartition, object] = {}
        """The last states of UpdateMetadata."""
        self.live: list[int] = []
        self.deleted: list[TopicPartition] = []
        self.stopped: list[TopicPartition] = []
        self.controller_epoch = 0
        self.epoch = -1
        self.link: StoreLink | None = None

    def up(self) -> FakeBroker:
        """Register with a new session."""
        self.link = StoreLink(self.house, self.house.process, -self.node)
        self.partitions.clear()
        self.known.clear()
        self.stopped.clear()
        endpoint = Endpoint("PLAINTEXT", self.registration.get("address", f"host{self.node}"), 9092)
        said = self.registration
        lost = said.get("is_blank", False), said.get("incomplete", ())
        features = said.get("features", {})
        node = layout.BrokerNode((endpoint,), said.get("rack"), said.get("host"), *lost, features)
        path = layout.broker_path(self.node)
        self.house.write(Op("ephemeral", path, layout.encode_broker(node, 1)), link=self.link)
        self.epoch = self.house.node(path).czxid
        return self

    def down(self, settle: bool = True) -> None:
        """Lose the session."""
        self.house.in_store(self.link.session.close_session)
        if settle:
            self.house.settle()

    def bounce(self) -> None:
        """Register again before the loss of the session is noticed."""
        self.house.in_store(self.link.session.close_session)
        self.up()

    # -- requests ------------------------------------------------------------------------------------------------

    def take(self, frame: bytes):
        """The encoded answer, None while silent."""
        content = memoryview(bytearray(frame))
        header = decode_request_header(content)
        api = API_TABLE[header.api_key]
        request, end = decode(api.request, header.api_version, content, header.body_pos)
        assert end == len(content)
        self.requests.append(request)
        if self.silent:
            return None
        response = self.obey(request, header.api_key)
        body = encode_bytes(response, header.api_version)
        return response_header(header.api_key, header.api_version, header.correlation_id) + body

    def obey(self, request, key: int):
        answers = {
            LEADER_AND_ISR: (self._lead, LeaderAndIsrResponse),
            STOP_REPLICA: (self._stop, StopReplicaResponse),
            UPDATE_METADATA: (self._note, UpdateMetadataResponse),
        }
        act, response = answers[key]
        if request.broker_epoch < self.epoch:
            return response(error_code=ErrorCode.STALE_BROKER_EPOCH)
        if request.controller_epoch < self.controller_epoch:
            return response(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = request.controller_epoch
        return act(request)

    def _lead(self, request):
        topics = []
        for topic in request.topic_states:
            errors = []
            for state in topic.partition_states:
                tp = TopicPartition(topic.topic_name, state.partition_index)
                code = self.bad_replicas.get(tp, 0)
                if not code:
                    known = self.partitions.get(tp)
                    assert known is None or known.leader_epoch <= state.leader_epoch, "an older leader epoch"
                    self.partitions[tp] = state
                errors.append(
                    LeaderAndIsrResponse.LeaderAndIsrPartitionError(partition_index=tp.partition, error_code=code)
                )
            topics.append(LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
        return LeaderAndIsrResponse(topics=topics)

    def _stop(self, request):
        errors = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                tp = TopicPartition(topic.topic_name, state.partition_index)
                code = self.bad_replicas.get(tp, 0)
                if not code:
                    self.partitions.pop(tp, None)
                    (self.deleted if state.delete_partition else self.stopped).append(tp)
                errors.append(
                    StopReplicaResponse.StopReplicaPartitionError(
                        topic_name=tp.topic, partition_index=tp.partition, error_code=code
                    )
                )
        return StopReplicaResponse(partition_errors=errors)

    def _note(self, request):
        self.live = [broker.id for broker in request.live_brokers]
        for topic in request.topic_states:
            for state in topic.partition_states:
                tp = TopicPartition(topic.topic_name, state.partition_index)
                if state.leader == -2:
                    self.known.pop(tp, None)
                else:
                    self.known[tp] = state
        return UpdateMetadataResponse()


class FakeNetwork:
    """Calls of one process to fake brokers. Implements the part of the seam that a controller needs."""

    def __init__(self, house: House, process) -> None:
        self.house = house
        self.process = process
        self.located: dict[int, tuple[str, int]] = {}

    def set_address(self, node: int, host: str, port: int) -> None:
        self.located[node] = (host, port)

    def call_broker(self, node, frame, deadline_ns, done, lane="") -> None:
        assert node in self.located, f"the address of broker {node} is unknown"
        broker = self.house.brokers.get(node)
        self.house.timeline.schedule_after(MS // 2, "call", self._arrive, broker, frame, deadline_ns, done)

    def _arrive(self, broker, frame, deadline_ns, done) -> None:
        if broker is None or broker.link is None or broker.link.session.id not in self.house.engine.tree.grants:
            self._answer(done, Failure(Kind.NOT_DONE, "the broker is down"))
            return
        answer = broker.take(frame)
        if answer is not None:
            self._answer(done, memoryview(answer))
        else:
            left_ns = deadline_ns - self.process.clock.now().mono_ns
            self.process.post_done(left_ns, "deadline", done, lambda: Failure(Kind.TIMEOUT, "no answer"))

    def _answer(self, done, value) -> None:
        self.process.post_done(MS // 2, "answer", done, lambda: value)


class Candidate:
    """A broker's ControllerElector, in a process of its own."""

    def __init__(self, house: House, node: int, properties=None) -> None:
        self.house = house
        self.node = node
        machine = Machine(100 + node, house.timeline, Streams(node), [])
        self.machine = machine
        self.process = machine.boot_process()
        self.shell = self.process.inputs = Shell()
        self.config, _ = BrokerConfig.from_properties({"auto.leader.rebalance.enable": "false", **(properties or {})})
        self.purgatory = self.shell.purgatory = Purgatory(self.process.clock)
        self.network = FakeNetwork(house, self.process)
        self.open_session()
        self.seat = ControllerElector(
            node,
            self.store,
            self.process.clock,
            self.process.entropy,
            BrokerClient(self.network, self.process.clock, node),
            self.network,
            self.purgatory,
            lambda: self.config,
            self.shell.effects.queue_effect,
        )

    def open_session(self) -> None:
        def on_node(path: str) -> None:
            self.store.on_node_changed(path)

        self.link = StoreLink(self.house, self.process, self.node, on_node)
        self.store = WatchedStore(self.link)

    def turn(self, action) -> None:
        """Run an action in a turn of this process."""

        def run() -> None:
            action()
            self.shell.effects.drain_effects()

        self.process.post_turn(0, "test", run)

    def start(self, epoch: int = 1) -> Candidate:
        self.turn(lambda: self.seat.start_competing(epoch))
        self.house.settle()
        return self

    @property
    def controller(self):
        assert self.seat.controller is not None, "not the controller"
        return self.seat.controller

    def begin(self, ask):
        """Send a request to the controller; the box receives the outcome."""
        box: list = []
        self.turn(lambda: ask(self.controller, box.append))
        return box

    def ask(self, ask):
        """Send a request, run everything, return the outcome; raises an ApiError."""
        box = self.begin(ask)
        self.house.settle()
        assert len(box) == 1, f"{len(box)} answers"
        if isinstance(box[0], ApiError):
            raise box[0]
        return box[0]

    def create(self, name: str, assignment: dict[int, tuple[int, ...]] | None = None, **spec):
        configs = {key.replace("_", "."): value for key, value in spec.pop("configs", {}).items()}
        wanted = TopicSpec(name, assignments=assignment or {}, configs=configs, **spec)
        return self.ask(lambda controller, done: controller.create_topic(wanted, False, 30_000, done))


class House:
    """A store, brokers, and candidates for controller, on one timeline."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.drive = Drive("store")
        self.machine = Machine(1, self.timeline, Streams(1), [self.drive])
        self.process = self.machine.boot_process()
        self.shell = self.process.inputs = Shell()
        disk = SimDisk(self.drive, DriveFaults(), self.process)
        self.engine = EmbeddedStore(disk, self.process.clock, self.shell.effects.queue_effect)
        self.engine.load_files()
        self.submissions: list[Submission] = []
        self.reads: list[str] = []
        self.brokers: dict[int, FakeBroker] = {}
        self.candidates: list[Candidate] = []
        self.hand = StoreLink(self, self.process, 0)
        self.write(*(Op("create", path) for path in layout.PERSISTENT))

    def in_store(self, action, delay_ns: int = 0) -> None:
        """A turn of the store's process."""

        def run() -> None:
            action()
            self.shell.effects.drain_effects()

        self.process.post_turn(delay_ns, "store turn", run)

    def settle(self, seconds: float = 3) -> None:
        """Run all events."""
        self.timeline.run_until(self.timeline.now_ns + int(seconds * SECOND))
        for machine in [self.machine, *(each.machine for each in self.candidates)]:
            assert not machine.crashes, machine.crashes[0]

    # -- the store, by hand ----------------------------------------------------------------------------------------

    def write(self, *ops: Op, link: StoreLink | None = None):
        """Submit a multi as an operator would."""
        box: list = []
        (link or self.hand).submit_ops("hand", ops, box.append)
        self.settle(1)
        if isinstance(box[0], Failure):
            raise box[0]
        return box[0]

    def node(self, path: str):
        """Read a node."""
        return self.engine.tree.get_node(path)

    def data(self, path: str) -> bytes:
        found = self.node(path)
        assert found is not None, f"{path} is not there"
        return found.data

    def state(self, topic: str, partition: int = 0) -> layout.StateNode:
        path = layout.state_path(topic, partition)
        return layout.decode_state(path, self.data(path))

    def topic(self, name: str) -> layout.TopicNode:
        path = layout.topic_path(name)
        return layout.decode_topic(path, self.data(path))

    # -- members ---------------------------------------------------------------------------------------------------

    def broker(self, node: int, **registration) -> FakeBroker:
        """Start a live broker."""
        self.brokers[node] = FakeBroker(self, node, **registration)
        return self.brokers[node].up()

    def candidate(self, node: int, properties=None) -> Candidate:
        """Start a candidate for controller."""
        made = Candidate(self, node, properties)
        self.candidates.append(made)
        return made.start()

    def cluster(self, *nodes: int, properties=None) -> Candidate:
        """Start brokers, and a controller on the first of them."""
        for node in nodes:
            self.broker(node)
        controller = self.candidate(nodes[0], properties)
        assert controller.seat.controller is not None
        return controller

    def check_agreement(self, controller: Candidate) -> None:
        """Check that the last updates of all brokers equal the store."""
        for name, topic in controller.controller.image.topics.items():
            for partition in topic.partitions:
                tp = TopicPartition(name, partition.partition)
                state = self.state(*tp)
                assert (state.leader, state.leader_epoch, state.isr) == (
                    partition.leader,
                    partition.leader_epoch,
                    partition.isr,
                )
                self._check_told(tp, partition)

    def _check_told(self, tp: TopicPartition, partition: PartitionImage) -> None:
        version = self.node(layout.state_path(*tp)).version
        assert partition.state_version == version
        for broker in self.brokers.values():
            if broker.link.session.id not in self.engine.tree.grants:
                continue
            shown = broker.known[tp]
            assert (shown.leader, shown.leader_epoch, shown.zk_version) == (
                partition.leader,
                partition.leader_epoch,
                version,
            )
            if broker.node in partition.replicas and tp not in broker.stopped:
                told = broker.partitions[tp]
                assert (told.leader, told.leader_epoch) == (partition.leader, partition.leader_epoch)


@pytest.fixture
def house() -> House:
    return House()
