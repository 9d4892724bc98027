"""Three whole brokers on one timeline, with a simulated metadata store. Tests send requests over the wire protocol.

Zone: real.
"""

from __future__ import annotations

from tests.handnode import Node

from ottla.sim.disks.drive import Drive
from ottla.sim.entropy import Streams
from ottla.sim.machines.ensemble import Ensemble
from ottla.sim.machines.machine import Death
from ottla.sim.machines.store import SimStore
from ottla.sim.networks.network import Network
from ottla.sim.world import MS, SECOND, Timeline
from ottla.wire.messages import CreateTopicsRequest, DeleteTopicsRequest

SESSION_NS = 2 * SECOND


class Member(Node):
    """One broker of several."""

    def __init__(self, cluster: HandCluster, node_id: int, properties: dict[str, str]) -> None:
        self.cluster = cluster
        self.broker_secret = cluster.broker_secret
        super().__init__({**properties, "node.id": str(node_id)}, cluster.timeline)

    @property
    def host(self) -> str:
        return f"host{self.node_id}"

    @property
    def up(self) -> bool:
        """Whether the broker runs and serves clients."""
        return self.machine.process is not None and self.broker.ready

    @property
    def is_controller(self) -> bool:
        """Whether the broker is the controller."""
        return self.up and self.broker.is_controller

    def wire(self):
        return self.cluster.wire

    def open_store(self):
        self.store = SimStore(self.process, self.cluster.ensemble, SESSION_NS)
        self.process.post_turn(0, "store", self.store.start_session)
        return self.store

    def kill(self, death: Death = Death.KILL) -> None:
        """Kill the process."""
        self.machine.end_process(death)

    def replace_disk(self) -> None:
        """Replace the disk by an empty one, while no process runs."""
        self.drive = Drive("data")
        self.machine.drives = [self.drive]

    def begin_stop(self) -> list[object]:
        """Begin a clean stop. The list gets the last messages of the broker."""
        told: list[object] = []
        self.process.post_turn(0, "stop", self.broker.stop_broker, told.append)
        return told

    def end(self) -> None:
        """The process of a broker that has stopped ends."""
        self.store.end_session()
        self.machine.end_process(Death.STOP)

    def stop(self) -> list[object]:
        """Stop the broker cleanly. Returns its last messages."""
        told = self.begin_stop()
        self.cluster.until(lambda: bool(told), "the broker stops")
        self.end()
        return told

    def partition(self, name: str, index: int = 0):
        """The replica on this broker."""
        return self.broker.hosted.find_partition(name, index)

    def log_bytes(self, name: str, index: int = 0) -> bytes:
        """All segments of the replica's log."""
        start = f"{name}-{index}/"
        return b"".join(self.read(path) for path in self.files() if path.startswith(start) and path.endswith(".log"))


class HandCluster:
    """Brokers 1, 2 and 3."""

    def __init__(
        self, properties: dict[str, str] | None = None, brokers: int = 3, broker_secret: bytes | None = None
    ) -> None:
        self.broker_secret = broker_secret
        self.timeline = Timeline()
        streams = Streams(1)
        self.ensemble = Ensemble(
            self.timeline, Network(self.timeline, streams.named_stream("net")), streams.named_stream("store")
        )
        self.wire = {}
        self.members = {number: Member(self, number, dict(properties or {})) for number in range(1, brokers + 1)}
        for member in self.members.values():
            member.start()
        self.until(lambda: all(member.up for member in self.members.values()), "all brokers are ready")
        self.until(lambda: all(len(each.broker.cluster.image.brokers) == brokers for each in self), "all know all")

    def __iter__(self):
        """The brokers that run."""
        return iter([member for member in self.members.values() if member.machine.process is not None])

    def __getitem__(self, number: int) -> Member:
        return self.members[number]

    def pass_ms(self, ms: int) -> None:
        """Let time pass for all."""
        self.timeline.run_until(self.timeline.now_ns + ms * MS)
        for member in self.members.values():
            assert not member.machine.crashes, member.machine.crashes[0]

    def until(self, holds, what: str, limit_ms: int = 60_000):
        """Let time pass until the condition is true. Returns its value."""
        waited = 0
        while not (value := holds()):
            self.pass_ms(10)
            waited += 10
            assert waited < limit_ms, f"never: {what}"
        return value

    # -- common steps ---------------------------------------------------------------------------------------------

    @property
    def controller(self) -> Member:
        """The member that is the controller now."""
        return self.until(lambda: next((each for each in self if each.is_controller), None), "there is a controller")

    def create(self, name: str, *assignment: tuple[int, ...], **configs: str) -> None:
        """Create a topic with these replicas per partition."""
        creatable = CreateTopicsRequest.CreatableTopic
        setting = CreateTopicsRequest.CreatableTopicConfig
        topic = creatable(name=name, num_partitions=-1, replication_factor=-1)
        topic.assignments = [
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(assignment)
        ]
        topic.configs = [setting(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        response = self.controller.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 5)
        assert response.topics[0].error_code == 0, response.topics[0]

    def delete(self, name: str) -> None:
        """Delete a topic."""
        self.controller.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 5)

    def leader(self, name: str, index: int = 0, other_than: int = 0) -> Member:
        """The live member that leads a partition, once there is one."""

        def found() -> Member | None:
            for member in self:
                partition = member.partition(name, index)
                if partition is not None and partition.is_leader and member.node_id != other_than:
                    return member
            return None

        return self.until(found, f"{name}-{index} has a leader")

    def in_sync(self, name: str, *isr: int, index: int = 0) -> None:
        """Wait until the leader has this ISR confirmed."""
        self.until(
            lambda: sorted(self.leader(name, index).partition(name, index).isr) == sorted(isr),
            f"the ISR of {name}-{index} is {isr}",
        )
