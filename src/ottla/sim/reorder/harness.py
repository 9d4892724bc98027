"""The parts of a broker on a simulated machine: its turns, its network, and failovers of its partitions.

Zone: deterministic. The broker's own objects, without sockets, elections and a metadata store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ottla.replication.partition.partition import Partition
from ottla.seams import World
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Machine
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.reorder.broker_parts import build_parts
from ottla.sim.reorder.network import HeldNetwork, Sent
from ottla.sim.reorder.partitions import PLACES, Partitions
from ottla.sim.world import MS, Timeline
from ottla.types import TopicPartition


class Harness:
    """Implements the `Inputs` that are used."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self._machine = Machine(1, self.timeline, Streams(1), [Drive("data")])
        self._process = process = self._machine.boot_process()
        self._network = network = HeldNetwork(process)
        self.outbox = network.outbox
        """Requests that were sent and have not arrived, oldest first."""
        self.send_request = network.send_request
        """A client sends a request."""
        disk = SimDisk(self._machine.drives[0], DriveFaults(), process)
        world = World(process.clock, process.entropy, [disk], network, SimWorkers(process))
        parts = build_parts(world)
        self._base = parts.base
        self.clock = process.clock
        self.purgatory = parts.base.purgatory
        self.coordinators = parts.coordinators
        self.verifier = parts.verifier
        self._partitions = Partitions(parts)
        self.find_partition: Callable[[TopicPartition], Partition] = self._partitions.find_partition
        self.has_uncommitted: Callable[[TopicPartition], bool] = self._partitions.has_uncommitted
        self.held: TopicPartition | None = None
        """The partition whose follower does not acknowledge."""
        process.inputs = cast("Any", self)
        for place in PLACES:
            self._make_leader(place)
        self.pass_ms(10)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def on_alarm(self) -> None:
        """An alarm of the purgatory is due."""
        self._base.alarm.on_fired()
        self.purgatory.on_alarm()
        self.end_turn()
        self._base.alarm.set_next_alarm()

    def end_turn(self) -> None:
        """End a turn: drain its effects, and let the followers fetch; effects of that belong to the same turn."""
        self._base.effects.drain_effects()
        while self._partitions.replicate_all(self.held, self.clock.now()):
            self._base.effects.drain_effects()

    def run_background(self, _budget_ns: int) -> bool:
        """There is no background work."""
        return False

    def run_turn(self, action: Callable[[], object]) -> None:
        """Run one input now."""

        def run() -> None:
            action()
            self.end_turn()

        self._process.post_turn(0, "input", run)
        self.pass_ms(0)

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now_ns + ms * MS)
        self.raise_errors()

    def wait_while(self, waiting: Callable[[], bool], ms: int) -> None:
        """Let time pass while `waiting()` holds, at most `ms`."""
        limit = self.timeline.now_ns + ms * MS
        if not self.timeline.run_while(waiting, limit):
            self.timeline.run_until(limit)
        self.raise_errors()

    def raise_errors(self) -> None:
        """Raises AssertionError if an exception has left a turn, or was contained: both are defects."""
        assert not self._machine.crashes, self._machine.crashes[0]
        contained = self._base.containment
        assert not contained.counts, f"a defect failed requests of these APIs: {contained.counts}"
        assert not contained.callbacks, "a defect failed a callback of an alarm"

    # -- failovers -----------------------------------------------------------------------------------------------------

    def _make_leader(self, place: TopicPartition) -> None:
        self.run_turn(lambda: self._partitions.make_leader(place, self.clock.now()))

    def fail_over(self, place: TopicPartition, lose: bool) -> None:
        """Replace the leader, in a new epoch. `lose`: the new one lacks the uncommitted records."""
        partition = self.find_partition(place)
        self.run_turn(lambda: self._partitions.make_follower(place, self.clock.now()))
        if lose:
            self.run_turn(lambda: partition.follower_role.truncate_to(partition.high_watermark))
        self.held = None
        self._make_leader(place)

    # -- requests ------------------------------------------------------------------------------------------------------

    def deliver_request(self, sent: Sent) -> None:
        """Deliver a request."""
        self.run_turn(lambda: self._base.dispatch.on_frame(cast("Any", sent), memoryview(bytearray(sent.frame))))
