"""The kinds of faults in a cluster, by target: processes, links, the metadata store, drives.

Zone: deterministic. Each strike has its own random stream, so that it stays the same when other strikes are left out.
The machine, the network, the ensemble and the drives implement the faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ottla.sim.cluster.ledger import Ledger
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.disks.drive import NO_LIMIT, JournalLoss
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.sim.disks.inode import LossPattern
from ottla.sim.entropy import Stream
from ottla.sim.faults import ARMED, Fired
from ottla.sim.machines.ensemble import STORE_NODES, Ensemble
from ottla.sim.machines.machine import Death
from ottla.sim.networks.network import Network
from ottla.sim.world import MS, SECOND

Deed = Callable[[Stream], None]
WHOLE_LOSS: Final = "power loss of all"


class Victims:
    """Chooses the broker to strike: the controller, a leader, or any."""

    def __init__(self, nodes: Sequence[ClusterNode], ledger: Ledger) -> None:
        self.nodes = nodes
        self.ledger = ledger
        self.by_number = {node.number: node for node in nodes}
        self.spared = False
        """Everything is healed: later steps of a strike are dropped."""

    def choose_broker(self, random: Stream) -> ClusterNode:
        """One broker: a third of the time the controller, a third of the time the leader of a partition."""
        wanted = random.random_below(3)
        number = -1
        if wanted == 0:
            number = self.ledger.controller
        elif wanted == 1 and self.ledger.partitions:
            number = random.choice(list(self.ledger.partitions.values())).leader
        found = self.by_number.get(number)
        return found if found is not None else random.choice(self.nodes)


class ProcessStrikes:
    """Kills, clean stops, pauses, absences and jumps of the wall clock."""

    def __init__(self, victims: Victims, fired: Fired, flush: bool) -> None:
        self._victims = victims
        self._fired = fired
        self._flush = flush
        self._timeline = victims.nodes[0].timeline

    def deeds_by_kind(self) -> dict[str, Deed]:
        """Deeds by the kind of fault."""
        table: dict[str, Deed] = {
            "kill": lambda random: self._end_process(random, Death.KILL),
            "kill of two": self._kill_two,
            "kill in mid-turn": lambda random: self._light_fuse(random, Death.KILL),
            "power loss": lambda random: self._end_process(random, Death.POWER_LOSS),
            "power loss in mid-turn": lambda random: self._light_fuse(random, Death.POWER_LOSS),
            "clean stop": self._stop_broker,
            "rolling restart": self._rolling_restart,
            "pause": lambda random: self._pause_process(random, 100, 1500),
            "pause past the session": lambda random: self._pause_process(random, 2500, 6000),
            "absence": lambda random: self._take_down(random, wipe=False),
            "other disks": lambda random: self._take_down(random, wipe=True),
            "wall clock jump": self._jump_clock,
        }
        if self._flush:
            table[WHOLE_LOSS] = self._power_loss_of_all
        return table

    def _end_process(self, random: Stream, death: Death) -> None:
        node = self._victims.choose_broker(random)
        # A power loss also hits a machine whose broker is down: its drives lose their pending writes.
        if death is Death.POWER_LOSS and not self._can_lose_data(node):
            return
        _choose_loss(node, random)
        if node.machine.process is not None:
            self._fired(death.value)
            node.kill_process(death)
        elif death is Death.POWER_LOSS:
            self._fired("power loss while down")
            node.lose_power()

    def _can_lose_data(self, node: ClusterNode) -> bool:
        """Without flushing a cluster survives a loss of data only while another in-sync replica has everything."""
        return self._flush or not self._victims.ledger.would_be_lost(node.number)

    def _kill_two(self, random: Stream) -> None:
        for node in {
            id(node): node for node in (self._victims.choose_broker(random), self._victims.choose_broker(random))
        }.values():
            if node.machine.process is not None:
                self._fired(Death.KILL.value)
                node.kill_process(Death.KILL)

    def _light_fuse(self, random: Stream, death: Death) -> None:
        node = self._victims.choose_broker(random)
        process = node.machine.process
        if process is not None and (death is Death.KILL or self._can_lose_data(node)):
            _choose_loss(node, random)
            self._fired(f"{death.value} in mid-turn")
            process.fuse, process.fuse_death = random.random_below(60), death

    def _power_loss_of_all(self, random: Stream) -> None:
        self._fired(WHOLE_LOSS)
        for node in self._victims.nodes:
            _choose_loss(node, random)
            if node.machine.process is not None:
                node.kill_process(Death.POWER_LOSS)
            else:
                node.lose_power()

    def _stop_broker(self, random: Stream) -> None:
        node = self._victims.choose_broker(random)
        if node.broker is not None and node.broker.ready:
            self._fired("clean stop")
            node.stop_broker()

    def _rolling_restart(self, random: Stream) -> None:
        self._fired("rolling restart")
        step = random.between(1500, 4000) * MS
        for at, node in enumerate(self._victims.nodes):
            self._timeline.schedule_after(at * step, "rolling restart", self._stop_next, node)

    def _stop_next(self, node: ClusterNode) -> None:
        if not self._victims.spared:
            node.stop_broker()

    def _pause_process(self, random: Stream, shortest_ms: int, longest_ms: int) -> None:
        process = self._victims.choose_broker(random).machine.process
        if process is not None:
            self._fired("pause" if longest_ms < 2500 else "pause past the session")
            process.pause_until(self._timeline.now_ns + random.between(shortest_ms, longest_ms) * MS)

    def _take_down(self, random: Stream, wipe: bool) -> None:
        node = self._victims.choose_broker(random)
        if node.held_down or (wipe and self._victims.ledger.would_be_lost(node.number)):
            return
        self._fired("other disks" if wipe else "absence")
        node.held_down = True
        node.kill_process(Death.KILL)
        if wipe:
            node.replace_disks()
        # With other disks a broker may come back before the cluster has noticed its absence.
        away = random.between(50, 9000) if wipe else random.between(4000, 14_000)
        self._timeline.schedule_after(away * MS, "back", self._bring_back, node)

    @staticmethod
    def _bring_back(node: ClusterNode) -> None:
        node.held_down = False
        node.start_broker()

    def _jump_clock(self, random: Stream) -> None:
        self._fired("wall clock jump")
        self._victims.choose_broker(random).machine.wall_skew_ms += random.between(-20_000, 20_000)


def _choose_loss(node: ClusterNode, random: Stream) -> None:
    node.machine.loss = (random.choice(tuple(LossPattern)), random.choice(tuple(JournalLoss)))


class LinkStrikes:
    """Cut, lossy and slow links between brokers, the store and clients."""

    def __init__(self, victims: Victims, network: Network, clients: Sequence[str], fired: Fired) -> None:
        self._victims = victims
        self._network = network
        self._timeline = network.timeline
        self._clients = clients
        self._fired = fired
        self._store = [f"store{node}" for node in STORE_NODES]
        self._numbers = {_host_name(node): node.number for node in victims.nodes}
        self._numbers |= dict(zip(self._store, STORE_NODES, strict=True))

    def deeds_by_kind(self) -> dict[str, Deed]:
        """Deeds by the kind of fault."""
        return {
            "connection break": self._break_connections,
            "isolated broker": lambda random: self._isolate_broker(random, brokers=True, store=True),
            "broker without others": lambda random: self._isolate_broker(random, brokers=True, store=False),
            "broker without store": lambda random: self._isolate_broker(random, brokers=False, store=True),
            "cut between two brokers": self._cut_pair,
            "split": self._split_cluster,
            "cut clients": self._cut_clients,
            "loss": self._lose_packets,
            "slow link": self._slow_link,
            "reader stops reading": self._stall_readers,
            "bit flips on the wire": self._flip_bits,
        }

    def _cut_one_way(self, source: str, target: str, until_ns: int) -> None:
        """Deliver no packet from `source` to `target` before that time."""
        if target in self._numbers:
            self._network.path_between(source, self._numbers[target]).inward_cut_ns = until_ns
        if source in self._numbers:
            self._network.path_between(target, self._numbers[source]).outward_cut_ns = until_ns

    def _cut_links(self, random: Stream, one: Sequence[str], others: Sequence[str]) -> None:
        """Cut the links of two groups of hosts, in both directions or in one."""
        # Up to 7 s: shorter and longer than sessions (at most 3 s) and than the timeouts of requests.
        until_ns = self._timeline.now_ns + random.between(300, 7000) * MS
        way = random.random_below(4)  # 0 and 1: one direction only; otherwise both
        for host in one:
            for other in others:
                if way != 0:
                    self._cut_one_way(host, other, until_ns)
                if way != 1:
                    self._cut_one_way(other, host, until_ns)
        self._fired("one-way cut" if way < 2 else "cut both ways")

    def _isolate_broker(self, random: Stream, brokers: bool, store: bool) -> None:
        node = self._victims.choose_broker(random)
        others = [_host_name(other) for other in self._victims.nodes if other is not node and brokers]
        self._cut_links(random, [_host_name(node)], others + (self._store if store else []))

    def _cut_pair(self, random: Stream) -> None:
        node, other = self._victims.choose_broker(random), random.choice(self._victims.nodes)
        if node is not other:
            self._cut_links(random, [_host_name(node)], [_host_name(other)])

    def _split_cluster(self, random: Stream) -> None:
        """Two groups of brokers; each store server and each client stays with one of them."""
        left: list[str] = []
        right: list[str] = []
        for host in (*map(_host_name, self._victims.nodes), *self._store, *self._clients):
            (left if random.chance(0.5) else right).append(host)
        self._cut_links(random, left, right)

    def _cut_clients(self, random: Stream) -> None:
        node = self._victims.choose_broker(random)
        self._cut_links(random, [_host_name(node)], [client for client in self._clients if random.chance(0.6)])

    def _break_connections(self, random: Stream) -> None:
        self._fired("connection break")
        for connection in list(self._network.connections.values()):
            if connection.node not in STORE_NODES and random.chance(0.3):
                self._network.cut_off(connection)

    def _draw_end(self, random: Stream) -> int:
        return self._timeline.now_ns + random.between(200, 4000) * MS

    def _lose_packets(self, random: Stream) -> None:
        self._fired("loss")
        self._network.weather.loss = 0.02 * random.between(1, 8)
        self._timeline.schedule_at(self._draw_end(random), "loss ends", setattr, self._network.weather, "loss", 0.0)

    def _slow_link(self, random: Stream) -> None:
        self._fired("slow link")
        self._network.weather.slow_until_ns = self._draw_end(random)

    def _stall_readers(self, random: Stream) -> None:
        self._fired("reader stops reading")
        until_ns = self._draw_end(random)
        for connection in list(self._network.connections.values()):
            if connection.host in self._clients and random.chance(0.5):
                connection.server.stalled_until_ns = until_ns

    def _flip_bits(self, random: Stream) -> None:
        self._network.weather.garble = 0.05
        self._timeline.schedule_at(
            self._draw_end(random), "bit flips end", setattr, self._network.weather, "garble", 0.0
        )


def _host_name(node: ClusterNode) -> str:
    return f"node{node.number}"


class StoreStrikes:
    """Faults of the metadata store."""

    def __init__(self, victims: Victims, ensemble: Ensemble, fired: Fired) -> None:
        self._victims = victims
        self._ensemble = ensemble
        self._timeline = ensemble.timeline
        self._fired = fired

    def deeds_by_kind(self) -> dict[str, Deed]:
        """Deeds by the kind of fault."""
        return {
            "store connections break": self._break_connections,
            "store server restarts": self._restart_server,
            "store without quorum": self._lose_quorum,
            "store is slow": self._slow_store,
            "store server lags": self._lag_server,
            "session expires": self._expire_session,
        }

    def _break_connections(self, random: Stream) -> None:
        self._fired("store connections break")
        self._ensemble.break_connections(lambda _host: random.chance(0.6))

    def _restart_server(self, random: Stream) -> None:
        self._fired("store server restarts")
        random.choice(self._ensemble.servers).restart_server(random.between(200, 3000) * MS)

    def _lose_quorum(self, random: Stream) -> None:
        self._fired("store without quorum")
        self._ensemble.lose_quorum(random.between(200, 4000) * MS)

    def _slow_store(self, random: Stream) -> None:
        self._fired("store is slow")
        self._ensemble.slow_until_ns = self._timeline.now_ns + random.between(500, 4000) * MS

    def _lag_server(self, random: Stream) -> None:
        self._fired("store server lags")
        server = random.choice(self._ensemble.servers)
        server.lag_ns = random.between(50, 2500) * MS
        self._timeline.schedule_after(random.between(500, 5000) * MS, "lag ends", setattr, server, "lag_ns", 0)

    def _expire_session(self, random: Stream) -> None:
        """Expire the session of a running broker."""
        store = self._victims.choose_broker(random).store
        if store is not None and store.session_id in self._ensemble.sessions:
            self._fired("session expires")
            self._ensemble.end_session(store.session_id)


class DriveStrikes:
    """Disk errors, full disks, slow disks."""

    def __init__(self, victims: Victims, fired: Fired, random: Stream) -> None:
        self._victims = victims
        self._fired = fired
        self._timeline = victims.nodes[0].timeline
        for node in victims.nodes:
            for faults in node.faults:
                faults.fired = lambda kind, node=node: self._disk_fired(node, kind, random)  # type: ignore[misc]

    def deeds_by_kind(self) -> dict[str, Deed]:
        """Deeds by the kind of fault."""
        table: dict[str, Deed] = {"slow disk": self._slow_disk, "disk full": self._fill_disk}
        for kind, operation in ARMED.items():
            table[kind] = lambda random, operation=operation: self._arm_error(random, operation)  # type: ignore[misc]
        return table

    def _arm_error(self, random: Stream, operation: DiskOperation) -> None:
        node = self._victims.choose_broker(random)
        if operation is not DiskOperation.SYNC or not self._victims.ledger.would_be_lost(node.number):
            random.choice(node.faults).arm_error(operation)

    def _disk_fired(self, node: ClusterNode, kind: str, random: Stream) -> None:
        """Note a fault of a disk. After an I/O error the operator repairs the device and restarts the broker."""
        self._fired(kind)
        if kind.endswith("EIO"):
            self._timeline.schedule_after(random.between(200, 4000) * MS, "operator", self._replace_device, node)

    @staticmethod
    def _replace_device(node: ClusterNode) -> None:
        if any(faults.broken for faults in node.faults):
            node.kill_process(Death.KILL)

    def _slow_disk(self, random: Stream) -> None:
        self._fired("slow disk")
        faults = random.choice(self._victims.choose_broker(random).faults)
        faults.slow_until_ns = self._timeline.now_ns + random.between(200, 4000) * MS

    def _fill_disk(self, random: Stream) -> None:
        node = self._victims.choose_broker(random)
        at = random.random_below(len(node.drives))
        drive = node.drives[at]
        node.faults[at].full_reported = False
        drive.capacity = drive.used_bytes() + random.random_below(20_000)
        until = random.between(200, 4000) * MS
        self._timeline.schedule_after(until, "room again", setattr, drive, "capacity", NO_LIMIT)


PAUSES_NS: Final = (SECOND * 4 // 10, SECOND * 15 // 10)
"""Bounds of the mean time between two strikes."""
