"""A client of a cluster finds leaders and the controller, and uses the newest leader epoch.

Zone: real.
"""

from __future__ import annotations

from ottla.seams import Gate
from ottla.sim.cluster.client import METADATA_VERSION, ClusterClient
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Machine
from ottla.sim.networks.network import Network
from ottla.sim.networks.wire_client import CONTROLLER
from ottla.sim.world import SECOND, Timeline
from ottla.wire.codec import encode_bytes
from ottla.wire.header import response_header
from ottla.wire.messages import InitProducerIdRequest, InitProducerIdResponse, MetadataResponse

TOPIC_ID = bytes(range(16))


class Answering:
    """The inputs of a broker that answers Metadata with a configured answer, and counts other requests."""

    def __init__(self, shell) -> None:
        self.shell = shell
        self.leader, self.epoch, self.controller = 1, 0, 1
        self.others = 0

    def on_frame(self, slot, frame):
        key = int.from_bytes(frame[:2], "big")
        correlation = int.from_bytes(frame[4:8], "big")
        if key == MetadataResponse.API_KEY:
            version, response = METADATA_VERSION, self._metadata()
        else:
            self.others += 1
            version, response = 2, InitProducerIdResponse(producer_id=5, producer_epoch=0)
        head = response_header(key, version, correlation)
        self.shell.send_reply(slot, [head + encode_bytes(response, version)])
        return Gate.NEXT

    def _metadata(self):
        row = MetadataResponse.MetadataResponsePartition(
            partition_index=0, leader_id=self.leader, leader_epoch=self.epoch, replica_nodes=[1, 2], isr_nodes=[1, 2]
        )
        topic = MetadataResponse.MetadataResponseTopic(name="t", topic_id=TOPIC_ID, partitions=[row])
        return MetadataResponse(controller_id=self.controller, topics=[topic])

    def end_turn(self): ...

    def on_gone(self, peer): ...

    def run_background(self, _budget_ns):
        return False


class World:
    def __init__(self) -> None:
        self.timeline = Timeline()
        streams = Streams(1)
        self.network = Network(self.timeline, streams.named_stream("net"))
        self.brokers = {}
        for number in (1, 2):
            machine = Machine(number, self.timeline, streams.scoped_streams(f"node{number}"), [])
            process = machine.boot_process()
            shell = self.network.attach_process(process)
            self.brokers[number] = process.inputs = Answering(shell)
            self.network.start_listening(shell)
        self.noted = []
        note = lambda response, node: self.noted.append(node)  # noqa: E731
        self.client = ClusterClient(self.network, "client", [1, 2], streams.named_stream("client"), note)

    def tell(self, leader, epoch, controller=1):
        for broker in self.brokers.values():
            broker.leader, broker.epoch, broker.controller = leader, epoch, controller

    def learn(self):
        before = len(self.noted)
        self.client.mark_metadata_stale()
        assert self.timeline.run_while(lambda: len(self.noted) == before, self.timeline.now_ns + SECOND)

    def ask(self, route):
        outcomes = []
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        self.client.send_request(request, 2, InitProducerIdResponse, lambda *answer: outcomes.append(answer), route)
        assert self.timeline.run_while(lambda: not outcomes, self.timeline.now_ns + SECOND)
        return outcomes[0]


def test_it_asks_the_leader_and_follows_a_new_one():
    world = World()
    world.learn()
    assert world.ask(("t", 0))[1] == 1
    world.tell(2, 1, controller=2)
    world.learn()
    assert world.ask(("t", 0))[1] == 2
    assert world.ask(CONTROLLER)[1] == 2
    assert [broker.others for broker in world.brokers.values()] == [1, 2]


def test_an_older_epoch_is_not_believed():
    world = World()
    world.tell(2, 5)
    world.learn()
    world.tell(1, 4)
    world.learn()
    assert world.client.view["t", 0].leader == 2


def test_nobody_to_ask_is_no_answer_and_a_look_at_metadata():
    world = World()
    assert world.ask(("t", 0)) == (None, 0)
    world.timeline.run_until(world.timeline.now_ns + SECOND)
    assert world.ask(("t", 0))[1] == 1
