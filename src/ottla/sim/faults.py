"""The nemesis of a single broker: draws the faults of a run, causes them, and heals them.

Zone: deterministic. Every seed draws its own mix (a swarm): many kinds are left out, the others get weights, and the
mean pause between two strikes differs. Drives and links implement their faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ottla.seams import Failure
from ottla.sim.defects import Defects
from ottla.sim.disks.drive import NO_LIMIT, JournalLoss
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.sim.disks.inode import LossPattern
from ottla.sim.entropy import Stream
from ottla.sim.history import History
from ottla.sim.machines.machine import Death, Process
from ottla.sim.machines.node import SimNode
from ottla.sim.networks.network import Network
from ottla.sim.workload.catalog import Catalog, Role
from ottla.sim.world import MS, SECOND, US, Timeline

ARMED: Final = {
    "append error": DiskOperation.APPEND,
    "short write": DiskOperation.SHORT_WRITE,
    "read error": DiskOperation.READ,
    "sync error": DiskOperation.SYNC,
    "directory sync error": DiskOperation.SYNC_DIR,
    "checkpoint error": DiskOperation.REPLACE,
}
"""Errors that fire at the next operation of their kind."""

ALWAYS: Final = ("kill", "power loss", "connection break", "cut off while sending")
"""Kinds that every seed has."""


@dataclass(slots=True)
class Fired:
    """How often each kind of fault took effect."""

    counts: dict[str, int] = field(default_factory=dict)

    def __call__(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    @property
    def total(self) -> int:
        """The number of all faults."""
        return sum(self.counts.values())


class Nemesis:
    """Strikes one node and its links until `heal` is called."""

    def __init__(self, node: SimNode, network: Network, catalog: Catalog, random: Stream, history: History) -> None:
        self.node = node
        self.network = network
        self.timeline: Timeline = network.timeline
        self.catalog = catalog
        self.random = random
        self.history = history
        self.fired = Fired()
        self.active = False
        self._strikes = self._strikes_by_kind()
        self.mix = self._draw_mix()
        """The kinds of this seed, and their weights."""
        self._pause_ns = int(random.between(600, 2500) * MS)
        node.machine.on_end.append(self._restart_later)
        network.fired = self.fired
        for faults in node.faults:
            faults.fired = self._disk_fired

    def _strikes_by_kind(self) -> dict[str, Callable[[], None]]:
        table: dict[str, Callable[[], None]] = {
            "kill": lambda: self._end_process(Death.KILL),
            "kill in mid-turn": lambda: self._light_fuse(Death.KILL),
            "power loss": lambda: self._end_process(Death.POWER_LOSS),
            "power loss in mid-turn": lambda: self._light_fuse(Death.POWER_LOSS),
            "clean stop": self._stop_broker,
            "pause": self._pause_process,
            "connection break": self._break_connections,
            "cut off while sending": self._break_connections,
            "cut towards the node": lambda: self._cut_links(True, False),
            "cut from the node": lambda: self._cut_links(False, True),
            "cut both ways": lambda: self._cut_links(True, True),
            "loss": self._lose_packets,
            "slow link": self._slow_link,
            "reader stops reading": self._stall_readers,
            "bit flips on the wire": self._flip_bits,
            "slow disk": self._slow_disk,
            "disk full": self._fill_disk,
            "wall clock jump": self._jump_clock,
            "truncation": self._truncate_log,
        }
        for kind, operation in ARMED.items():
            table[kind] = lambda operation=operation: self._arm_operation(operation)  # type: ignore[misc]
        return table

    def _draw_mix(self) -> list[tuple[str, int]]:
        chosen = [kind for kind in self._strikes if kind in ALWAYS or self.random.chance(0.55)]
        return [(kind, self.random.between(1, 6)) for kind in chosen]

    # ---- the schedule ----

    def start_strikes(self) -> None:
        """Start to strike."""
        self.active = True
        self._schedule_strike()

    def _schedule_strike(self) -> None:
        wait = 100 * MS + int(self.random.exponential(self._pause_ns))
        self.timeline.schedule_after(wait, "nemesis", self._strike_once)

    def raise_defects(self, random: Stream, callbacks: Stream) -> None:
        """Also raise exceptions at random calls while the broker serves requests and alarms."""
        defects = self.node.machine.defects = Defects(random, self.fired)

        def arm() -> None:
            if self.active:
                self.fired("defect")
                defects.arm_request()
            self.timeline.schedule_after(random.between(50, 600) * MS, "defect", arm)

        def arm_callbacks() -> None:
            if self.active:
                self.fired("defect for a callback")
                defects.arm_callbacks(callbacks)
            self.timeline.schedule_after(callbacks.between(300, 1500) * MS, "defect for a callback", arm_callbacks)

        self.timeline.schedule_after(SECOND, "defect", arm)
        self.timeline.schedule_after(SECOND, "defect for a callback", arm_callbacks)

    def _strike_once(self) -> None:
        if not self.active:
            return
        draw = self.random.random_below(sum(weight for _, weight in self.mix))
        for kind, weight in self.mix:
            draw -= weight
            if draw < 0:
                self.timeline.trace_fact(f"nemesis: {kind}")
                self._strikes[kind]()
                break
        self._schedule_strike()

    def heal_faults(self) -> None:
        """Stop striking, and undo all faults that are still active."""
        # 1. Stop defects, faults of links, and faults of drives.
        # 2. Restart the broker if a device broke or a directory is offline: only a start repairs them.
        # 3. Start it if it is down.
        self.active = False
        if self.node.machine.defects is not None:
            self.node.machine.defects.disarm_all()
        now = self.timeline.now_ns
        self.network.heal_links()
        for drive, faults in zip(self.node.drives, self.node.faults, strict=True):
            drive.capacity = NO_LIMIT
            faults.armed.clear()
            faults.slow_until_ns = now
        process = self.node.machine.process
        if process is not None:
            process.fuse = None
        broker = self.node.broker
        if any(f.broken for f in self.node.faults) or (broker is not None and broker.logs.offline_dirs):
            self.node.kill_process(Death.KILL)  # an offline directory comes back only with a restart
        elif process is None:
            self.node.start_broker()

    # ---- processes ----

    def _end_process(self, death: Death) -> None:
        self._choose_loss()
        if self.node.machine.process is not None:
            self.fired(death.value)
            self.node.kill_process(death)
        elif death is Death.POWER_LOSS:
            self.fired("power loss while down")
            self.node.lose_power()

    def _light_fuse(self, death: Death) -> None:
        """Plan the death of the process inside a turn, at one of its next disk operations."""
        self._choose_loss()
        process = self.node.machine.process
        if process is not None:
            self.fired(f"{death.value} in mid-turn")
            process.fuse, process.fuse_death = self.random.random_below(60), death

    def _choose_loss(self) -> None:
        pages, names = self.random.choice(tuple(LossPattern)), self.random.choice(tuple(JournalLoss))
        self.node.machine.loss = (pages, names)

    def _stop_broker(self) -> None:
        if self.node.is_listening:
            self.fired("clean stop")
            self.node.stop_broker()

    def _pause_process(self) -> None:
        process = self.node.machine.process
        if process is not None:
            self.fired("pause")
            process.pause_until(self.timeline.now_ns + self.random.between(100, 3000) * MS)

    def _restart_later(self, _process: Process, _death: Death) -> None:
        self.timeline.schedule_after(self.random.between(30, 1500) * MS, "restart", self.node.start_broker)

    # ---- links ----

    def _draw_end(self) -> int:
        return self.timeline.now_ns + self.random.between(200, 4000) * MS

    def _break_connections(self) -> None:
        for connection in list(self.network.connections.values()):
            if self.random.chance(0.4):
                self.fired("connection break")
                self.network.cut_off(connection)

    def _cut_links(self, inward: bool, outward: bool) -> None:
        self.fired("one-way cut" if inward != outward else "cut both ways")
        until = self._draw_end()
        for connection in list(self.network.connections.values()):
            if self.random.chance(0.6):
                path = self.network.path_between(connection.host, connection.node)
                if inward:
                    path.inward_cut_ns = until
                if outward:
                    path.outward_cut_ns = until

    def _lose_packets(self) -> None:
        self.fired("loss")
        self.network.weather.loss = 0.02 * self.random.between(1, 8)
        self.timeline.schedule_at(self._draw_end(), "loss ends", self._end_loss)

    def _end_loss(self) -> None:
        self.network.weather.loss = 0.0

    def _slow_link(self) -> None:
        self.fired("slow link")
        self.network.weather.slow_until_ns = self._draw_end()

    def _stall_readers(self) -> None:
        self.fired("reader stops reading")
        until = self._draw_end()
        for connection in list(self.network.connections.values()):
            if self.random.chance(0.5):
                connection.server.stalled_until_ns = until

    def _flip_bits(self) -> None:
        self.network.weather.garble = 0.05
        self.timeline.schedule_at(self._draw_end(), "bit flips end", self._end_bit_flips)

    def _end_bit_flips(self) -> None:
        self.network.weather.garble = 0.0

    # ---- drives ----

    def _disk_fired(self, kind: str) -> None:
        """Note a fault of a disk. After an I/O error the operator repairs the device and restarts the broker."""
        self.fired(kind)
        if kind.endswith("EIO"):
            self.timeline.schedule_after(self.random.between(200, 2500) * MS, "operator", self._replace_device)

    def _replace_device(self) -> None:
        if any(faults.broken for faults in self.node.faults):
            self.node.kill_process(Death.KILL)

    def _arm_operation(self, operation: DiskOperation) -> None:
        self.random.choice(self.node.faults).arm_error(operation)

    def _slow_disk(self) -> None:
        self.fired("slow disk")
        self.random.choice(self.node.faults).slow_until_ns = self._draw_end()

    def _fill_disk(self) -> None:
        at = self.random.random_below(len(self.node.drives))
        drive = self.node.drives[at]
        self.node.faults[at].full_reported = False
        drive.capacity = drive.used_bytes() + self.random.random_below(20_000)
        self.timeline.schedule_at(self._draw_end(), "room again", setattr, drive, "capacity", NO_LIMIT)

    # ---- the rest ----

    def _jump_clock(self) -> None:
        self.fired("wall clock jump")
        self.history.jumps.append(self.timeline.now_ns)
        self.node.machine.wall_skew_ms += self.random.between(-20_000, 20_000)

    def _truncate_log(self) -> None:
        """Truncate a log while replies with its bytes wait to be sent, as a deposed leader has to.

        A single broker never truncates a log that it serves, so the nemesis does what a controller would order.
        """
        for connection in self.network.connections.values():
            if f"reader-{Role.CUT.value}" in connection.host:
                connection.server.stalled_until_ns = self.timeline.now_ns + self.random.between(1500, 2800) * MS
        self.timeline.schedule_after(self.random.between(300, 700) * MS, "truncation", self._cut_log)

    def _cut_log(self) -> None:
        process, broker = self.node.machine.process, self.node.broker
        topics = self.catalog.topics_of_role(Role.CUT)
        if process is None or broker is None or not topics or not self.active:
            return
        hosted = broker.hosted.by_name.get(topics[0].name)
        partition = None if hosted is None else hosted.partitions.get(0)
        if partition is None or partition.log.end_offset < 40 or any(f.broken for f in self.node.faults):
            return
        self.fired("truncation")
        log = partition.log
        self.history.rewritten.setdefault(topics[0].partition_log(0), self.timeline.now_ns)
        offset = max(log.start_offset, log.end_offset - self.random.between(1, 15))

        def cut() -> None:
            try:
                log.truncate_to(offset)
            except Failure:
                return  # the device failed during the truncation, and its directory is offline
            partition.high_watermark = log.high_watermark = log.end_offset
            partition.wake_watchers()

        process.post_turn(20 * US, "truncate", cut)


SECONDS_MIN: Final = 60 * SECOND
ACKNOWLEDGED_MIN: Final = 1000
FAULTS_MIN: Final = 10
"""Minimums that a seed must reach to count."""
