"""One simulated broker: its machine, its drives, its lives.

Zone: deterministic. Starts the real `Broker` on simulated seams, stops it cleanly, kills it, and notes in the history
the data that each death may have cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.broker.assembly.root import build_broker
from ottla.broker.broker import Broker
from ottla.broker.listener import BrokerListener
from ottla.config.broker import BrokerConfig
from ottla.seams import Failure, World
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.disks.durable_offsets import durable_offsets
from ottla.sim.entropy import Streams
from ottla.sim.history import History, Loss
from ottla.sim.machines.machine import Death, Machine, Process
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.networks.network import Network
from ottla.sim.networks.node_network import BROKERS, NodeNetwork
from ottla.sim.world import MS, Timeline
from ottla.types import Endpoint

DRAIN_NS: Final = 100 * MS
"""Time between the end of listening and the stop of the broker."""
LOOK_NS: Final = 20 * MS
"""Interval of checks whether a starting broker has failed."""


class SimNode:
    """A broker that can be started, stopped and killed."""

    def __init__(
        self,
        node: int,
        timeline: Timeline,
        streams: Streams,
        network: Network,
        history: History,
        properties: Mapping[str, str],
    ) -> None:
        self.timeline = timeline
        self.network = network
        self.history = history
        self.drives = [Drive(name) for name in properties["log.dirs"].split(",")]
        sync_mean_ns = streams.named_stream("config").choice((2, 10, 50)) * MS
        self.faults = [DriveFaults(sync_mean_ns=sync_mean_ns) for _ in self.drives]
        self.machine = Machine(node, timeline, streams.scoped_streams(f"node{node}"), self.drives)
        self.machine.on_end.append(self._on_ended)
        network.machines[node] = self.machine
        # Without a reserve, because a full drive of the simulator is full to the last byte.
        self.properties = {"ottla.log.dir.reserve.bytes": "0", **properties, "node.id": str(node)}
        """The broker's configuration."""
        self.config, _ = BrokerConfig.from_properties(self.properties)
        self.broker: Broker | None = None
        self.recoveries = 0
        """Starts after an unclean end in which the broker became ready."""
        self._topic_ids: dict[str, bytes] = {}
        self._unclean = False
        self.stopping = False
        """It is stopping, and has not ended yet."""

    @property
    def is_listening(self) -> bool:
        """Whether clients can connect."""
        return self.machine.node in self.network.listening

    # ---- start ----

    def start_broker(self) -> None:
        """Boot a new process; it accepts connections, also its own, when its broker reports that it listens."""
        if self.machine.process is not None:
            return
        for faults in self.faults:
            faults.repair_device()
        process = self.machine.boot_process()
        shell = NodeNetwork(process, self.network)
        process.post_turn(20 * MS, "start", self._start_process, process, shell, self._make_world(process, shell))

    def _make_world(self, process: Process, shell: NodeNetwork) -> World:
        disks = [SimDisk(drive, faults, process) for drive, faults in zip(self.drives, self.faults, strict=True)]
        return World(process.clock, process.entropy, disks, shell, SimWorkers(process))

    def _start_process(self, process: Process, shell: NodeNetwork, world: World) -> None:
        listener = _NodeListener(self, process, shell)
        self.broker = broker = self._build_broker(world, listener)
        process.inputs = broker
        self.timeline.schedule_after(LOOK_NS, "has it failed", self._check_start, process, broker)
        broker.start_broker(self._endpoints())
        self._on_started(shell)

    def _build_broker(self, world: World, listener: BrokerListener) -> Broker:
        return build_broker(self.config, world, listener)

    def _endpoints(self) -> list[Endpoint]:
        """The listeners that the broker registers."""
        return [Endpoint(BROKERS, f"node{self.machine.node}", 9092)]

    def _on_started(self, shell: NodeNetwork) -> None:
        """Hook after the start of the broker; a single broker needs nothing here."""

    def _check_start(self, process: Process, broker: Broker) -> None:
        """End the process if its broker has failed to start; else check again later."""
        if not process.alive or process.serving:
            return
        if broker.failed is None:
            self.timeline.schedule_after(LOOK_NS, "has it failed", self._check_start, process, broker)
            return
        self.timeline.trace_fact(f"node {self.machine.node} cannot start: {broker.failed}")
        self.machine.end_process(Death.KILL)

    def on_listening(self, process: Process, shell: NodeNetwork) -> None:
        """Accept connections."""
        if process.alive:
            shell.start_listening()

    def on_ready(self, process: Process) -> None:
        """Note that the broker serves clients."""
        if process.alive:
            process.serving = True
            self.timeline.trace_fact(f"node {self.machine.node} ready, life {process.life}")
            self.recoveries += self._unclean
            self._unclean = False

    # ---- ends ----

    def stop_broker(self) -> None:
        """Clean shutdown, as after SIGTERM."""
        process, broker = self.machine.process, self.broker
        if process is None or broker is None or not broker.ready or self.stopping:
            return
        self.stopping = True
        shell = self.network.listening.pop(self.machine.node, None)
        if isinstance(shell, NodeNetwork):
            shell.draining = True
        process.post_turn(DRAIN_NS, "stop", broker.stop_broker, lambda outcome: self._on_stopped(process, outcome))

    def _on_stopped(self, process: Process, outcome: object) -> None:
        """The broker has stopped; end the process after this turn."""
        death = Death.KILL if isinstance(outcome, Failure) else Death.STOP
        self.timeline.schedule_after(0, "exit", self._exit_process, process, death)

    def _exit_process(self, process: Process, death: Death) -> None:
        if process.alive:
            self.machine.end_process(death)

    def kill_process(self, death: Death) -> None:
        """End the process now, between two turns."""
        if self.machine.process is not None:
            self.machine.end_process(death)

    def lose_power(self) -> None:
        """Power loss while no process runs."""
        if self.machine.process is None:
            self._note_loss(self.machine.lives)
            self.machine.power_loss()

    def _on_ended(self, process: Process, death: Death) -> None:
        # 1. Topic ids are read while the broker object still exists; new logs have no `partition.metadata` yet.
        # 2. Losses are noted after a power loss, or when a failed sync left pages that the platter lacks. The drives
        #    suffer the death only afterwards (`Machine.end_process`).
        if self.broker is not None and process.serving:
            self._topic_ids = {topic.name: topic.topic_id for topic in self.broker.cluster.image.topics.values()}
        self.broker = None
        self.stopping = False
        self._unclean = self._unclean or death is not Death.STOP
        self.network.on_process_gone(process, silent=death is Death.POWER_LOSS)
        if death is Death.POWER_LOSS or any(self._has_lost(drive) for drive in self.drives):
            self._note_loss(process.life)

    @staticmethod
    def _has_lost(drive: Drive) -> bool:
        return any(inode.lost for _, inode in drive.walk_files())

    def _note_loss(self, life: int) -> None:
        found: dict[str, int] = {}
        for drive in self.drives:
            found.update(durable_offsets(drive, self._topic_ids))
        self.history.losses.append(Loss(life, self.timeline.now_ns, found))


class _NodeListener:
    """Implements `BrokerListener` for one life of a node. Reactions to an event happen in an event of their own."""

    def __init__(self, node: SimNode, process: Process, shell: NodeNetwork) -> None:
        self._node = node
        self._process = process
        self._shell = shell

    def on_listening(self) -> None:
        """Accept connections."""
        self._node.timeline.schedule_after(0, "listening", self._node.on_listening, self._process, self._shell)

    def on_ready(self) -> None:
        """Note that the broker serves clients."""
        self._node.timeline.schedule_after(0, "ready", self._node.on_ready, self._process)

    def on_config(self, config: BrokerConfig) -> None:
        """Ignore settings: those of a shell have no meaning here."""

    def on_failure_not_reported(self) -> None:
        """Ignore it: the checks of a run find what this costs."""

    def is_wanted(self) -> bool:
        """True: a start ends with its process."""
        return True
