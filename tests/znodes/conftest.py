"""A machine with a simulated disk, on which one process after another runs a metadata store.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.effects import Effects
from ottla.seams import Failure, Op
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive, JournalLoss
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.disks.inode import LossPattern
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Death, Machine
from ottla.sim.world import SECOND, Timeline
from ottla.znodes.local_session import LocalSession
from ottla.znodes.store import EmbeddedStore


class Shell:
    """The part of a broker that a store needs: effects that are drained after each turn."""

    def __init__(self) -> None:
        self.effects = Effects()

    def end_turn(self) -> None:
        self.effects.drain_effects()

    def run_background(self, _budget_ns: int) -> bool:
        return False


class Home:
    """One drive, and the store that runs on it now."""

    def __init__(self, seed: int = 1, snapshot_bytes: int = 1 << 22) -> None:
        self.timeline = Timeline()
        self.drive = Drive("data")
        self.machine = Machine(1, self.timeline, Streams(seed), [self.drive])
        self.snapshot_bytes = snapshot_bytes
        self.keep_sessions = False
        self.open()

    def open(self) -> None:
        """Boot, and load the store."""
        self.process = self.machine.boot_process()
        self.shell = Shell()
        self.process.inputs = self.shell
        self.faults = DriveFaults()
        self.disk = SimDisk(self.drive, self.faults, self.process)
        self.told: list[object] = []
        self.engine = EmbeddedStore(self.disk, self.process.clock, self.shell.effects.queue_effect, self.snapshot_bytes)
        self.engine.load_files(self.keep_sessions)
        self.store = LocalSession(
            self.engine,
            lambda path: self.told.append(("node", path)),
            lambda state, session: self.told.append((state, session)),
        ).begin_session()
        self.settle()

    def restart(self, death: Death = Death.KILL, loss: tuple[LossPattern, JournalLoss] | None = None) -> None:
        """Kill the process and start the next one."""
        if loss is not None:
            self.machine.loss = loss
        if self.machine.process is not None:
            self.machine.end_process(death)
        self.open()

    def flip_bit(self, name: str, byte: int) -> None:
        """Damage a file of the store while no process runs."""
        inode = self.drive.file_at(f"__znodes-0/{name}")
        inode.data[byte] ^= 1
        inode.sealed = None

    def settle(self) -> None:
        """Run all queued effects and completions."""
        self.shell.effects.drain_effects()
        self.timeline.run_until(self.timeline.now_ns + 10 * SECOND)
        assert not self.machine.crashes, self.machine.crashes[0]

    def submit(self, *ops: Op, lane: str = "test"):
        """Submit and wait. Returns the results, or raises the Failure."""
        box = []
        self.store.submit_ops(lane, ops, box.append)
        assert not box, "`done` was called before the call returned"
        self.settle()
        (outcome,) = box
        if isinstance(outcome, Failure):
            raise outcome
        return outcome

    def get(self, path: str, watch: bool = False):
        box = []
        self.store.get_node(path, watch, box.append)
        self.settle()
        (found,) = box
        if isinstance(found, Failure):
            raise found
        return found

    def children(self, path: str, watch: bool = False):
        box = []
        self.store.get_children(path, watch, box.append)
        self.settle()
        return list(box[0])

    def names(self) -> list[str]:
        """The files of the store that the process sees."""
        return list(self.disk.list("__znodes-0"))

    def tree(self) -> dict[str, tuple[bytes, int]]:
        """The whole content of the store: data and version by path."""
        found = {}
        stack = ["/"]
        while stack:
            path = stack.pop()
            node = self.get(path)
            found[path] = (node.data, node.version)
            stack += [f"{path.rstrip('/')}/{name}" for name in self.children(path)]
        return found


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.fixture
def make_home() -> type[Home]:
    return Home
