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
from ottla.sim.machines.machine import Death
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
        self._strikes = self._table()
        self.mix = self._mix()
        """The kinds of this seed, and their weights."""
        self._pause_ns = int(random.between(600, 2500) * MS)
        node.on_down = self._restart_later
        network.fired = self.fired
        for faults in node.faults:
            faults.fired = self._disk_fired

    def _table(self) -> dict[str, Callable[[], None]]:
        table: dict[str, Callable[[], None]] = {
            "kill": lambda: self._die(Death.KILL),
            "kill in mid-turn": lambda: self._light_fuse(Death.KILL),
            "power loss": lambda: self._die(Death.POWER_LOSS),
            "power loss in mid-turn": lambda: self._light_fuse(Death.POWER_LOSS),
            "clean stop": self._stop,
            "pause": self._pause,
            "connection break": self._break_connections,
            "cut off while sending": self._break_connections,
            "cut towards the node": lambda: self._cut(True, False),
            "cut from the node": lambda: self._cut(False, True),
            "cut both ways": lambda: self._cut(True, True),
            "loss": self._loss,
            "slow link": self._slow_link,
            "reader stops reading": self._stall,
            "bit flips on the wire": self._garble,
            "slow disk": self._slow_disk,
            "disk full": self._fill,
            "wall clock jump": self._jump,
            "truncation": self._truncate,
        }
        for kind, operation in ARMED.items():
            table[kind] = lambda operation=operation: self._arm_operation(operation)  # type: ignore[misc]
        return table

    def _mix(self) -> list[tuple[str, int]]:
        chosen = [kind for kind in self._strikes if kind in ALWAYS or self.random.chance(0.55)]
        return [(kind, self.random.between(1, 6)) for kind in chosen]

    # ---- the schedule ----

    def start(self) -> None:
        """Start to strike."""
        self.active = True
        self._next()

    def _next(self) -> None:
        wait = 100 * MS + int(self.random.exponential(self._pause_ns))
        self.timeline.after(wait, "nemesis", self._strike)

    def raise_defects(self, random: Stream, callbacks: Stream) -> None:
        """Also raise exceptions at random calls while the broker serves requests and alarms."""
        defects = self.node.machine.defects = Defects(random, self.fired)

        def arm() -> None:
            if self.active:
                self.fired("defect")
                defects.arm()
            self.timeline.after(random.between(50, 600) * MS, "defect", arm)

        def arm_callbacks() -> None:
            if self.active:
                self.fired("defect for a callback")
                defects.arm_callbacks(callbacks)
            self.timeline.after(callbacks.between(300, 1500) * MS, "defect for a callback", arm_callbacks)

        self.timeline.after(SECOND, "defect", arm)
        self.timeline.after(SECOND, "defect for a callback", arm_callbacks)

    def _strike(self) -> None:
        if not self.active:
            return
        draw = self.random.below(sum(weight for _, weight in self.mix))
        for kind, weight in self.mix:
            draw -= weight
            if draw < 0:
                self.timeline.trace_fact(f"nemesis: {kind}")
                self._strikes[kind]()
                break
        self._next()

    def heal(self) -> None:
        """Stop striking, and undo all faults that are still active."""
        # 1. Stop defects, faults of links, and faults of drives.
        # 2. Restart the broker if a device broke or a directory is offline: only a start repairs them.
        # 3. Start it if it is down.
        self.active = False
        if self.node.machine.defects is not None:
            self.node.machine.defects.disarm()
        now = self.timeline.now_ns
        self.network.heal()
        for drive, faults in zip(self.node.drives, self.node.faults, strict=True):
            drive.capacity = NO_LIMIT
            faults.armed.clear()
            faults.slow_until_ns = now
        process = self.node.machine.process
        if process is not None:
            process.fuse = None
        broker = self.node.broker
        if any(f.broken for f in self.node.faults) or (broker is not None and broker.logs.offline_dirs):
            self.node.kill(Death.KILL)  # an offline directory comes back only with a restart
        elif process is None:
            self.node.start()

    # ---- processes ----

    def _die(self, death: Death) -> None:
        self._choose_loss()
        if self.node.machine.process is not None:
            self.fired(death.value)
            self.node.kill(death)
        elif death is Death.POWER_LOSS:
            self.fired("power loss while down")
            self.node.unplug()

    def _light_fuse(self, death: Death) -> None:
        """Plan the death of the process inside a turn, at one of its next disk operations."""
        self._choose_loss()
        process = self.node.machine.process
        if process is not None:
            self.fired(f"{death.value} in mid-turn")
            process.fuse, process.fuse_death = self.random.below(60), death

    def _choose_loss(self) -> None:
        pages, names = self.random.choice(tuple(LossPattern)), self.random.choice(tuple(JournalLoss))
        self.node.machine.loss = (pages, names)

    def _stop(self) -> None:
        if self.node.up:
            self.fired("clean stop")
            self.node.stop()

    def _pause(self) -> None:
        process = self.node.machine.process
        if process is not None:
            self.fired("pause")
            process.pause(self.timeline.now_ns + self.random.between(100, 3000) * MS)

    def _restart_later(self, _death: Death) -> None:
        self.timeline.after(self.random.between(30, 1500) * MS, "restart", self.node.start)

    # ---- links ----

    def _for_a_while(self) -> int:
        return self.timeline.now_ns + self.random.between(200, 4000) * MS

    def _break_connections(self) -> None:
        for connection in list(self.network.connections.values()):
            if self.random.chance(0.4):
                self.fired("connection break")
                self.network.cut_off(connection)

    def _cut(self, inward: bool, outward: bool) -> None:
        self.fired("one-way cut" if inward != outward else "cut both ways")
        until = self._for_a_while()
        for connection in list(self.network.connections.values()):
            if self.random.chance(0.6):
                path = self.network.path(connection.host, connection.node)
                if inward:
                    path.inward_cut_ns = until
                if outward:
                    path.outward_cut_ns = until

    def _loss(self) -> None:
        self.fired("loss")
        self.network.weather.loss = 0.02 * self.random.between(1, 8)
        self.timeline.schedule_at(self._for_a_while(), "loss ends", self._no_loss)

    def _no_loss(self) -> None:
        self.network.weather.loss = 0.0

    def _slow_link(self) -> None:
        self.fired("slow link")
        self.network.weather.slow_until_ns = self._for_a_while()

    def _stall(self) -> None:
        self.fired("reader stops reading")
        until = self._for_a_while()
        for connection in list(self.network.connections.values()):
            if self.random.chance(0.5):
                connection.server.stalled_until_ns = until

    def _garble(self) -> None:
        self.network.weather.garble = 0.05
        self.timeline.schedule_at(self._for_a_while(), "bit flips end", self._no_garble)

    def _no_garble(self) -> None:
        self.network.weather.garble = 0.0

    # ---- drives ----

    def _disk_fired(self, kind: str) -> None:
        """Note a fault of a disk. After an I/O error the operator repairs the device and restarts the broker."""
        self.fired(kind)
        if kind.endswith("EIO"):
            self.timeline.after(self.random.between(200, 2500) * MS, "operator", self._replace_device)

    def _replace_device(self) -> None:
        if any(faults.broken for faults in self.node.faults):
            self.node.kill(Death.KILL)

    def _arm_operation(self, operation: DiskOperation) -> None:
        self.random.choice(self.node.faults).arm(operation)

    def _slow_disk(self) -> None:
        self.fired("slow disk")
        self.random.choice(self.node.faults).slow_until_ns = self._for_a_while()

    def _fill(self) -> None:
        at = self.random.below(len(self.node.drives))
        drive = self.node.drives[at]
        self.node.faults[at].full_told = False
        drive.capacity = drive.used_bytes() + self.random.below(20_000)
        self.timeline.schedule_at(self._for_a_while(), "room again", setattr, drive, "capacity", NO_LIMIT)

    # ---- the rest ----

    def _jump(self) -> None:
        self.fired("wall clock jump")
        self.history.jumps.append(self.timeline.now_ns)
        self.node.machine.wall_skew_ms += self.random.between(-20_000, 20_000)

    def _truncate(self) -> None:
        """Truncate a log while replies with its bytes wait to be sent, as a deposed leader has to.

        A single broker never truncates a log that it serves, so the nemesis does what a controller would order.
        """
        for connection in self.network.connections.values():
            if f"reader-{Role.CUT.value}" in connection.host:
                connection.server.stalled_until_ns = self.timeline.now_ns + self.random.between(1500, 2800) * MS
        self.timeline.after(self.random.between(300, 700) * MS, "truncation", self._cut_log)

    def _cut_log(self) -> None:
        process, broker = self.node.machine.process, self.node.broker
        topics = self.catalog.of(Role.CUT)
        if process is None or broker is None or not topics or not self.active:
            return
        hosted = broker.hosted.by_name.get(topics[0].name)
        partition = None if hosted is None else hosted.partitions.get(0)
        if partition is None or partition.log.end_offset < 40 or any(f.broken for f in self.node.faults):
            return
        self.fired("truncation")
        log = partition.log
        self.history.rewritten.setdefault(topics[0].log(0), self.timeline.now_ns)
        offset = max(log.start_offset, log.end_offset - self.random.between(1, 15))

        def cut() -> None:
            try:
                log.truncate_to(offset)
            except Failure:
                return  # the device failed during the truncation, and its directory is offline
            partition.high_watermark = log.high_watermark = log.end_offset
            partition.notify()

        process.post(20 * US, "truncate", cut)


SECONDS_MIN: Final = 60 * SECOND
ACKNOWLEDGED_MIN: Final = 1000
FAULTS_MIN: Final = 10
"""Minimums that a seed must reach to count."""
