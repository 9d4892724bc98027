"""A whole broker on simulated disk and time. Tests send requests over the wire protocol.

Zone: real.
"""

from __future__ import annotations

from tests.ignoring import Listener

from ottla.broker.assembly.root import build_broker
from ottla.config.broker import BrokerConfig
from ottla.record.batch import Record, encode_batch
from ottla.record.log_entries import entries_of, records_at
from ottla.seams import Failure, Kind, Region, World
from ottla.security.broker_proof import BROKER_PRINCIPAL
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Death, Machine
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.world import MS, Timeline
from ottla.types import Endpoint
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.messages import CreateTopicsRequest, FetchRequest, ProduceRequest


class Asker:
    """A connection."""

    listener = "PLAINTEXT"
    principal = "User:ANONYMOUS"
    host = "127.0.0.1"


class Place:
    """The place of one answer."""

    def __init__(self, peer: Asker, key: int, version: int) -> None:
        self.peer = peer
        self.key = key
        self.version = version
        self.answered = False
        self.parts = None


class Caller:
    """Another broker, or the broker itself, at the other end of a lane; authenticated, if the listener demands it."""

    principal = BROKER_PRINCIPAL
    host = "127.0.0.1"

    def __init__(self, listener: str) -> None:
        self.listener = listener


class Call:
    """A request of one broker to another, and the place of its answer."""

    def __init__(self, peer: Caller, frame: bytes, deadline_ns: int, done) -> None:
        self.peer = peer
        self.frame = frame
        self.deadline_ns = deadline_ns
        self.done = done
        self.answered = False
        self.sent = False
        self.line: Line | None = None


class Line:
    """One lane from one process to one node: one request at a time."""

    def __init__(self, network: HandNetwork, node: int) -> None:
        self.network = network
        self.node = node
        self.calls: list[Call] = []
        self.other = None

    def submit(self, frame: bytes, deadline_ns: int, done) -> None:
        peer = Caller("" if self.node == self.network.node_id else "PLAINTEXT")
        call = Call(peer, frame, deadline_ns, done)
        call.line = self
        self.calls.append(call)
        process = self.network.process
        wait = max(0, deadline_ns - process.clock.now().mono_ns)
        process.post_turn(wait, "deadline", self._expire, call)
        if len(self.calls) == 1:
            process.post_turn(DELAY_NS, "send", self._send)

    def _send(self) -> None:
        """Send the first call, if the other broker runs."""
        if not self.calls or self.calls[0].sent:
            return
        other = self.network.wire.get(self.node)
        if other is None or not other.reaches(self.network.node_id):
            self._end(Failure(Kind.NOT_DONE, f"broker {self.node} is not there"))
            return
        call = self.calls[0]
        call.sent = True
        self.other = other
        other.lines[self] = None
        other.process.post_turn(DELAY_NS, "frame", self._arrive, other, call)

    @staticmethod
    def _arrive(other: HandNetwork, call: Call) -> None:
        other.process.inputs.on_frame(call, memoryview(bytearray(call.frame)))

    def answer(self, call: Call, content: bytes) -> None:
        """The other broker has answered: send the next call."""
        self.network.process.post_turn(DELAY_NS, "answer", self._answered, call, content)

    def _answered(self, call: Call, content: bytes) -> None:
        if call in self.calls:
            self.calls.remove(call)
            self.network.process.deliver_completion(call.done, memoryview(content))
            self.network.process.post_turn(0, "send", self._send)

    def _expire(self, call: Call) -> None:
        if call in self.calls:
            self._end(Failure(Kind.TIMEOUT, "no answer in time"))

    def _end(self, failure: Failure) -> None:
        """Fail all calls of this lane. Those that were sent may have taken effect."""
        calls, self.calls = self.calls, []
        for call in calls:
            kind = failure.kind if call.sent or failure.kind is Kind.NOT_DONE else Kind.NOT_DONE
            self.network.process.post_turn(
                0, "failed", self.network.process.deliver_completion, call.done, Failure(kind, str(failure))
            )

    def lost(self) -> None:
        """The other broker has died."""
        self.network.process.post_turn(DELAY_NS, "lost", self._end, Failure(Kind.UNKNOWN, f"broker {self.node} died"))


DELAY_NS = 100_000
"""From one broker to another."""


class HandNetwork:
    """Keeps the responses to clients, and carries requests between brokers."""

    def __init__(self, process, node_id: int = 1, wire: dict[int, HandNetwork] | None = None) -> None:
        self.process = process
        self.node_id = node_id
        self.wire = {} if wire is None else wire
        """The networks of all brokers that can be reached."""
        self.wire[node_id] = self
        self.cut: set[int] = set()
        """Brokers that are cut off: their requests do not arrive, and they get no responses."""
        self.lines: dict[Line, None] = {}
        """Lanes that end here."""
        self._lanes: dict[tuple[int, str], Line] = {}
        self.located: dict[int, tuple[str, int]] = {}
        self.closed: list[str] = []
        self.paused: list[tuple[object, int]] = []
        """Peers whose requests are not read until a time, in nanoseconds of the process's clock."""
        self.report_turn = None
        """Receives the time of turns, if the broker wants it."""

    def reaches(self, sender: int) -> bool:
        """Whether a request of that broker arrives."""
        return sender not in self.cut and (self.process.inputs is not None)

    def call_broker(self, node: int, frame: bytes, deadline_ns: int, done, lane: str = "") -> None:
        line = self._lanes.get((node, lane))
        if line is None:
            line = self._lanes[node, lane] = Line(self, node)
        line.submit(bytes(frame), deadline_ns, done)

    def set_address(self, node: int, host: str, port: int) -> None:
        self.located[node] = (host, port)

    def gone(self) -> None:
        """The process has ended."""
        if self.wire.get(self.node_id) is self:
            del self.wire[self.node_id]
        for line in self.lines:
            line.lost()

    def send_reply(self, slot, parts) -> None:
        assert not slot.answered, "answered twice"
        slot.answered = True
        slot.parts = [bytes_of(part) for part in parts]
        if isinstance(slot, Call) and slot.line.network.node_id in self.cut:
            slot.line.lost()
        elif isinstance(slot, Call):
            slot.line.answer(slot, b"".join(slot.parts))

    def set_frame_bounds(self, peer, least: int, most: int | None) -> None:
        peer.frame_bounds = least, most

    def close_connection(self, peer, why: str) -> None:
        self.closed.append(why)

    def pause_reading(self, peer, until_ns: int) -> None:
        self.paused.append((peer, until_ns))

    def measure_turns(self, report) -> None:
        self.report_turn = report

    def hold_frame(self, slot, frame: memoryview) -> memoryview:
        return memoryview(bytearray(frame))

    def open_gate(self, slot) -> None:
        """Nothing to do: the gates of these clients are always open."""


def bytes_of(part) -> bytes:
    if not isinstance(part, Region):
        return bytes(part)
    assert part.generation == part.file.generation
    content = bytearray(part.size)
    assert part.file.read_now(part.pos, memoryview(content)) == part.size
    return bytes(content)


class Node:
    """One broker and its clients."""

    broker_secret: bytes | None = None
    """The secret of its cluster's brokers."""

    def __init__(self, properties: dict[str, str] | None = None, timeline: Timeline | None = None) -> None:
        self.properties = {"log.dirs": "data", "node.id": "1", **(properties or {})}
        self.node_id = int(self.properties["node.id"])
        self.timeline = timeline or Timeline()
        self.drive = Drive("data")
        self.faults = DriveFaults()
        self.machine = Machine(self.node_id, self.timeline, Streams(self.node_id), [self.drive])
        self.machine.on_end.append(lambda *_: self.network.gone())
        self.peer = Asker()
        if timeline is None:
            self.boot()

    def boot(self, ready: bool = True) -> None:
        """Start, and wait until the broker is ready or has had time to fail."""
        self.start()
        self.pass_ms(5000)
        assert self.broker.ready == ready, self.broker.failed

    def start(self) -> None:
        config, _ = BrokerConfig.from_properties(self.properties)
        self.process = self.machine.boot_process()
        self.network = HandNetwork(self.process, self.node_id, self.wire())
        self.disk = SimDisk(self.drive, self.faults, self.process)
        world = World(self.process.clock, self.process.entropy, [self.disk], self.network, SimWorkers(self.process))
        self.listener = Listener()
        world = world._replace(store=self.open_store(), broker_secret=self.broker_secret)
        self.broker = build_broker(config, world, self.listener)
        self.process.inputs = self.broker
        self.process.post_turn(0, "start", self.broker.start_broker, self.endpoints())

    def endpoints(self) -> list[Endpoint]:
        """The endpoints that the broker advertises."""
        return [Endpoint("PLAINTEXT", self.host, 9092)]

    @property
    def host(self) -> str:
        """The host of that endpoint."""
        return "here"

    def wire(self) -> dict[int, HandNetwork]:
        """The brokers that can be called."""
        return {}

    def open_store(self):
        """A metadata store outside; None: the broker's own."""
        return

    def restart(self, death: Death = Death.KILL) -> None:
        self.machine.end_process(death)
        self.boot()

    def restart_without_waiting(self) -> None:
        """Kill the broker and begin its restart."""
        self.machine.end_process(Death.KILL)
        self.start()

    def files(self) -> list[str]:
        """Every file of the log directory."""
        return [path for path, _ in self.drive.walk_files()]

    def read(self, path: str) -> bytes:
        """A file's content."""
        file = self.disk.open(path, create=False)
        content = bytearray(file.size)
        file.read_now(0, memoryview(content))
        return bytes(content)

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now_ns + ms * MS)
        assert not self.machine.crashes, self.machine.crashes[0]

    def send(self, request, version: int, peer: Asker | None = None, number: int = 7) -> Place:
        """Send one request in a turn of its own. The answer may come later."""
        key = next(key for key, api in API_TABLE.items() if api.request is type(request))
        frame = bytearray(encode_request_header(key, version, number, "hand") + encode_bytes(request, version))
        place = Place(peer or self.peer, key, version)

        def turn() -> None:
            place.gate = self.broker.on_frame(place, memoryview(frame))

        self.process.post_turn(0, "frame", turn)
        self.pass_ms(0)
        return place

    def answer(self, place: Place):
        """The decoded answer. Time passes until it arrives."""
        waited = 0
        while not place.answered:
            self.pass_ms(10)
            waited += 10
            assert waited < 60_000, "no answer in a minute"
        content = memoryview(b"".join(place.parts))
        response, end = decode(
            API_TABLE[place.key].response,
            place.version,
            content,
            response_body_pos(place.key, place.version, content),
        )
        assert end == len(content)
        return response

    def ask(self, request, version: int):
        """Send a request and return its answer."""
        return self.answer(self.send(request, version))

    # -- common requests ---------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        creatable = CreateTopicsRequest.CreatableTopic
        setting = CreateTopicsRequest.CreatableTopicConfig
        topic = creatable(name=name, num_partitions=partitions, replication_factor=1)
        topic.configs = [setting(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        response = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5)
        assert response.topics[0].error_code == 0, response.topics[0].error_message

    def topic_id(self, name: str) -> bytes:
        return self.broker.cluster.image.topics[name].topic_id

    def produce_request(self, name: str, *values: bytes, acks: int = -1, partition: int = 0, **batch) -> ProduceRequest:
        now = self.process.clock.now().wall_ms
        records = [Record(at, now, None, value, ()) for at, value in enumerate(values)]
        data = ProduceRequest.PartitionProduceData(index=partition)
        data.records = memoryview(bytes(encode_batch(records, **batch))) if values else None
        topic = ProduceRequest.TopicProduceData(name=name, partition_data=[data])
        return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])

    def produce(self, name: str, *values: bytes, version: int = 9, **options):
        """The answer for the one partition."""
        request = self.produce_request(name, *values, **options)
        return self.ask(request, version).responses[0].partition_responses[0]

    def fetch_request(
        self, name: str, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1, **more
    ) -> FetchRequest:
        partition = FetchRequest.FetchPartition(partition=more.pop("partition", 0), fetch_offset=offset)
        partition.partition_max_bytes = more.pop("partition_max_bytes", 1 << 20)
        partition.current_leader_epoch = more.pop("leader_epoch", -1)
        topic = FetchRequest.FetchTopic(topic=name, topic_id=more.pop("topic_id", bytes(16)), partitions=[partition])
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=[topic])
        request.max_bytes = more.pop("max_bytes", 1 << 20)
        for key, value in more.items():
            setattr(request, key, value)
        return request

    def fetch(self, name: str, offset: int, version: int = 12, **options):
        """The answer for the one partition."""
        return self.ask(self.fetch_request(name, offset, **options), version).responses[0].partitions[0]

    def values(self, name: str, offset: int = 0, **options) -> list[bytes | None]:
        """All values from an offset on."""
        return [record.value for record in records(self.fetch(name, offset, **options).records)]


def records(content) -> list[Record]:
    content = memoryview(bytes(content or b""))
    found: list[Record] = []
    for pos, _ in entries_of(content):
        found += records_at(content, pos, max_bytes=1 << 24)
    return found
