"""Partitions, coordinators and leaders as a broker wires them, on a simulated disk; a network that keeps requests.

Zone: deterministic. The broker's own objects, without sockets, elections and a metadata store: the real dispatch and
handlers, and the logs of one partition of `__transaction_state`, of `__consumer_offsets`, and of a topic. Each of the
three has another broker number as its leader, so that their requests to each other go over the network. A follower of
each acknowledges at once, unless it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from ottla.broker.coordinators import BrokerCoordinators
from ottla.broker.dispatch import Dispatch
from ottla.broker.group_txn_verification import GroupTxnVerification
from ottla.broker.transaction_cluster_view import TransactionClusterView
from ottla.broker_client import BrokerClient
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import CONSUMER_OFFSETS, TRANSACTION_STATE, PartitionImage, TopicImage
from ottla.cluster.leaders import ImageLeaders
from ottla.cluster.producer_ids import ProducerIds
from ottla.cluster.topic_requests import TopicRequests
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.effects import Effects
from ottla.errors import ApiError
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.marker_handlers import MarkerHandlers
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.replica_state import IsrProposal, PartitionState
from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.produce import produce
from ottla.replication.produce.produce import ProduceHandler
from ottla.replication.produce.verifier import Verifier
from ottla.seams import Done, Failure, Kind, Network, Part, World
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Machine
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.world import MS, Timeline
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode_bytes
from ottla.wire.header import decode_request_header, encode_request_header
from ottla.wire.schema import Message

STATE: Final = TopicPartition(TRANSACTION_STATE, 0)
OFFSETS: Final = TopicPartition(CONSUMER_OFFSETS, 0)
DATA: Final = TopicPartition("t", 0)
PLACES: Final = (STATE, OFFSETS, DATA)
"""Led by the brokers 1, 2 and 3."""
_FOLLOWER: Final = 9
_TOPIC: Final = TopicConfig(min_insync_replicas=1, segment_index_bytes=1024)
_CONFIG: Final = BrokerConfig.from_properties({"log.dirs": "data", "node.id": "1"})[0]


class Peer:
    """The sender of a request: a client, or a broker (without a listener)."""

    principal = "User:ANONYMOUS"
    host = "127.0.0.1"

    def __init__(self, listener: str) -> None:
        self.listener = listener


_CLIENT: Final = Peer("CLIENTS")
_BROKER: Final = Peer("")


class Sent:
    """A request in flight, and the receiver of its answer."""

    __slots__ = ("frame", "lane", "name", "on_answer", "peer")

    def __init__(self, peer: Peer, frame: bytes, name: str, lane: tuple[int, str], on_answer: Callable[[Any], None]):
        self.peer = peer
        self.frame = frame
        self.name = name
        self.lane = lane
        """Node and lane: requests of brokers in one lane arrive in order."""
        self.on_answer = on_answer
        """Called with the bytes of the answer, or a Failure."""

    @property
    def by_client(self) -> bool:
        """Whether a client sent it."""
        return self.peer is _CLIENT


class _Contact:
    """The fetch session of the follower."""

    def __init__(self) -> None:
        self.used_ns = self.previous_ns = -1
        self.is_requested = True

    def on_replaced(self) -> None:
        """Does nothing: there is only one session."""


class _Ids:
    """Allocates producer ids."""

    def __init__(self) -> None:
        self._next = 1000

    def take_producer_id(self, done: Done[int]) -> None:
        """Allocate the next id."""
        self._next += 1
        done(self._next - 1)


class _Topics:
    """Finds internal topics; they exist already."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def internal(self, name: str, done: Callable[[TopicImage | ApiError], None]) -> None:
        """Pass the topic to `done`."""
        done(self._cluster.image.topics[name])


class Harness:
    """Implements `Inputs`, and the parts of `Network` that are used."""

    def __init__(self) -> None:
        self.outbox: list[Sent] = []
        """Requests that were sent and have not arrived, oldest first."""
        self.timeline = Timeline()
        self._machine = Machine(1, self.timeline, Streams(1), [Drive("data")])
        self.process = self._machine.boot_process()
        self.clock = self.process.clock
        self._effects = Effects()
        self.purgatory = Purgatory(self.clock)
        self.held: TopicPartition | None = None
        """The partition whose follower does not acknowledge."""
        self._contact = _Contact()
        self._epoch = 0
        self._correlation = 0
        self._wire_broker()
        self.process.inputs = cast("Any", self)
        for place in PLACES:
            self._make_leader(place)
        self.pass_ms(10)

    def _wire_broker(self) -> None:
        """Create and connect the objects, as `Broker` does."""
        disk = SimDisk(self._machine.drives[0], DriveFaults(), self.process)
        network = cast("Network", self)
        world = World(self.clock, self.process.entropy, [disk], network, SimWorkers(self.process))
        later = self._effects.queue_effect
        self.hosted = PartitionRegistry()
        self.cluster = Cluster(_CONFIG, self.purgatory)
        leaders = ImageLeaders(lambda: self.cluster.image)
        peers = BrokerClient(network, self.clock, 1)
        self.verifier = verifier = Verifier(
            peers, self.clock, self.purgatory, later, lambda name: leaders.coordinator_of(TRANSACTION_STATE, name)
        )
        self.shared = PartitionContext(self._on_event)
        self.shared.verifies = True
        surroundings = TransactionClusterView(
            self.cluster, self.hosted, cast("TopicRequests", _Topics(self.cluster)), self.clock
        )
        self.coordinators = BrokerCoordinators(
            self.cluster,
            world,
            self.purgatory,
            self._effects,
            self.shared,
            peers,
            cast("ProducerIds", _Ids()),
            surroundings,
            GroupTxnVerification(self.hosted, verifier),
        )
        self._dispatch = Dispatch(network, lambda action: action(), "BROKERS")
        handler = ProduceHandler(world, self.hosted, self.purgatory, leaders, verifier)
        self._dispatch.add_hot(produce.DECLARATION, handler.on_request)
        markers = MarkerHandlers(self.hosted, self.purgatory, self.clock, leaders, self._dispatch.is_broker, 30_000)
        self._dispatch.add_handlers([markers, *self.coordinators.handler_objects()])
        self._host_partitions(LogManager([disk], self.clock, self.process.entropy, _CONFIG))

    def _on_event(self, key: object) -> None:
        self.purgatory.check_watchers(cast("Any", key))

    def _host_partitions(self, logs: LogManager) -> None:
        logs.load_logs(lambda _: _TOPIC)
        topics = []
        for node, (name, index) in enumerate(PLACES, 1):
            topic_id = node.to_bytes(16, "big")
            log = logs.create_log(TopicPartition(name, index), topic_id, _TOPIC)
            partition = Partition(log, _TOPIC, 1, self, self.shared)
            self.hosted.get_or_add_topic(name, topic_id).partitions[index] = partition
            image = PartitionImage(index, node, 0, (node, _FOLLOWER), (node, _FOLLOWER))
            topics.append(TopicImage(name, topic_id, (image,), {}, _TOPIC))
        self.cluster.image = self.cluster.image.with_topics(*topics)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def on_alarm(self) -> None:
        """An alarm of the purgatory is due."""
        self.purgatory.on_alarm()
        self.end_turn()

    def end_turn(self) -> None:
        """End a turn: drain its effects, and let the followers fetch."""
        self._effects.drain_effects()
        self._replicate_all()

    def run_background(self, _budget_ns: int) -> bool:
        """There is no background work."""
        return False

    def run_turn(self, action: Callable[[], object]) -> None:
        """Run one input now."""

        def run() -> None:
            action()
            self.end_turn()

        self.process.post_turn(0, "input", run)
        self.pass_ms(0)

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now_ns + ms * MS)
        self.raise_errors()

    def wait_while(self, waiting: Callable[[], bool], ms: int) -> None:
        """Let time pass while `waiting()` holds, at most `ms`."""
        limit = self.timeline.now_ns + ms * MS
        if not self.timeline.run_while(waiting, limit):
            self.timeline.run_until(limit)
        self.raise_errors()

    def raise_errors(self) -> None:
        """Raises AssertionError if an exception has left a turn."""
        assert not self._machine.crashes, self._machine.crashes[0]

    # -- followers and failovers ---------------------------------------------------------------------------------------

    def find_partition(self, place: TopicPartition) -> Partition:
        """The hosted partition of that place."""
        found = self.hosted.find_partition(*place)
        assert found is not None, f"{place} is hosted here"
        return found

    def _replicate_all(self) -> None:
        """Let all followers catch up; effects of that belong to the same turn."""
        again = True
        while again:
            again = False
            for place in PLACES:
                partition = self.find_partition(place)
                if place != self.held and partition.is_leader and partition.high_watermark < partition.log.end_offset:
                    self._fetch_partition(partition)
                    again = True
            self._effects.drain_effects()

    def _fetch_partition(self, partition: Partition) -> None:
        end, now = partition.log.end_offset, self.clock.now()
        partition.note_fetch(_FOLLOWER, 1, partition.leader_epoch, end, -1, 0, now, cast("Any", self._contact))

    def propose_isr(self, partition: Partition, proposal: IsrProposal) -> None:
        """Ignored: the ISR does not change."""

    def _next_state(self, leader: int) -> PartitionState:
        self._epoch += 1
        return PartitionState(leader, self._epoch, (1, _FOLLOWER), self._epoch, (1, _FOLLOWER))

    def _make_leader(self, place: TopicPartition) -> None:
        self.run_turn(lambda: self.find_partition(place).make_leader(self._next_state(1), self.clock.now()))

    def has_uncommitted(self, place: TopicPartition) -> bool:
        """Whether the log has records that its follower does not have."""
        partition = self.find_partition(place)
        return partition.high_watermark < partition.log.end_offset

    def fail_over(self, place: TopicPartition, lose: bool) -> None:
        """Replace the leader, in a new epoch. `lose`: the new one lacks the uncommitted records."""
        partition = self.find_partition(place)
        self.run_turn(lambda: partition.make_follower(self._next_state(_FOLLOWER), self.clock.now()))
        if lose:
            self.run_turn(lambda: partition.truncate_to(partition.high_watermark))
        self.held = None
        self._make_leader(place)

    # -- the network ---------------------------------------------------------------------------------------------------

    def send_request(self, request: Message, version: int, name: str, on_answer: Callable[[Any], None]) -> None:
        """A client sends a request."""
        self._correlation += 1
        head = encode_request_header(request.API_KEY, version, self._correlation, "client")
        self.outbox.append(Sent(_CLIENT, head + encode_bytes(request, version), name, (0, ""), on_answer))

    def call_broker(
        self, node: int, frame: bytes, _deadline_ns: int, done: Callable[[Any], None], lane: str = ""
    ) -> None:
        """A broker sends a request to another one."""
        key = decode_request_header(memoryview(frame)).api_key

        def on_response(answer: Any) -> None:
            self.process.post_turn(0, "answer", self.process.deliver_completion, done, answer)

        self.outbox.append(Sent(_BROKER, frame, ApiKey(key).name, (node, lane), on_response))

    def deliver_request(self, sent: Sent) -> None:
        """Deliver a request."""
        self.run_turn(lambda: self._dispatch.on_frame(cast("Any", sent), memoryview(bytearray(sent.frame))))

    def time_out(self, sent: Sent) -> None:
        """The sender of a request gets a timeout."""
        sent.on_answer(Failure(Kind.TIMEOUT, "no answer in time"))
        self.pass_ms(0)

    def send_reply(self, slot: Any, parts: Sequence[Part]) -> None:
        """Pass an answer to the sender of the request."""
        slot.on_answer(memoryview(b"".join(bytes(cast("Any", part)) for part in parts)))

    def hold_frame(self, _slot: object, frame: memoryview) -> memoryview:
        """Return a copy of the frame, which stays valid."""
        return memoryview(bytearray(frame))

    def open_gate(self, _slot: object) -> None:
        """Does nothing: these senders have no gates."""

    def close_connection(self, _peer: object, why: str) -> None:
        """Raises AssertionError: all frames here are well-formed, so the broker has no reason to close."""
        raise AssertionError(why)
