"""Small worlds for the tests of the simulator.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Machine
from ottla.sim.networks.network import Network
from ottla.sim.world import SECOND, Timeline


class Echo:
    """The inputs of a broker that echoes every request, at once or later."""

    def __init__(self, network) -> None:
        self.network = network
        self.frames = []
        self.gone = []
        self.turns = 0
        self.late = False
        self.slots = []
        self.answer = lambda frame: [bytes(frame)]

    def on_frame(self, slot, frame):
        from ottla.seams import Gate

        self.frames.append(bytes(frame))
        self.slots.append(slot)
        if self.late:
            return Gate.WAIT
        self.network.send_reply(slot, self.answer(frame))
        return Gate.NEXT

    def on_gone(self, peer):
        self.gone.append(peer)

    def on_alarm(self):
        self.turns += 1

    def end_turn(self):
        self.turns += 1

    def run_background(self, _budget_ns):
        return False


class Small:
    """One machine with one drive, and a network."""

    def __init__(self, seed: int = 1) -> None:
        self.timeline = Timeline()
        self.streams = Streams(seed)
        self.drive = Drive("data")
        self.faults = DriveFaults()
        self.machine = Machine(0, self.timeline, self.streams, [self.drive])
        self.network = Network(self.timeline, self.streams.named_stream("net"))

    def boot(self) -> SimDisk:
        """Start a process; its broker is an Echo that listens."""
        self.process = self.machine.boot_process()
        self.shell = self.network.attach_process(self.process)
        self.echo = Echo(self.shell)
        self.process.inputs = self.echo
        self.network.start_listening(self.shell)
        self.disk = SimDisk(self.drive, self.faults, self.process)
        return self.disk

    def end(self, death) -> SimDisk:
        """Kill the process, start the next one, and return its disk."""
        self.machine.end_process(death)
        return self.boot()

    def run(self, seconds: float = 1.0) -> None:
        self.timeline.run_until(self.timeline.now_ns + int(seconds * SECOND))
        assert not self.machine.crashes


@pytest.fixture
def small() -> Small:
    """A booted small world."""
    world = Small()
    world.boot()
    return world


@pytest.fixture
def worlds():
    """Makes small worlds from seeds."""

    def make(seed: int) -> Small:
        world = Small(seed)
        world.boot()
        return world

    return make
