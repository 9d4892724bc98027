"""One simulated broker of a cluster.

Zone: deterministic. In addition to a single broker it has a session with the metadata store, accepts connections before
it is ready (it becomes ready by requests of the controller), and reports losses of data to the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.broker.broker import Broker
from ottla.seams import World
from ottla.sim.cluster.ledger import Ledger
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.durable_offsets import durable_offsets
from ottla.sim.entropy import Streams
from ottla.sim.history import History
from ottla.sim.machines.ensemble import Ensemble
from ottla.sim.machines.machine import Death, Process
from ottla.sim.machines.node import DRAIN_NS, SimNode
from ottla.sim.machines.store import SimStore
from ottla.sim.networks.network import Network
from ottla.sim.networks.node_network import NodeNetwork
from ottla.sim.world import MS, SECOND, Timeline

STOP_LIMIT_NS: Final = 20 * SECOND
"""A clean stop that takes longer ends with SIGKILL, as with service managers."""


class ClusterNode(SimNode):
    """A broker that can be started, stopped and killed."""

    def __init__(
        self,
        node: int,
        timeline: Timeline,
        streams: Streams,
        network: Network,
        history: History,
        properties: Mapping[str, str],
        ensemble: Ensemble,
        ledger: Ledger,
        session_ns: int,
    ) -> None:
        super().__init__(node, timeline, streams, network, history, properties)
        self.number = node
        self.ensemble = ensemble
        self.ledger = ledger
        self.store: SimStore | None = None
        self.held_down = False
        """It must not be started for now."""
        self._session_ns = session_ns
        self._shell: NodeNetwork | None = None

    # ---- start ----

    def start_broker(self) -> None:
        """Boot a new process, unless the nemesis holds the broker down."""
        if not self.held_down:
            super().start_broker()

    def _make_world(self, process: Process, shell: NodeNetwork) -> World:
        self.store = SimStore(process, self.ensemble, self._session_ns)
        return super()._make_world(process, shell)._replace(store=self.store)

    def _on_started(self, shell: NodeNetwork) -> None:
        self._shell = shell
        assert self.store is not None
        self.store.start_session()

    # ---- ends ----

    def stop_broker(self) -> None:
        """Clean shutdown: the broker hands leaderships over first, and accepts connections until it has done so."""
        process, broker = self.machine.process, self.broker
        if process is None or broker is None or not broker.ready or self.stopping:
            return
        self.stopping = True

        def left() -> None:
            self.timeline.schedule_after(0, "left", self._close_doors, process, broker)

        process.post_turn(MS, "leave", broker.hand_over_leaderships, left)
        self.timeline.schedule_after(STOP_LIMIT_NS, "exit", self._exit_process, process, Death.KILL)

    def _close_doors(self, process: Process, broker: Broker) -> None:
        """Leaderships are handed over: accept nothing new, give open requests a moment, then stop the broker."""
        if process.alive:
            self.network.listening.pop(self.number, None)
            assert self._shell is not None
            self._shell.draining = True
            process.post_turn(DRAIN_NS, "stop", broker.stop_broker, lambda outcome: self._on_stopped(process, outcome))

    def _exit_process(self, process: Process, death: Death) -> None:
        if process.alive and death is Death.STOP and self.store is not None:
            self.store.end_session()
        super()._exit_process(process, death)

    def _on_ended(self, process: Process, death: Death) -> None:
        # Losses are noted before the drives suffer the death (`Machine.end_process` calls this first): what is durable
        # now is what the power loss leaves at least.
        self._topic_ids = self.ledger.topic_ids
        self.broker = None
        self.stopping = False
        self._unclean = self._unclean or death is not Death.STOP
        if death is Death.POWER_LOSS or any(self._has_lost(drive) for drive in self.drives):
            self._note_loss(process.life)
        self.network.on_process_gone(process, silent=death is Death.POWER_LOSS)

    def _note_loss(self, life: int) -> None:
        found: dict[str, int] = {}
        for drive in self.drives:
            found.update(durable_offsets(drive, self.ledger.topic_ids))
        self.timeline.trace_fact(f"node {self.number} lost data in life {life}: {found}")
        self.ledger.on_undurable_loss(self.number, found)

    def replace_disks(self) -> None:
        """Replace the disks by empty ones, while no process runs."""
        assert self.machine.process is None
        self.ledger.on_data_loss(self.number, dict.fromkeys(map(self.ledger.log_of_route, self.ledger.partitions), 0))
        for at, drive in enumerate(self.drives):
            self.drives[at] = Drive(drive.name)
